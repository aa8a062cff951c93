//! Keys that are fetched by URL: rotation, outages, and providers that misbehave.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::harness::{Gateway, PATIENCE, eventually};

/// What the provider sends.
#[derive(Clone)]
enum Reply {
    /// A status, header lines, and a body.
    Send(u16, String, Vec<u8>),
    Silence,
}

fn ok(body: impl Into<Vec<u8>>) -> Reply {
    Reply::Send(200, String::new(), body.into())
}

/// A provider of keys over TLS, for `localhost` and 127.0.0.1. It ends when dropped.
struct Provider {
    port: u16,
    asked: Arc<AtomicUsize>,
    reply: Arc<Mutex<Reply>>,
    stop: Arc<AtomicBool>,
}

impl Provider {
    /// Starts one; its certificate is `provider.pem` in the folder, and is its own authority.
    fn start(folder: &Path, reply: Reply) -> Self {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(names).expect("names");
        let certificate = certificate.self_signed(&key).expect("signed");
        fs::write(folder.join("provider.pem"), certificate.pem()).expect("written");
        let chain = CertificateDer::from_pem_slice(certificate.pem().as_bytes());
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![chain.expect("PEM")], key.expect("PEM"))
            .expect("a pair");
        let config = Arc::new(config);
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let its = Self {
            port: listener.local_addr().expect("an address").port(),
            asked: Arc::default(),
            reply: Arc::new(Mutex::new(reply)),
            stop: Arc::default(),
        };
        let (asked, reply, stop) = (
            Arc::clone(&its.asked),
            Arc::clone(&its.reply),
            Arc::clone(&its.stop),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (config, asked, reply) =
                    (Arc::clone(&config), Arc::clone(&asked), Arc::clone(&reply));
                std::thread::spawn(move || answer(stream, &config, &asked, &reply));
            }
        });
        its
    }

    fn says(&self, reply: Reply) {
        *self.reply.lock().expect("no panic") = reply;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/keys", self.port)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn answer(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    asked: &AtomicUsize,
    reply: &Mutex<Reply>,
) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let connection = ServerConnection::new(Arc::clone(config)).expect("a configuration");
    let mut stream = StreamOwned::new(connection, stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // A gateway that does not trust the certificate ends the handshake.
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    asked.fetch_add(1, Ordering::SeqCst);
    let reply = reply.lock().expect("no panic").clone();
    match reply {
        Reply::Send(status, headers, body) => {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {length}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), &body].concat());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        // Until the gateway gives up.
        Reply::Silence => _ = stream.read(&mut [0]),
    }
}

fn testdata(file: &str) -> Vec<u8> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/policy/src/identity/jwt/testdata");
    fs::read(folder.join(file)).expect("a file of the tests")
}

/// A key set of the keys with these ids: `e1` is by P-256, any other id is the Ed25519 key's.
fn set(ids: &[&str]) -> Vec<u8> {
    let all: serde_json::Value = serde_json::from_slice(&testdata("jwks.json")).expect("JSON");
    let of = |kid: &str| {
        let mut keys = all["keys"].as_array().expect("keys").iter();
        keys.find(|key| key["kid"] == kid).expect("a key").clone()
    };
    let key = |id: &&str| {
        let mut key = of(if *id == "e1" { "e1" } else { "d1" });
        key["kid"] = json!(id);
        key
    };
    let keys: Vec<_> = ids.iter().map(key).collect();
    json!({ "keys": keys }).to_string().into_bytes()
}

fn token_by(kid: Option<&str>, issuer: &str) -> String {
    let (algorithm, key) = if kid == Some("e1") {
        (
            Algorithm::ES256,
            EncodingKey::from_ec_pem(&testdata("ec.pem")),
        )
    } else {
        (
            Algorithm::EdDSA,
            EncodingKey::from_ed_pem(&testdata("ed.pem")),
        )
    };
    let header = Header {
        kid: kid.map(str::to_owned),
        ..Header::new(algorithm)
    };
    let claims = json!({ "sub": "ann", "iss": issuer, "exp": 1_900_000_000 });
    encode(&header, &claims, &key.expect("a key")).expect("a token")
}

fn token(kid: &str) -> String {
    token_by(Some(kid), "https://id")
}

