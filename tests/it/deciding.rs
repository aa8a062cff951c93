//! The listeners for decisions (`[decide]`): which peers may ask, and what a reload changes.

use crate::harness::{Connection, Gateway};

/// A gateway that decides for these networks; its one limit admits two requests.
fn config(trusted: &str) -> String {
    format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\ntrusted = {trusted}\n\
         [limits.per_caller]\nrate = \"2/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\"]\n"
    )
}

fn get(gateway: &Gateway, path: &str) -> (u16, String) {
    let answer = Connection::open(gateway.deciding()).request("GET", path, &[]);
    let kind = answer.json()["type"].as_str().map(str::to_owned);
    (answer.status, kind.unwrap_or_default())
}

const UNTRUSTED: &str = "urn:problem-type:tollgate:untrusted-peer";

#[test]
fn deciding_peer_outside_the_trusted_networks_gets_403() {
    let gateway = Gateway::start(&config("[\"192.0.2.0/24\"]"));
    for path in ["/check", "/v1/decide", "/"] {
        assert_eq!(get(&gateway, path), (403, UNTRUSTED.to_owned()), "{path}");
    }
    // A header does not make a peer a trusted one.
    let headers = [("x-forwarded-for", "192.0.2.1"), ("x-real-ip", "192.0.2.1")];
    let answer = Connection::open(gateway.deciding()).request("GET", "/check", &headers);
    assert_eq!(answer.status, 403);
    // Clients are served as before.
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn deciding_reload_replaces_the_trusted_networks_and_keeps_the_listener() {
    let gateway = Gateway::start(&config("[\"192.0.2.0/24\"]"));
    let address = gateway.deciding();
    assert_eq!(get(&gateway, "/none").0, 403);
    let words = gateway.reload(&config("[\"127.0.0.1\"]")).expect("valid");
    assert!(!words.contains("restart"), "{words}");
    assert_eq!(get(&gateway, "/none").0, 404);
    // Another listener, or none, waits for a restart.
    let elsewhere = config("[\"192.0.2.0/24\"]").replace("127.0.0.1:0", "127.0.0.1:1");
    let without = elsewhere.split_once("[limits").expect("limits").1;
    for changed in [elsewhere.clone(), format!("[limits{without}")] {
        let words = gateway.reload(&changed).expect("valid");
        assert!(words.contains("decide.listen"), "{words}");
    }
    assert_eq!(gateway.deciding(), address);
    assert_eq!(get(&gateway, "/none").0, 403);
}
