//! Whole files of each gateway, with the configuration and the report that become of them.
//!
//! `BLESS=1 cargo test -p tollgate-import` writes both anew: read what changed.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_import::{Imported, Peer, SourceFile, detect, import};

/// Each file, whose it is, and whether everything in it is imported.
const FILES: [(&str, Peer, bool); 7] = [
    ("nginx.conf", Peer::Nginx, false),
    ("ingress.yaml", Peer::Ingress, false),
    ("traefik.yml", Peer::Traefik, false),
    ("traefik.toml", Peer::Traefik, true),
    ("traefik-crd.yaml", Peer::Traefik, true),
    ("kong.yml", Peer::Kong, false),
    ("ratelimit.yaml", Peer::Envoy, false),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files")
}

fn source(name: &str) -> SourceFile {
    let text = fs::read_to_string(folder().join(name)).expect("the file");
    SourceFile {
        name: name.to_owned(),
        text,
    }
}

fn imported(name: &str, peer: Peer) -> Imported {
    import(&[source(name)], peer, &|path| {
        Err(format!("{} is not here", path.display()))
    })
    .unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn import_of_whole_files_is_as_written_down() {
    for (name, peer, whole) in FILES {
        let made = imported(name, peer);
        assert_eq!(made.is_whole(), whole, "{name}: {}", made.report());
        for (end, text) in [("toml", &made.toml), ("report", &made.report())] {
            let path = folder().join(format!("{name}.made.{end}"));
            if std::env::var_os("BLESS").is_some() {
                fs::write(&path, text).expect("written");
            }
            let golden = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(*text, golden, "{}: BLESS=1 writes it anew", path.display());
        }
    }
}

#[test]
fn detect_recognises_every_file_by_its_contents() {
    for (name, peer, _) in FILES {
        let known = source(name);
        assert_eq!(detect(&known), Some(peer), "{name}");
        let end = name.rsplit_once('.').map_or("", |(_, end)| end);
        let end = if end == "conf" { "txt" } else { end };
        let other = SourceFile {
            name: format!("some.{end}"),
            ..known
        };
        assert_eq!(detect(&other), Some(peer), "{name} by its contents");
    }
    for text in ["", "hello", "[server]\nlisten = \"x\"\n"] {
        let other = SourceFile {
            name: "notes.txt".to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(detect(&other), None, "{text}");
    }
}

#[test]
fn import_names_the_line_of_each_limit_above_it() {
    for (name, peer, _) in FILES {
        let made = imported(name, peer);
        let mut before = "";
        let mut seen = 0;
        for line in made.toml.lines() {
            if line.starts_with("[limits.") {
                seen += 1;
                assert!(before.starts_with("# "), "{name}: {line}");
            }
            before = line;
        }
        let places = made.toml.matches(&format!("# {name}:")).count();
        assert!(
            seen > 0 && places >= seen,
            "{name}: {seen} limits, {places} places"
        );
    }
}
