//! Each gateway on a store blocks by its own penalties. A reload that raises a rate reaches buckets that are used up.

use std::net::TcpStream;

use crate::gateways::{Gateway, response, status, store};
use crate::servers::{Server, wait_until};

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

fn settings(admin: &str, server: &Server, place: usize, limit: &str) -> String {
    let store = store(server, place);
    format!(
        "{admin}{store}[limits.total]\nper = \"everyone\"\n{limit}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Decided {
    Admitted,
    /// By the limit itself.
    Refused,
    /// By its penalty.
    Blocked,
}

/// What a gateway decides; a store on a busy machine may be late, so that it is asked again.
fn decide(port: u16) -> Decided {
    let mut decided = None;
    wait_until("a decision", || {
        let text = response(port, "GET / HTTP/1.1\r\n");
        decided = match text.split(' ').nth(1) {
            Some("200") => Some(Decided::Admitted),
            Some("429") if text.contains("refused too often") => Some(Decided::Blocked),
            Some("429") => Some(Decided::Refused),
            Some("503") => None,
            _ => panic!("{text}"),
        };
        decided.is_some()
    });
    decided.unwrap()
}

fn is_blocked(port: u16) -> bool {
    decide(port) == Decided::Blocked
}

/// Asks a gateway until it blocks, and no oftener than that takes.
fn provoke(port: u16) {
    // Two admissions and three refusals.
    wait_until("a penalty", || is_blocked(port));
}

/// Each gateway blocks by the refusals that it made itself. A lift that names both reaches both, and a
/// block keeps the end that was said, whatever a later file says.
pub fn is_of_each_gateway(server: Server) {
    let of = |place, block: &str| {
        let limit = format!(
            "rate = \"2/hour\"\npenalty = {{ after = \"3 refusals in 1h\", block = \"{block}\" }}\n"
        );
        settings(OPERATORS, &server, place, &limit)
    };
    let gateways = [0, 1].map(|place| Gateway::start_on(&of(place, "1h")));
    let [first, second] = &gateways;
    provoke(first.port);
    assert!(!is_blocked(second.port), "it has refused nothing yet");
    provoke(second.port);
    for (place, gateway) in gateways.iter().enumerate() {
        assert_eq!(gateway.metric("penalties"), 1);
        gateway.rewrite(&of(place, "2s"));
        let reload = "POST /-/reload HTTP/1.1\r\ncontent-length: 0\r\n";
        let reloaded = response(gateway.admin, reload);
        assert!(reloaded.starts_with("HTTP/1.1 200"), "{reloaded}");
        let refused = response(gateway.port, "GET / HTTP/1.1\r\n").to_ascii_lowercase();
        let retry = refused.split("retry-after: ").nth(1).unwrap();
        let seconds: u64 = retry.split("\r\n").next().unwrap().parse().unwrap();
        assert!((3_000..=3_600).contains(&seconds), "{refused}");
        let shown = response(gateway.admin, "GET /api/v1/keys/everyone HTTP/1.1\r\n");
        assert!(shown.contains("\"operator\": \"penalty\""), "{shown}");
    }
    let admin = gateways
        .each_ref()
        .map(|one| format!("127.0.0.1:{}", one.admin));
    let lifted = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "key",
            "lift",
            "everyone",
            "--reason",
            "r",
            "--admin",
            &admin.join(","),
        ])
        .env("TOLLGATE_TOKEN", "test")
        .output()
        .unwrap();
    assert!(lifted.status.success(), "{lifted:?}");
    assert!(gateways.iter().all(|one| !is_blocked(one.port)));
}

/// A bucket that is used up refills at the new rate after the first refusal: at the old one it would take an hour.
pub fn reload_reaches_exhausted_buckets(server: Server) {
    let gateway = Gateway::start_on(&settings("", &server, 0, "rate = \"1/hour\"\n"));
    let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    wait_until("a refusal", || status(&mut stream, "/") == Some(429));
    gateway.rewrite(&settings(
        "",
        &server,
        0,
        "rate = \"3600/hour\"\nburst = 1\n",
    ));
    let reloaded = response(
        gateway.admin,
        "POST /-/reload HTTP/1.1\r\ncontent-length: 0\r\n",
    );
    assert!(reloaded.starts_with("HTTP/1.1 200"), "{reloaded}");
    wait_until("an admission", || status(&mut stream, "/") == Some(200));
}