/// A gateway's file whose callers have tokens; `keys` is in `jwt`, `fetch` in `fetch`.
fn file(folder: &Path, keys: &str, fetch: &str) -> String {
    format!(
        "[identities.who]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         [identities.who.jwt]\n{keys}\nalgorithms = [\"EdDSA\", \"ES256\"]\n\
         fetch = {{ ca_file = '{}'{fetch} }}\n\
         [limits.it]\nrate = \"1000000/second\"\nper = \"who\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        folder.join("provider.pem").display()
    )
}

fn with_state(folder: &Path, file: &str) -> String {
    let state = folder.join("state").display().to_string();
    format!("[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\nstate_file = '{state}'\n{file}")
}

fn ask(gateway: &Gateway, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    gateway
        .request("GET", "/", &[("authorization", &bearer)])
        .status
}

fn readiness(gateway: &Gateway) -> String {
    gateway.admin_get("/readyz?verbose").text()
}

fn metric(gateway: &Gateway, sample: &str) -> f64 {
    let text = gateway.admin_get("/metrics").text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.expect("a sample").parse().expect("a number")
}

#[test]
fn jwt_keys_that_rotate_under_load_lose_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), ok(set(&["d1", "e1"])));
    let keys = format!("keys = \"{}\"", provider.url());
    let often = ", refresh = \"1s\", unknown_kid = \"1s\"";
    let gateway = Gateway::start(&file(folder.path(), &keys, often));
    assert_eq!(
        ask(&gateway, &token("d1")),
        200,
        "fetched before the first request"
    );
    let (stays, stop) = (token("e1"), AtomicBool::new(false));
    let bearer = format!("Bearer {stays}");
    let requests = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = gateway.connect();
                while !stop.load(Ordering::SeqCst) {
                    let headers = [("authorization", bearer.as_str())];
                    let status = connection.request("GET", "/", &headers).status;
                    assert_eq!(status, 200, "its key is in every set");
                    requests.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for id in ["d2", "d3", "d4"] {
            provider.says(ok(set(&["e1", id])));
            eventually("the new key is in force", || {
                ask(&gateway, &token(id)) == 200
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(requests.into_inner() > 10);
    // A key that is withdrawn takes along the tokens that it has verified.
    assert_eq!(ask(&gateway, &token("d1")), 401);
    assert!(
        metric(
            &gateway,
            "tollgate_jwt_keys_failures_total{identity=\"who\"}"
        ) < 1.0
    );
}

#[test]
fn jwt_keys_unknown_id_is_refused_at_once_and_fetched_once_in_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), ok(set(&["d1"])));
    let keys = format!("keys = \"{}\"", provider.url());
    let gateway = Gateway::start(&file(folder.path(), &keys, ", unknown_kid = \"1s\""));
    provider.says(ok(set(&["d1", "e1"])));
    let unknown = gateway.request(
        "GET",
        "/",
        &[("authorization", &format!("Bearer {}", token("e1")))],
    );
    assert_eq!(
        (unknown.status, unknown.header("www-authenticate")),
        (401, Some("Bearer"))
    );
    eventually("the new key is fetched", || {
        ask(&gateway, &token("e1")) == 200
    });
    assert_eq!(provider.asked(), 2);

    // However many made-up ids there are: none causes an attempt before its time.
    let seldom = ", unknown_kid = \"1h\"";
    gateway
        .reload(&file(folder.path(), &keys, seldom))
        .expect("in force");
    eventually("a reload fetches", || provider.asked() == 3);
    provider.says(ok(set(&["d1"])));
    for id in 0..50 {
        assert_eq!(ask(&gateway, &token(&format!("made-up-{id}"))), 401);
    }
    assert_eq!(ask(&gateway, &token("e1")), 200);
    assert_eq!(provider.asked(), 3);
}

