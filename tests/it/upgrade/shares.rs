//! An upgrade, and a restart with a state file, while the shared store does not respond: no share is
//! refilled.

use super::*;

/// A gateway whose store nothing listens for, and the file of its secret.
fn without_store() -> (Service, tempfile::NamedTempFile) {
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "a secret that gateways share").expect("written");
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|free| free.local_addr())
        .expect("a free port")
        .port();
    let store = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{port}\"\nwhen_down = \"local_share\"\n\
         key_secret_file = \"{}\"\n",
        secret.path().display()
    );
    let routes = store
        + &limited("/tight", "1/hour", 5, "builtin:echo")
        + "[[routes]]\nmatch = \"/free\"\nupstream = \"builtin:echo\"\n";
    (Service::start(&config(1, &routes)), secret)
}

/// A connection that the process of now has accepted.
fn accepted(service: &Service) -> Connection {
    let mut connection = service.connect();
    assert_eq!(connection.request("GET", "/free", &[]).status, 200);
    connection
}

fn granted(service: &Service) -> usize {
    (0..10).filter(|_| service.get("/tight") == 200).count()
}

#[test]
fn upgrade_in_an_outage_of_the_store_refills_no_share() {
    let (mut service, _secret) = without_store();
    assert_eq!(granted(&service), 5);
    for round in 1..=2 {
        let mut before = accepted(&service);
        service.upgrade();
        assert_eq!(granted(&service), 0);
        assert_eq!(before.request("GET", "/tight", &[]).status, 503);
        service.await_end_of_old(round);
    }
}

#[test]
fn upgrade_in_an_outage_of_the_store_leaves_one_share_for_both_processes() {
    let (mut service, _secret) = without_store();
    assert_eq!(service.get("/tight"), 200);
    let mut before: Vec<_> = (0..5).map(|_| accepted(&service)).collect();
    service.upgrade();
    for connection in &mut before {
        assert_eq!(connection.request("GET", "/tight", &[]).status, 503);
    }
    assert_eq!(granted(&service), 4);
}

#[test]
fn restart_in_an_outage_of_the_store_refills_no_share() {
    let (service, _secret) = without_store();
    assert_eq!(granted(&service), 5);
    let service = service.restart();
    assert_eq!(granted(&service), 0);
}
