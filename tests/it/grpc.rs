//! gRPC with grpcio's own server and client on either side: every kind of call over clear text and TLS, deadlines,
//! refusals in gRPC's words, callers known by their certificates, a stream that lives through a reload.

use std::path::Path;

use serde_json::{Value, json};

use crate::encrypted::{authority, issue};
use crate::harness::{Gateway, Peers};
use crate::servers::free_port;

/// grpcio at both ends.
struct Grpc {
    peers: Peers,
    /// Where it serves in clear text, and over TLS.
    ports: [u64; 2],
}

impl Grpc {
    /// `None`: there is no Python with grpcio here.
    fn start(folder: &Path) -> Option<Self> {
        // grpcio's own choice of a free port can be taken from under it while other tests open theirs.
        for _ in 0..3 {
            let mut peers = Peers::start("grpc", "tests/it/grpc_peers.py", &[folder])?;
            if let Some(ports) = peers.hear_if_alive() {
                return Some(Self {
                    peers,
                    ports: [0, 1].map(|at| ports[at].as_u64().expect("a port")),
                });
            }
        }
        panic!("grpcio does not start");
    }

    fn hear(&mut self) -> Value {
        self.peers.hear()
    }

    fn say(&mut self, what: &Value) {
        self.peers.say(what);
    }

    fn tell(&mut self, what: &Value) -> Value {
        self.peers.tell(what)
    }
}

/// Certificates of a site and two callers.
fn certificates(folder: &Path) {
    let one = authority(folder, "one");
    for name in ["site", "ann", "bob"] {
        issue(folder, name, &one);
    }
}

#[test]
fn every_kind_of_call_passes_in_clear_text_and_lives_through_a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let Some(mut grpc) = Grpc::start(folder.path()) else {
        return;
    };
    let dead = format!("127.0.0.1:{}", free_port());
    let config = format!(
        "[upstreams.app]\nservers = [\"http://127.0.0.1:{}\"]\nhttp2 = true\n\
         [upstreams.dead]\nservers = [\"http://{dead}\"]\nhttp2 = true\n\
         [limits.few]\nrate = \"1/hour\"\nburst = 1\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/t.T/**\"\nupstream = \"app\"\n\
         [[routes]]\nmatch = \"/limited.T/**\"\nupstream = \"app\"\nlimits = [\"few\"]\n\
         [[routes]]\nmatch = \"/dead.T/**\"\nupstream = \"dead\"\n",
        grpc.ports[0]
    );
    let gateway = Gateway::start(&config);
    let target = gateway.address().to_string();
    assert_eq!(
        grpc.tell(&json!({"do": "suite", "target": target})),
        json!([]),
        "what went wrong"
    );

    let mut code = |method: &str| {
        grpc.tell(&json!({"do": "call", "target": target, "method": method}))[0].clone()
    };
    assert_eq!(code("/limited.T/Unary"), "OK");
    assert_eq!(code("/limited.T/Unary"), "RESOURCE_EXHAUSTED");
    assert_eq!(code("/dead.T/Unary"), "UNAVAILABLE");
    assert_eq!(code("/unknown.T/Unary"), "UNIMPLEMENTED");

    grpc.say(&json!({"do": "through", "target": target}));
    assert_eq!(grpc.hear(), "in the middle");
    // Limits and routes are others; not even the route that it came by is there any more.
    let changed = config
        .replace("1/hour", "2/hour")
        .replace("/t.T/**", "/elsewhere.T/**");
    gateway.reload(&changed).expect("a good configuration");
    grpc.say(&json!("go on"));
    assert_eq!(grpc.hear(), json!(["re:0", "re:1", "re:2", "re:3", null]));
}

#[test]
fn every_kind_of_call_passes_over_tls_and_callers_are_known_by_their_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let Some(mut grpc) = Grpc::start(folder.path()) else {
        return;
    };
    let at = |name: &str| folder.path().join(name).display().to_string();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 2\nclient_ca = '{}'\nclient_certificates = \"optional\"\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\n\
         [upstreams.app]\nservers = [\"https://localhost:{}\"]\nhttp2 = true\nca_file = '{}'\n\
         [identities.who]\nkey = \"client_certificate\"\nwhen_missing = \"refuse\"\n\
         [limits.it]\nrate = \"2/hour\"\nburst = 2\nper = \"who\"\n\
         [[routes]]\nmatch = \"/t.T/**\"\nupstream = \"app\"\n\
         [[routes]]\nmatch = \"/limited.T/**\"\nupstream = \"app\"\nlimits = [\"it\"]\n",
        at("one.pem"),
        at("site.pem"),
        at("site.key"),
        grpc.ports[1],
        at("one.pem"),
    ));
    let target = format!("localhost:{}", gateway.address().port());
    assert_eq!(
        grpc.tell(&json!({"do": "suite", "target": target, "tls": true})),
        json!([]),
        "what went wrong"
    );
    let mut code = |who: Option<&str>| {
        let order = json!({"do": "call", "target": target, "tls": true, "who": who, "method": "/limited.T/Unary"});
        grpc.tell(&order)[0].clone()
    };
    assert_eq!(
        [code(Some("ann")), code(Some("ann")), code(Some("ann"))],
        ["OK", "OK", "RESOURCE_EXHAUSTED"]
    );
    assert_eq!(code(Some("bob")), "OK", "another caller");
    assert_eq!(code(None), "UNAUTHENTICATED");
}