#[test]
fn jwt_keys_provider_down_at_the_first_start_is_503_until_it_responds() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), Reply::Send(500, String::new(), Vec::new()));
    let keys = format!("keys = \"{}\"", provider.url());
    let gateway = Gateway::start(&file(folder.path(), &keys, ""));
    let bearer = format!("Bearer {}", token("d1"));
    let refused = gateway.request("GET", "/", &[("authorization", &bearer)]);
    assert_eq!(
        (
            refused.status,
            refused.header("retry-after"),
            refused.header("www-authenticate")
        ),
        (503, Some("1"), None)
    );
    assert!(
        refused.text().contains("cannot be fetched at the moment"),
        "{}",
        refused.text()
    );
    assert_eq!(
        ask(&gateway, "made-up"),
        401,
        "no keys make a token of that"
    );
    let ready = gateway.admin_get("/readyz?verbose");
    assert_eq!(ready.status, 503, "every route needs them");
    let text = ready.text();
    assert!(
        text.contains("[-] jwt keys who: there are none, so tokens get 503: "),
        "{text}"
    );
    assert!(text.contains("it responded with 500"), "{text}");
    assert!(
        metric(
            &gateway,
            "tollgate_jwt_keys_fetched_timestamp_seconds{identity=\"who\"}"
        ) < 1.0
    );
    provider.says(ok(set(&["d1"])));
    eventually("it is asked again", || ask(&gateway, &token("d1")) == 200);
    assert_eq!(gateway.admin_get("/readyz").status, 200);
    assert!(readiness(&gateway).contains("[+] jwt keys who: those fetched at "));
}

#[test]
fn jwt_keys_stay_while_the_provider_fails_and_through_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), ok(set(&["d1"])));
    let keys = format!("keys = \"{}\"", provider.url());
    let text = with_state(
        folder.path(),
        &file(folder.path(), &keys, ", refresh = \"1s\""),
    );
    let gateway = Gateway::start(&text);
    assert_eq!(ask(&gateway, &token("d1")), 200);
    for (bad, why) in [
        (ok("no keys"), "this is no JSON"),
        (ok("{\"keys\":[]}"), "there is no key for signatures in it"),
        (ok(vec![b' '; 300 << 10]), "more than 256 KiB"),
        (
            Reply::Send(404, String::new(), Vec::new()),
            "it responded with 404",
        ),
    ] {
        provider.says(bad);
        eventually(why, || readiness(&gateway).contains(why));
        assert!(readiness(&gateway).contains("[!] jwt keys who: those fetched at "));
        assert_eq!(ask(&gateway, &token("d1")), 200);
        provider.says(ok(set(&["d1"])));
        eventually("it recovers", || {
            readiness(&gateway).contains("[+] jwt keys who")
        });
    }
    gateway.shutdown();
    drop(provider);
    let gateway = Gateway::start(&text);
    assert_eq!(
        ask(&gateway, &token("d1")),
        200,
        "by the keys of the last run"
    );
    eventually("the outage is told", || {
        readiness(&gateway).contains("[!] jwt keys who")
    });
    assert_eq!(gateway.admin_get("/readyz").status, 200);
}

#[test]
fn jwt_keys_are_not_taken_from_where_the_file_does_not_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), ok(set(&["d1"])));
    let port = provider.port;
    let location = |to: &str| Reply::Send(302, format!("location: {to}\r\n"), Vec::new());
    let at = |host: &str| format!("keys = \"https://{host}:{port}/keys\"");
    let local = at("localhost");
    let cases = [
        (
            location(&format!("https://127.0.0.1:{port}/other")),
            &local,
            "",
            "`127.0.0.1` is another host",
        ),
        (
            location("http://example.com/keys"),
            &local,
            "",
            "anyone between could send other keys",
        ),
        (location("/keys"), &local, "", "more than 3 redirects"),
        (
            location("keys"),
            &local,
            "",
            "no location that can be followed",
        ),
        // The resolver takes this for 127.0.0.1; it stands for any name of a private address.
        (
            ok(set(&["d1"])),
            &at("127.1"),
            "",
            "`127.1` is 127.0.0.1, a private address",
        ),
        (
            Reply::Silence,
            &local,
            ", timeout = \"1s\"",
            "no response in 1s",
        ),
    ];
    for (reply, keys, fetch, why) in cases {
        provider.says(reply);
        let gateway = Gateway::start(&file(folder.path(), keys, fetch));
        let said = readiness(&gateway);
        assert!(said.contains(why), "{why}: {said}");
        assert_eq!(ask(&gateway, &token("d1")), 503);
    }
    // A redirect to a host that is written.
    let moved = Provider::start(folder.path(), Reply::Silence);
    let (own, other) = (
        fs::read(folder.path().join("provider.pem")).expect("PEM"),
        folder.path().join("both"),
    );
    fs::create_dir(&other).expect("made");
    let provider = Provider::start(&other, ok(set(&["d1"])));
    moved.says(location(&format!(
        "https://127.0.0.1:{}/moved",
        provider.port
    )));
    let both = [own, fs::read(other.join("provider.pem")).expect("PEM")].concat();
    fs::write(folder.path().join("provider.pem"), both).expect("written");
    let keys = format!("keys = \"{}\"", moved.url());
    let gateway = Gateway::start(&file(folder.path(), &keys, ", hosts = [\"127.0.0.1\"]"));
    assert_eq!(ask(&gateway, &token("d1")), 200, "{}", readiness(&gateway));
    assert_eq!(provider.asked(), 1);

    // The system's authorities do not know the certificate.
    let without_ca = file(folder.path(), &keys, "").replace("fetch = ", "# ");
    let gateway = Gateway::start(&without_ca);
    let said = readiness(&gateway);
    assert!(said.contains("certificate"), "{said}");
}

