//! Feeds the fuzz targets their corpus and mutations of it, on a stable toolchain, with every other test.
//! The seed is fixed; `TOLLGATE_FUZZ_SEED` and `TOLLGATE_FUZZ_ROUNDS` ask for other or longer runs.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

#[path = "../fuzz/targets.rs"]
#[allow(dead_code)]
mod targets;

use std::path::Path;

#[test]
fn paths_hold_their_promises() {
    smoke("path", targets::path);
}

#[test]
fn addresses_hold_their_promises() {
    smoke("addresses", targets::addresses);
}

#[test]
fn texts_hold_their_promises() {
    smoke("texts", targets::texts);
}

#[test]
fn keys_hold_their_promises() {
    smoke("keys", targets::keys);
}

#[test]
fn requests_hold_their_promises() {
    smoke("request", targets::request);
}

#[test]
fn heads_hold_their_promises() {
    smoke("head", targets::head);
}

#[test]
fn streams_of_requests_hold_their_promises() {
    smoke("requests", targets::requests);
}

#[test]
fn streams_of_responses_hold_their_promises() {
    smoke("responses", targets::responses);
}

#[test]
fn answers_hold_their_promises() {
    smoke("answer", targets::answer);
}

#[test]
fn proxy_protocol_headers_hold_their_promises() {
    smoke("proxy_protocol", targets::proxy_protocol);
}

#[test]
fn tails_of_bodies_hold_their_promises() {
    smoke("tail", targets::tail);
}

#[test]
fn bodies_of_requests_hold_their_promises() {
    smoke("request_json", targets::request_json);
}

#[test]
fn log_lines_hold_their_promises() {
    smoke("log", targets::log);
}

#[test]
fn files_hold_their_promises() {
    smoke("config", targets::config);
}

#[test]
fn imports_hold_their_promises() {
    smoke("import", targets::import);
}

#[test]
fn every_target_is_run_here_and_has_a_corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mine = include_str!("fuzz_smoke.rs");
    for file in std::fs::read_dir(root.join("fuzz/fuzz_targets")).expect("the targets") {
        let path = file.expect("a readable folder").path();
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        assert!(
            mine.contains(&format!("smoke(\"{name}\", targets::{name})")),
            "{name} is not run"
        );
        assert!(
            root.join("fuzz/corpus").join(&name).is_dir(),
            "{name} has no corpus"
        );
    }
}

/// Every input of the corpus as it is, then `rounds` mutations of them.
fn smoke(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let files = std::fs::read_dir(&folder).expect("the corpus stands in the repository");
    let mut corpus: Vec<_> = files
        .map(|file| file.expect("a readable folder").path())
        .collect();
    // The order of a folder's files is the file system's; the run must not depend on it.
    corpus.sort();
    let corpus: Vec<Vec<u8>> = corpus
        .iter()
        .map(|file| std::fs::read(file).expect("a readable file"))
        .collect();
    assert!(!corpus.is_empty(), "{} is empty", folder.display());
    corpus.iter().for_each(|input| target(input));
    let number = |name, default| match option(name) {
        Some(text) => text.parse().expect("a number"),
        None => default,
    };
    let (seed, rounds) = (
        number("TOLLGATE_FUZZ_SEED", 7),
        number("TOLLGATE_FUZZ_ROUNDS", 4_000),
    );
    let mut dice = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let input = mutate(&corpus, &mut dice);
        let outcome = std::panic::catch_unwind(|| target(&input));
        assert!(
            outcome.is_ok(),
            "seed {seed}, round {round}: {:?}",
            String::from_utf8_lossy(&input)
        );
    }
}

/// One to six changes: a byte, a cut, a copy from another input, or a piece that parsers care about.
fn mutate(corpus: &[Vec<u8>], dice: &mut fastrand::Rng) -> Vec<u8> {
    let mut input = corpus[dice.usize(..corpus.len())].clone();
    for _ in 0..dice.usize(1..=6) {
        let at = dice.usize(..=input.len());
        match dice.u8(..5) {
            0 if at < input.len() => input[at] = dice.u8(..),
            1 => {
                let end = (at + dice.usize(..8)).min(input.len());
                input.drain(at..end);
            }
            2 => {
                let other = &corpus[dice.usize(..corpus.len())];
                let from = dice.usize(..=other.len());
                let to = (from + dice.usize(..12)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let piece = PIECES[dice.usize(..PIECES.len())];
                input.splice(at..at, piece.iter().copied());
            }
        }
    }
    input
}

#[expect(clippy::disallowed_methods, reason = "a test reads its own switches")]
fn option(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

const PIECES: &[&[u8]] = &[
    b"/",
    b"//",
    b"..",
    b".",
    b"%2e",
    b"%2F",
    b"%5c",
    b"%00",
    b"%25",
    b"%",
    b";",
    b"\\",
    b"*",
    b"**",
    b"{",
    b"}",
    b"{id}",
    b"|",
    b" ",
    b"\n",
    b"\"",
    b",",
    b"=",
    b":",
    b"[",
    b"]",
    b"::ffff:",
    b"for=",
    b"10.0.0.9",
    b"unknown",
    b"_h",
    b"\xff",
    b"\xc3\xa4",
    b"&key=",
    b"+",
    b"cookie: sid=",
    b"x-api-key: ",
    b"authorization: Bearer ",
    b"-----BEGIN PUBLIC KEY-----",
    b"-----END",
    b"\xed\xa0\x80",
    b"e1",
    b"99999999999999999999",
    b"\r\n",
    b"host: a",
    b"transfer-encoding: chunked",
    b"content-length: 5\r\n",
    b"\r\n\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n",
    b"HTTP/1.1 ",
    b"connection: ",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"PROXY TCP4 ",
    b"{\"usage\":{\"total\":",
    b"data:",
    b"[[routes]]\n",
    b"rate = ",
    b"\"10/s\"",
];
