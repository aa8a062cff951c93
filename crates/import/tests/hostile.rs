//! Broken, endless and hostile files: a clear error or a good configuration, never a panic.

use proptest::prelude::*;
use tollgate_import::{ImportError, Peer, SourceFile, import};
use tollgate_limit::Timestamp;

const PEERS: [Peer; 5] = [
    Peer::Nginx,
    Peer::Ingress,
    Peer::Traefik,
    Peer::Kong,
    Peer::Envoy,
];

const FILES: [&str; 7] = [
    include_str!("files/nginx.conf"),
    include_str!("files/ingress.yaml"),
    include_str!("files/traefik.yml"),
    include_str!("files/traefik.toml"),
    include_str!("files/traefik-crd.yaml"),
    include_str!("files/kong.yml"),
    include_str!("files/ratelimit.yaml"),
];

fn source(name: &str, text: impl Into<String>) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        text: text.into(),
    }
}

/// Imports a text in every format. The result is a good configuration, or a mistake that is returned.
fn everywhere(text: &str) {
    for peer in PEERS {
        for name in ["a.conf", "a.toml"] {
            if name == "a.toml" && peer != Peer::Traefik {
                continue;
            }
            if let Ok(made) = import(&[source(name, text)], peer, &|_| Ok(Vec::new())) {
                tollgate_config::parse(&made.toml, "made.toml", &|_| None, Timestamp::default())
                    .unwrap_or_else(|error| panic!("{peer:?}: {error}\n{text}"));
                assert!(
                    !made.report().contains(['\u{202e}', '\u{1b}']),
                    "{peer:?}: {text:?}"
                );
            }
        }
    }
}

fn refused(peer: Peer, text: impl Into<String>) -> String {
    match import(&[source("a.conf", text)], peer, &|_| Ok(Vec::new())) {
        Err(ImportError::Unsound(what)) => panic!("a defect: {what}"),
        Err(error) => error.to_string(),
        Ok(made) => panic!("{}", made.toml),
    }
}

#[test]
fn import_of_broken_files_names_the_line() {
    for (peer, text, words) in [
        (
            Peer::Nginx,
            "http {\n  server {\n",
            "a.conf:2: the block of `server` is not closed",
        ),
        (
            Peer::Nginx,
            "limit_req zone=a",
            "a.conf:1: `limit_req` has no `;`",
        ),
        (Peer::Nginx, "\n}\n", "a.conf:2: `}` closes no block"),
        (
            Peer::Nginx,
            "a 'b;\n",
            "a.conf:1: a quote that is not closed",
        ),
        (Peer::Kong, "a: [1\nb: }\n", "a.conf:2:"),
        (
            Peer::Envoy,
            "? [a]\n: b\n",
            "a.conf:1: a key that is no text",
        ),
    ] {
        let said = refused(peer, text);
        assert!(said.starts_with(words), "{said}\n{text}");
    }
}

#[test]
fn import_of_endless_nesting_is_refused() {
    let deep = "a {".repeat(100_000);
    assert!(refused(Peer::Nginx, deep).contains("nested deeper"));
    for deep in [
        "[".repeat(100_000),
        "a:\n ".to_owned(),
        "- ".repeat(100_000),
    ] {
        everywhere(&deep);
    }
    assert!(refused(Peer::Kong, "[".repeat(100_000)).starts_with("a.conf:1: "));
    // Each alias is ten of the one before.
    let mut bomb = "a0: &a0 x\n".to_owned();
    for level in 1..12 {
        let ten = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{ten}]\n"));
    }
    assert!(refused(Peer::Kong, bomb).contains("aliases counted"));
    assert!(refused(Peer::Nginx, " ".repeat(17 << 20)).contains("at most"));
    let wide: String = (0..6_000).map(|key| format!("k{key}: 1\n")).collect();
    assert!(refused(Peer::Kong, wide).contains("more than 5000 keys"));
}

#[test]
fn import_that_includes_itself_ends() {
    let itself = |_: &std::path::Path| Ok(vec![source("a.conf", "include a.conf;")]);
    let error =
        import(&[source("a.conf", "include a.conf;")], Peer::Nginx, &itself).expect_err("endless");
    assert!(error.to_string().contains("includes itself"), "{error}");
}