#[test]
fn jwt_keys_of_a_reload_that_cannot_be_fetched_leave_those_in_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start(folder.path(), ok(set(&["d1"])));
    let keys = format!("keys = \"{}\"", provider.url());
    let good = file(folder.path(), &keys, "");
    let gateway = Gateway::start(&good);
    let elsewhere = good.replace("/keys", "/other");
    provider.says(Reply::Send(404, String::new(), Vec::new()));
    let error = gateway.reload(&elsewhere).expect_err("there are none");
    assert!(
        error.contains("`identities.who.jwt`: the keys cannot be fetched: "),
        "{error}"
    );
    assert_eq!(ask(&gateway, &token("d1")), 200);
    // The same provider may fail: its keys are known.
    gateway
        .reload(&good.replace("1000000", "2000000"))
        .expect("in force");
    assert_eq!(ask(&gateway, &token("d1")), 200);
    provider.says(ok(set(&["e1"])));
    gateway.reload(&elsewhere).expect("in force");
    assert_eq!(
        [ask(&gateway, &token("d1")), ask(&gateway, &token("e1"))],
        [401, 200]
    );
}

#[test]
fn jwt_keys_are_found_by_the_openid_configuration_of_their_issuer() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = Provider::start(folder.path(), ok(set(&["d1"])));
    let configuration = |issuer: &str, keys: &str| {
        json!({ "issuer": issuer, "jwks_uri": keys, "more": [] }).to_string()
    };
    // The configuration is read over plain HTTP of this machine, the keys over TLS.
    let said = Arc::new(Mutex::new(String::new()));
    let its = Arc::clone(&said);
    let server = crate::harness::Upstream::start(move |seen| {
        assert_eq!(
            seen.line(),
            "GET /.well-known/openid-configuration HTTP/1.1"
        );
        crate::harness::Reply::ok(&its.lock().expect("no panic"))
    });
    let issuer = server.url().replace("127.0.0.1", "localhost");
    let text = file(folder.path(), &format!("discovery = \"{issuer}\""), "");
    let says =
        |issuer: &str, keys: &str| *said.lock().expect("no panic") = configuration(issuer, keys);

    says("https://other", &keys.url());
    let gateway = Gateway::start(&text);
    let ready = readiness(&gateway);
    assert!(
        ready.contains("it is the configuration of `https://other`"),
        "{ready}"
    );
    says(&issuer, &keys.url().replace("localhost", "127.0.0.1"));
    let gateway = Gateway::start(&text);
    let ready = readiness(&gateway);
    assert!(
        ready.contains("`127.0.0.1` is another host, which `fetch.hosts` does not list"),
        "{ready}"
    );

    says(&issuer, &keys.url());
    let gateway = Gateway::start(&text);
    assert_eq!(
        ask(&gateway, &token_by(Some("d1"), &issuer)),
        200,
        "{}",
        readiness(&gateway)
    );
    assert_eq!(ask(&gateway, &token_by(None, &issuer)), 200);
    assert_eq!(
        ask(&gateway, &token_by(Some("d1"), "https://other")),
        401,
        "of another issuer"
    );
}
