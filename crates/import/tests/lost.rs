//! Files with limits that have no place in a route: none is lost without a finding, and no such import is whole.

use std::fs;
use std::path::Path;

use tollgate_import::{Imported, Outcome, Peer, Source, import};

/// Each file, and how many of its findings are not imported at the least.
const FILES: &[(&str, Peer, usize)] = &[
    ("n_port.conf", Peer::Nginx, 1),
    ("n_snippet.conf", Peer::Nginx, 2),
    ("n_locsnippet.conf", Peer::Nginx, 1),
    ("n_second.conf", Peer::Nginx, 1),
    ("t_same.yml", Peer::Traefik, 1),
    ("i_canary.yml", Peer::Ingress, 1),
    ("h_two.cfg", Peer::Haproxy, 1),
    ("h_back.cfg", Peer::Haproxy, 1),
    ("e_two.yml", Peer::Envoy, 1),
    ("k_jwt.yml", Peer::Kong, 1),
    ("k_some.yml", Peer::Kong, 1),
    ("k_nest.yml", Peer::Kong, 1),
    ("k_two.yml", Peer::Kong, 2),
    ("k_hdr.yml", Peer::Kong, 2),
];

fn imported(name: &str, peer: Peer) -> Imported {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/lost")
        .join(name);
    let source = Source {
        name: name.to_owned(),
        text: fs::read_to_string(path).expect("the file"),
    };
    import(&[source], peer, &|_| Ok(Vec::new())).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn import_says_of_every_limit_that_no_route_has_that_it_is_not_imported() {
    for (name, peer, least) in FILES {
        let made = imported(name, *peer);
        if std::env::var_os("SHOW").is_some() {
            println!("=== {name}\n{}\n{}", made.report(), made.toml);
        }
        let of_none = |outcome: &Outcome| matches!(outcome, Outcome::NotImported(_));
        let lost = made.findings.iter();
        let lost = lost.filter(|finding| of_none(&finding.outcome)).count();
        assert!(lost >= *least, "{name}: {lost}\n{}", made.report());
        assert!(!made.is_whole(), "{name}");
        for finding in &made.findings {
            let Some(limit) = &finding.limit else {
                continue;
            };
            let named = made.toml.contains(&format!("[limits.{limit}]"));
            let quoted = format!("\"{limit}\"");
            let used = made.toml.lines();
            let used = used.filter(|line| line.starts_with("limits = ") && line.contains(&quoted));
            assert!(named && used.count() > 0, "{name}: {limit}\n{}", made.toml);
        }
    }
}