#[test]
fn import_names_an_include_that_cannot_be_read_and_reads_those_that_can() {
    let read = |path: &std::path::Path| match path.to_str() {
        Some("conf/limits.conf") => Ok(vec![source(
            "conf/limits.conf",
            "limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;",
        )]),
        _ => Err("no such file".to_owned()),
    };
    let text = "include limits.conf;\ninclude other.conf;\ninclude mime.types;\n\
                server { location / { limit_req zone=a burst=4 nodelay; } }";
    let made = import(&[source("conf/nginx.conf", text)], Peer::Nginx, &read).expect("understood");
    assert!(
        made.toml.contains("rate = \"5/second\"\nburst = 5"),
        "{}",
        made.toml
    );
    let report = made.report();
    assert!(
        report.contains("conf/nginx.conf:2: include other.conf\n  not imported: it cannot be read"),
        "{report}"
    );
    assert!(
        !report.contains("mime.types") && !made.is_whole(),
        "{report}"
    );
}

#[test]
fn import_of_numbers_that_cannot_be_counted_says_so() {
    let text = "_format_version: '3.0'\nplugins:\n - name: rate-limiting\n   config: {minute: 9000000000000000000, limit_by: ip}\n";
    let made =
        import(&[source("kong.yml", text)], Peer::Kong, &|_| Ok(Vec::new())).expect("understood");
    assert!(
        !made.is_whole() && made.report().contains("Tollgate cannot count it"),
        "{}",
        made.report()
    );
    everywhere(
        "limit_req_zone $http_${x} zone=a:1m rate=1r/s; server { location /${HOME}/ { limit_req zone=a; return 200 ${HOME}; } }",
    );
}

/// Changes of a good file: cuts, repeated pieces, and pieces that parsers care about.
#[test]
fn import_of_mutated_files_never_panics_nor_makes_a_bad_file() {
    let mut random = fastrand::Rng::with_seed(11);
    let pieces = [
        "{",
        "}",
        ";",
        "\"",
        "'",
        "\n",
        ":",
        "- ",
        "&a ",
        "*a",
        "<<: ",
        "\u{202e}",
        "\u{1b}",
        "$",
        "${X}",
        "0",
        "99999999999999999999",
        "-1",
        " if ",
        "**",
        "é",
    ];
    for round in 0..1_200 {
        let mut text = FILES[round % FILES.len()].to_owned();
        for _ in 0..random.usize(1..4) {
            let at = |random: &mut fastrand::Rng, text: &str| {
                let place = random.usize(0..=text.len());
                (0..=place)
                    .rev()
                    .find(|at| text.is_char_boundary(*at))
                    .unwrap_or(0)
            };
            let (one, other) = (at(&mut random, &text), at(&mut random, &text));
            let (from, to) = (one.min(other), one.max(other));
            match random.u8(0..4) {
                0 => text.truncate(to),
                1 => {
                    let to = (from + random.usize(0..40)).min(to);
                    let to = (0..=to)
                        .rev()
                        .find(|at| text.is_char_boundary(*at))
                        .unwrap_or(from);
                    text.replace_range(from..to.max(from), "");
                }
                2 => text.insert_str(from, pieces[random.usize(0..pieces.len())]),
                _ => {
                    let piece = text[from..to].chars().take(60).collect::<String>();
                    text.insert_str(other, &piece);
                }
            }
        }
        let peer = [
            Peer::Nginx,
            Peer::Ingress,
            Peer::Traefik,
            Peer::Traefik,
            Peer::Traefik,
            Peer::Kong,
            Peer::Envoy,
        ];
        let name = if round % FILES.len() == 3 {
            "a.toml"
        } else {
            "a.conf"
        };
        match import(
            &[source(name, text.clone())],
            peer[round % FILES.len()],
            &|_| Ok(Vec::new()),
        ) {
            Err(ImportError::Unsound(what)) => panic!("{what}\n{text}"),
            Err(_) => {}
            Ok(made) => assert!(
                !made.report().contains(['\u{202e}', '\u{1b}']),
                "{}",
                made.report()
            ),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn import_of_any_text_never_panics(text in "(\\PC|[\n\t{};:\"'#$*&\\[\\]-]){0,200}") {
        everywhere(&text);
    }
}
