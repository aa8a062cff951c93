//! An upgrade while a certificate is being ordered.

use super::*;
use crate::acme::pebble::{Pebble, Ports};
use crate::acme::{ask, config};

#[test]
fn upgrade_breaks_off_an_order_and_the_next_process_makes_it_again() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[]) else {
        return;
    };
    let state = tempfile::tempdir().expect("a folder");
    let admin = "[admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n";
    let file = format!("{}{admin}", config(&pebble, state.path(), ports, ""));
    let mut service = Service::start(&file);
    // It waits three seconds before it has the authority check.
    service.await_line("a certificate is ordered", 1);
    service.upgrade();
    service.await_line("a certificate is ordered", 2);
    service.await_line("a certificate was issued", 1);
    eventually("a certificate", || {
        ask("api.example.com", ports.https, &pebble.root()) == "served"
    });
    let said = service.said();
    assert_eq!(service.count("no certificate was issued"), 0, "{said}");
    assert!(!said.contains("PRIVATE"), "{said}");
    // Nothing of the key in the state is in the log either.
    let folder = std::fs::read_dir(state.path())
        .expect("a folder")
        .flatten()
        .next();
    let folder = folder.expect("that of the authority").path();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let secrets = text.split(['"', '\n']).filter(|part| part.len() > 60);
        assert!(
            secrets.into_iter().all(|part| !said.contains(part)),
            "{said}"
        );
    }
}
