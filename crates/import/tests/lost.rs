//! Files with limits that have no place in a route: none is lost without a finding, and no such import is whole.

use std::fs;
use std::path::Path;

use tollgate_import::{Imported, Outcome, Peer, SourceFile, import};

/// Each file, and how many of its findings are not imported at the least.
const FILES: &[(&str, Peer, usize)] = &[
    ("n_port.conf", Peer::Nginx, 1),
    ("n_snippet.conf", Peer::Nginx, 2),
    ("n_locsnippet.conf", Peer::Nginx, 1),
    ("n_second.conf", Peer::Nginx, 1),
    ("t_same.yml", Peer::Traefik, 1),
    ("i_canary.yml", Peer::Ingress, 1),
    ("e_two.yml", Peer::Envoy, 1),
    ("k_jwt.yml", Peer::Kong, 1),
    ("k_some.yml", Peer::Kong, 1),
    ("k_nest.yml", Peer::Kong, 1),
    ("k_two.yml", Peer::Kong, 2),
    ("k_hdr.yml", Peer::Kong, 2),
    ("n_geo.conf", Peer::Nginx, 2),
    ("e_unl.yml", Peer::Envoy, 1),
    ("e_meth.yml", Peer::Envoy, 2),
];

fn imported(name: &str, peer: Peer) -> Imported {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/lost")
        .join(name);
    let source = SourceFile {
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

#[test]
fn import_takes_a_middleware_by_its_whole_name_and_namespace() {
    let made = imported("t_suffix.yml", Peer::Traefik);
    assert!(
        made.toml
            .contains("[limits.api_api-limit]\nrate = \"10/second\""),
        "{}",
        made.toml
    );
    assert!(
        made.toml
            .contains("[limits.web_limit]\nrate = \"1000/second\""),
        "{}",
        made.toml
    );
    let made = imported("t_ns.yml", Peer::Traefik);
    assert!(made.toml.contains("rate = \"10/second\""), "{}", made.toml);
    assert!(
        !made.toml.contains("rate = \"1000/second\""),
        "{}",
        made.toml
    );
}

#[test]
fn import_of_an_empty_key_limits_no_request() {
    let made = imported("n_empty.conf", Peer::Nginx);
    assert!(!made.toml.contains("[limits."), "{}", made.toml);
    assert!(
        matches!(made.findings[0].outcome, Outcome::Nothing(_)),
        "{}",
        made.report()
    );
}

#[test]
fn import_reports_changes_by_values_and_zones_of_one_name() {
    for (name, peer) in [
        ("e_one.yml", Peer::Envoy),
        ("e_unl.yml", Peer::Envoy),
        ("e_meth.yml", Peer::Envoy),
    ] {
        let made = imported(name, peer);
        let is_equal = |outcome: &Outcome| matches!(outcome, Outcome::Equal);
        assert!(
            !made
                .findings
                .iter()
                .any(|finding| is_equal(&finding.outcome)),
            "{name}: {}",
            made.report()
        );
    }
}

#[test]
fn import_bounds_merges_and_anchors() {
    let read = |text: String| {
        let name = "kong.yml".to_owned();
        import(
            &[SourceFile { name, text }],
            Peer::Kong,
            &|_| Ok(Vec::new()),
        )
    };
    let keys = |from: usize| -> String {
        let keys = (from..from + 3_000).map(|key| format!("  k{key}: 1\n"));
        keys.collect()
    };
    let merged = format!(
        "a: &a\n{}b: &b\n{}c:\n  <<: [*a, *b]\n",
        keys(0),
        keys(3_000)
    );
    let error = read(merged).expect_err("6000 keys").to_string();
    assert!(error.contains("more than 5000 keys"), "{error}");
    // Each anchor holds a copy of those within it.
    let item = ", 1".repeat(40_000);
    let list = format!("{}[0{item}]{}", "&x [".repeat(12), "]".repeat(12));
    let error = read(format!("a: {list}\n"))
        .expect_err("copies")
        .to_string();
    assert!(error.contains("values"), "{error}");
}

/// Readers of YAML differ in which of two equal keys counts; a mapping's own key replaces a merged
/// one.
#[test]
fn import_refuses_a_key_that_is_written_twice() {
    let read = |text: &str| {
        let (name, text) = ("limits.yaml".to_owned(), text.to_owned());
        import(&[SourceFile { name, text }], Peer::Envoy, &|_| {
            Ok(Vec::new())
        })
    };
    let twice = "domain: edge\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: second\n      requests_per_unit: 5\n      requests_per_unit: 50\n";
    let error = read(twice).expect_err("two numbers").to_string();
    assert!(
        error.contains("limits.yaml:7:") && error.contains("`requests_per_unit` is written twice"),
        "{error}"
    );
    let merged = "a: &a\n  unit: second\n  requests_per_unit: 5\ndomain: edge\ndescriptors:\n  - key: user\n    rate_limit:\n      <<: *a\n      requests_per_unit: 50\n";
    let report = read(merged).map(|made| made.report());
    assert!(
        !format!("{report:?}").contains("written twice"),
        "{report:?}"
    );
}
