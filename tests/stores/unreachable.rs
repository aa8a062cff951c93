//! A store that was never reached is reported: in the log, by the probes, in the status.

use std::io::{Read, Write};
use std::net::TcpStream;

use tollgate_store::{Backend, Store};

use crate::process::Outspoken;
use crate::servers::StoreKind;
use crate::servers::{Maria, Postgres, Redis, available, free_port, wait_until};

/// A gateway, and what it says.
struct Gateway {
    process: Outspoken,
    port: u16,
    admin: u16,
    home: tempfile::TempDir,
}

impl Gateway {
    /// On this store, with one limit that says `when_down`.
    fn start(store: &str, when_down: &str) -> Self {
        let (port, admin, home) = (free_port(), free_port(), tempfile::tempdir().unwrap());
        let log = home.path().join("access.log").display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [log]\naccess = \"{log}\"\n\
             [store]\nkey_secret_file = \"secret\"\nwhen_down = \"{when_down}\"\n{store}\n\
             [limits.total]\nper = \"everyone\"\nrate = \"1/hour\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
        );
        std::fs::write(home.path().join("gateway.toml"), text).unwrap();
        std::fs::write(home.path().join("secret"), "a secret that gateways share").unwrap();
        std::fs::write(home.path().join("password"), "hunter2").unwrap();
        let process = Outspoken::run(&home.path().join("gateway.toml"));
        Self {
            process,
            port,
            admin,
            home,
        }
    }

    /// What the access log says of each request's one limit.
    fn outcomes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.home.path().join("access.log")).unwrap_or_default();
        let outcome = |line: &str| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["limits"][0]["outcome"]
                .as_str()
                .unwrap_or_else(|| panic!("no outcome in {line}"))
                .to_owned()
        };
        text.lines().map(outcome).collect()
    }

    fn admin(&self, path: &str) -> (u16, String) {
        get(self.admin, path)
    }
}

fn get(port: u16, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap();
    (status, text)
}

#[test]
fn store_wrong_password_is_logged_and_so_is_its_end() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    assert!(server.ask("CONFIG SET requirepass another").contains("OK"));
    let store = format!(
        "kind = \"redis\"\nurl = \"{}\"\npassword_file = \"password\"",
        server.url()
    );
    let gateway = Gateway::start(&store, "allow");
    let said = gateway
        .process
        .wait_for("the shared store cannot be reached");
    assert!(
        said.contains("authentication failed") && !said.contains("hunter2"),
        "{said}"
    );
    wait_until("a gateway that serves", || {
        TcpStream::connect(("127.0.0.1", gateway.port)).is_ok()
    });
    for _ in 0..3 {
        let (status, answer) = get(gateway.port, "/");
        // No store was asked, so what is left is not known.
        assert!(status == 200 && !answer.contains("ratelimit: "), "{answer}");
    }

    let (ready, words) = gateway.admin("/readyz?verbose");
    assert_eq!(ready, 200, "allowed: {words}");
    assert!(
        words.contains("[!] store: ")
            && words.contains("authentication failed")
            && words.contains("when_down = allow"),
        "{words}"
    );
    assert!(!words.contains("hunter2"), "{words}");
    let (_, status) = gateway.admin("/api/v1/status");
    assert!(
        status.contains("\"answers\": false") && status.contains("authentication failed"),
        "{status}"
    );
    let (_, metrics) = gateway.admin("/metrics");
    assert!(
        metrics.contains("\ntollgate_store_up 0")
            && metrics.contains("\ntollgate_store_replicas 1"),
        "{metrics}"
    );

    assert!(
        crate::servers::ask_as(server.port, "another", "CONFIG SET requirepass hunter2")
            .contains("OK")
    );
    gateway.process.wait_for("the shared store responds");
    let (_, words) = gateway.admin("/readyz?verbose");
    assert!(words.contains("[+] store"), "{words}");
    let (_, status) = gateway.admin("/api/v1/status");
    assert!(
        status.contains("\"answers\": true") && status.contains("\"replicas\": 1"),
        "{status}"
    );
    assert_eq!(
        [get(gateway.port, "/").0, get(gateway.port, "/").0],
        [200, 429],
        "now the store counts"
    );
    wait_until("log of five requests", || gateway.outcomes().len() == 5);
    assert_eq!(
        gateway.outcomes(),
        ["ungoverned", "ungoverned", "ungoverned", "allow", "deny"]
    );
}

#[test]
fn store_socket_takes_user_and_password_from_the_settings() {
    if !available("redis-server") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("redis.sock").display().to_string();
    let server = Redis::start_with(&["--unixsocket", &socket]);
    assert!(
        server
            .ask("ACL SETUSER gate on >hunter2 ~tollgate:* &* +@all")
            .contains("OK")
    );
    assert!(server.ask("ACL SETUSER default off").contains("OK"));
    let store = format!(
        "kind = \"redis\"\nurl = \"unix:{socket}\"\nusername = \"gate\"\npassword_file = \"password\""
    );
    let gateway = Gateway::start(&store, "refuse");
    gateway.process.wait_for("the shared store responds");
    wait_until("a gateway that serves", || {
        TcpStream::connect(("127.0.0.1", gateway.port)).is_ok()
    });
    assert_eq!(
        [get(gateway.port, "/").0, get(gateway.port, "/").0],
        [200, 429]
    );
}

#[test]
fn store_database_missing_is_logged() {
    if Postgres::available() {
        let server = Postgres::start_with(&[]);
        let url = format!("postgres://postgres@127.0.0.1:{}/nowhere", server.port);
        is_told_of("postgres", &url);
    }
    if Maria::available() {
        let server = Maria::start();
        is_told_of("mariadb", &server.url().replace("/tollgate", "/nowhere"));
    }
}

fn is_told_of(kind: &str, url: &str) {
    let gateway = Gateway::start(&format!("kind = \"{kind}\"\nurl = \"{url}\""), "refuse");
    let said = gateway
        .process
        .wait_for("the shared store cannot be reached");
    assert!(said.contains("nowhere"), "{said}");
    wait_until("an admin listener", || {
        TcpStream::connect(("127.0.0.1", gateway.admin)).is_ok()
    });
    let (ready, words) = gateway.admin("/readyz?verbose");
    assert!(
        ready == 503 && words.contains("[-] store: ") && words.contains("nowhere"),
        "{words}"
    );
    let (_, status) = gateway.admin("/api/v1/status");
    assert!(
        status.contains("\"answers\": false") && status.contains("nowhere"),
        "{status}"
    );
}

/// Local shares are divided by the number that an earlier process knew, until the store counts gateways.
#[tokio::test]
async fn store_that_was_never_reached_has_the_number_of_gateways_that_was_assumed() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let store = Backend::Remote(StoreKind::Redis.open(&url, |_| ()));
    assert_eq!(store.replicas(), 1);
    store.assume_replicas(3);
    assert_eq!(store.replicas(), 3);
}
