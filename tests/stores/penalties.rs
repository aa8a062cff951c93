//! A penalty that one gateway imposes is obeyed by the others on the same store, until it ends or is lifted. A reload that
//! raises a rate reaches buckets that are used up.

use std::net::TcpStream;
use std::time::Instant;

use serde_json::json;

use crate::gateways::{Gateway, change, response, status};
use crate::servers::{Maria, Postgres, Redis, available, wait_until};

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

fn settings(admin: &str, kind: &str, url: &str, limit: &str) -> String {
    format!(
        "{admin}[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"10s\"\n\
         key_secret_file = \"secret\"\n\
         [limits.total]\nper = \"everyone\"\n{limit}\
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

fn lift(admin: u16) {
    let body = json!({ "reason": "a test" });
    let mut late = false;
    wait_until("the lift", || {
        let told = change(admin, "DELETE", "override", &body);
        match told.split(' ').nth(1) {
            Some("200") => true,
            // The one that was not confirmed in time had its effect.
            Some("404") if late => true,
            Some("503") => {
                late = true;
                false
            }
            _ => panic!("{told}"),
        }
    });
}

/// The second gateway has no operators; neither refuses by a penalty before one is provoked.
fn is_obeyed_by_all(kind: &str, url: &str) {
    let of = |block: &str| {
        format!(
            "rate = \"2/hour\"\npenalty = {{ after = \"3 refusals in 1h\", block = \"{block}\" }}\n"
        )
    };
    let first = Gateway::start_on(&settings(OPERATORS, kind, url, &of("1h")));
    let second = Gateway::start_on(&settings("", kind, url, &of("1h")));
    assert!(!is_blocked(second.port));
    provoke(first.port);
    let since = Instant::now();
    wait_until("the penalty on the other gateway", || {
        is_blocked(second.port)
    });
    println!(
        "a penalty on the other gateway: after {:?}",
        since.elapsed()
    );
    let refused = response(second.port, "GET / HTTP/1.1\r\n").to_ascii_lowercase();
    let retry = refused.split("retry-after: ").nth(1).unwrap();
    let seconds: u64 = retry.split("\r\n").next().unwrap().parse().unwrap();
    assert!((3_300..=3_600).contains(&seconds), "{refused}");
    assert_eq!(first.metric("penalties"), 1);
    assert_eq!(second.metric("penalties"), 0);
    let shown = response(first.admin, "GET /api/v1/keys/everyone HTTP/1.1\r\n");
    assert!(shown.contains("\"operator\": \"penalty\""), "{shown}");
    let since = Instant::now();
    lift(first.admin);
    assert!(!is_blocked(first.port));
    wait_until("its end on the other gateway", || !is_blocked(second.port));
    println!("its end on the other gateway: after {:?}", since.elapsed());
    // One that ends by itself, by the store's clock.
    drop((first, second));
    let [first, second] = [(); 2].map(|()| Gateway::start_on(&settings("", kind, url, &of("2s"))));
    let since = Instant::now();
    provoke(second.port);
    wait_until("the end of a penalty", || !is_blocked(second.port));
    assert!(
        since.elapsed().as_secs() >= 2,
        "it lasts as long as it says"
    );
    drop(first);
}

#[test]
fn penalty_on_redis_is_obeyed_by_the_other_gateway() {
    if available("redis-server") {
        is_obeyed_by_all("redis", &Redis::start().url());
    }
}

#[test]
fn penalty_on_postgres_is_obeyed_by_the_other_gateway() {
    if Postgres::available() {
        is_obeyed_by_all("postgres", &Postgres::start_with(&[]).url());
    }
}

#[test]
fn penalty_on_mysql_is_obeyed_by_the_other_gateway() {
    if Maria::available() {
        is_obeyed_by_all("mysql", &Maria::start().url());
    }
}

/// A gateway that is reloaded with a shorter block refuses no longer than it says.
fn reload_shortens_blocks(kind: &str, url: &str) {
    let of = |block: &str| {
        format!(
            "rate = \"2/second\"\npenalty = {{ after = \"3 refusals in 1h\", block = \"{block}\" }}\n"
        )
    };
    let first = Gateway::start_on(&settings("", kind, url, &of("1h")));
    let second = Gateway::start_on(&settings("", kind, url, &of("1h")));
    provoke(first.port);
    second.rewrite(&settings("", kind, url, &of("2s")));
    let reloaded = response(
        second.admin,
        "POST /-/reload HTTP/1.1\r\ncontent-length: 0\r\n",
    );
    assert!(reloaded.starts_with("HTTP/1.1 200"), "{reloaded}");
    assert!(is_blocked(second.port), "by the other gateway");
    wait_until("the end of a shorter block", || !is_blocked(second.port));
}

#[test]
fn reload_on_redis_shortens_the_blocks_of_penalties() {
    if available("redis-server") {
        reload_shortens_blocks("redis", &Redis::start().url());
    }
}

#[test]
fn reload_on_postgres_shortens_the_blocks_of_penalties() {
    if Postgres::available() {
        reload_shortens_blocks("postgres", &Postgres::start_with(&[]).url());
    }
}

/// A bucket that is used up refills at the new rate after the first refusal: at the old one it would take an hour.
fn reload_reaches_exhausted_buckets(kind: &str, url: &str) {
    let gateway = Gateway::start_on(&settings("", kind, url, "rate = \"1/hour\"\n"));
    let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    wait_until("a refusal", || status(&mut stream, "/") == Some(429));
    gateway.rewrite(&settings(
        "",
        kind,
        url,
        "rate = \"3600/hour\"\nburst = 1\n",
    ));
    let reloaded = response(
        gateway.admin,
        "POST /-/reload HTTP/1.1\r\ncontent-length: 0\r\n",
    );
    assert!(reloaded.starts_with("HTTP/1.1 200"), "{reloaded}");
    wait_until("an admission", || status(&mut stream, "/") == Some(200));
}

#[test]
fn reload_on_redis_raises_the_rate_of_buckets_that_are_used_up() {
    if available("redis-server") {
        reload_reaches_exhausted_buckets("redis", &Redis::start().url());
    }
}

#[test]
fn reload_on_postgres_raises_the_rate_of_buckets_that_are_used_up() {
    if Postgres::available() {
        reload_reaches_exhausted_buckets("postgres", &Postgres::start_with(&[]).url());
    }
}

#[test]
fn reload_on_mysql_raises_the_rate_of_buckets_that_are_used_up() {
    if Maria::available() {
        reload_reaches_exhausted_buckets("mysql", &Maria::start().url());
    }
}

/// A store that is silent for long delays a response of the admin listener by two seconds at most, however often it is asked
/// for that response. What is not known then is said to be unknown.
#[test]
fn penalty_of_a_silent_store_is_shown_as_unknown_after_two_seconds() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let limit =
        "rate = \"2/minute\"\npenalty = { after = \"3 refusals in 1m\", block = \"10m\" }\n";
    let gateway = Gateway::start_on(&settings(OPERATORS, "redis", &server.url(), limit));
    assert_eq!(decide(gateway.port), Decided::Admitted);
    let shown = || response(gateway.admin, "GET /api/v1/keys/everyone HTTP/1.1\r\n");
    assert!(!shown().contains("penalty_unknown"), "{}", shown());
    server.process().signal("-STOP");
    let since = Instant::now();
    let silent = shown();
    let took = since.elapsed();
    server.process().signal("-CONT");
    assert!(silent.starts_with("HTTP/1.1 200"), "{silent}");
    assert!(
        silent.contains("\"penalty_unknown\": \"the store"),
        "{silent}"
    );
    assert!(silent.contains("\"override\": null"), "{silent}");
    // One call alone may take ten seconds (`answer_within`).
    assert!(took.as_secs() < 8, "{took:?}");
    wait_until("a penalty that is known", || {
        !shown().contains("penalty_unknown")
    });
}
