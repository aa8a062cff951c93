//! Hostile use of overrides: each gets a clear no, and nothing grows.

use std::time::Duration;

use serde_json::json;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, change_request, eventually};
use crate::rls::stores::each_server;

/// The SHA-256 of `test`, and a limit of which any key is taken.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n";

fn send(connection: &mut Connection, method: &str, path: &str, body: &str) -> Answer {
    connection.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer test\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer(method)
}

fn block(connection: &mut Connection, key: &str) -> Answer {
    let body = json!({ "reason": "r", "block": true, "for": "1h" }).to_string();
    send(
        connection,
        "PUT",
        &format!("/api/v1/keys/tenant/{key}/override"),
        &body,
    )
}

/// Overrides in thousands: beyond the bound each is refused by its number, none that is in force is lost, and the list does
/// not grow. The first is still replaced and lifted, which makes room for one.
#[test]
fn overrides_beyond_the_bound_are_refused_by_its_number_and_displace_none() {
    let gateway = Gateway::start(CONFIG);
    let mut connection = Connection::open(gateway.admin());
    for number in 0..1_000 {
        let set = block(&mut connection, &format!("key-{number}"));
        assert_eq!(set.status, 200, "{number}: {}", set.text());
    }
    for number in 1_000..1_500 {
        let refused = block(&mut connection, &format!("key-{number}"));
        assert_eq!(refused.status, 409, "{number}: {}", refused.text());
        assert!(
            refused
                .text()
                .contains("1000 overrides are in force already"),
            "{}",
            refused.text()
        );
    }
    let listed = gateway.admin_get("/api/v1/overrides").json();
    assert_eq!(listed["overrides"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(listed["most"], 1_000);
    let status = |key: &str| gateway.request("GET", "/", &[("x-api-key", key)]).status;
    assert_eq!([status("key-0"), status("key-999")], [429, 429]);
    assert_eq!(status("key-1000"), 200);
    assert_eq!(block(&mut connection, "key-0").status, 200, "replaced");
    let lift = json!({ "reason": "r" }).to_string();
    let lifted = send(
        &mut connection,
        "DELETE",
        "/api/v1/keys/tenant/key-0/override",
        &lift,
    );
    assert_eq!(lifted.status, 200, "{}", lifted.text());
    assert_eq!(
        block(&mut connection, "key-1000").status,
        200,
        "there is room"
    );
}

/// An operator's token in the wrong hands: overrides of ever new keys, over several connections at once and without a pause.
/// Each beyond the bound is refused with its number; meanwhile requests are decided and the caller is shown as ever, and
/// neither the list nor the audit grows.
#[test]
fn overrides_in_a_flood_are_each_refused_and_nothing_grows() {
    const EACH: usize = 5_000;
    const CONNECTIONS: usize = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.log");
    let listen = "listen = \"127.0.0.1:0\"\n";
    let config = CONFIG.replacen(
        listen,
        &format!("{listen}audit = '{}'\n", file.display()),
        1,
    );
    let gateway = Gateway::start(&config);
    let mut connection = Connection::open(gateway.admin());
    for number in 0..1_000 {
        let set = block(&mut connection, &format!("key-{number}"));
        assert_eq!(set.status, 200, "{number}: {}", set.text());
    }
    let lines = || {
        std::fs::read_to_string(&file)
            .expect("the audit")
            .lines()
            .count()
    };
    assert_eq!(lines(), 1_000);
    let flood = |who: usize| {
        let mut connection = Connection::open(gateway.admin());
        let body = json!({ "reason": "r", "block": true, "for": "1h" });
        for batch in 0..EACH / 100 {
            let put = |number: usize| {
                let path = format!("tenant/flood-{who}-{batch}-{number}/override");
                change_request("PUT", &path, &body)
            };
            connection.send((0..100).map(put).collect::<String>());
            for number in 0..100 {
                let refused = connection.answer("PUT");
                let words = refused.text();
                assert_eq!(refused.status, 409, "{batch} {number}: {words}");
                assert!(
                    words.contains("1000 overrides are in force already"),
                    "{words}"
                );
            }
        }
    };
    let status = |key: &str| gateway.request("GET", "/", &[("x-api-key", key)]).status;
    std::thread::scope(|scope| {
        let flood = &flood;
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|who| scope.spawn(move || flood(who)))
            .collect();
        let mut rounds = 0;
        while rounds < 3 || all.iter().any(|one| !one.is_finished()) {
            rounds += 1;
            assert_eq!([status("key-0"), status("key-999")], [429, 429]);
            assert_eq!(status(&format!("good-{rounds}")), 200);
            let shown = gateway.admin_get("/api/v1/keys/tenant/key-7");
            assert_eq!(shown.json()["buckets"][0]["override"]["block"], true);
        }
    });
    assert_eq!(lines(), 1_000, "what is refused is no change");
    let entries = gateway.admin_get("/api/v1/audit").json()["entries"].clone();
    assert_eq!(entries.as_array().map(Vec::len), Some(1_000));
    let listed = gateway.admin_get("/api/v1/overrides").json();
    assert_eq!(listed["overrides"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(status("flood-0-0-0"), 200, "no override");
}

#[test]
fn override_with_a_body_or_a_reason_of_an_attacker_is_refused() {
    let gateway = Gateway::start(CONFIG);
    let path = "/api/v1/keys/tenant/k/override";
    let with = |reason: &str| json!({ "reason": reason, "block": true, "for": "1h" }).to_string();
    for (body, words) in [
        (with("a\nforged line"), "control characters"),
        (with("\u{1b}[2J"), "control characters"),
        (with("a\u{85}b"), "control characters"),
        (with(&"x".repeat(201)), "1 to 200 characters"),
        (with(&"x".repeat(64 << 10)), "the body"),
        (with("r").replace("}", ",\"more\":1}"), "unknown field"),
        ("[".repeat(10_000), "the body"),
    ] {
        let answer = send(&mut Connection::open(gateway.admin()), "PUT", path, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    assert_eq!(
        gateway.admin_get("/api/v1/overrides").json()["overrides"],
        json!([])
    );
    assert_eq!(
        gateway.admin_get("/api/v1/audit").json()["entries"],
        json!([])
    );
}

/// An operator's token in the wrong hands: beyond the bound of the audit every change is refused with the wait, none is made
/// without a record, and one is made as soon as its line is due. Reads go on.
#[test]
fn audit_that_is_full_refuses_every_change_until_the_next_line_is_due() {
    let gateway = Gateway::start(CONFIG);
    let mut connection = Connection::open(gateway.admin());
    let reset = change_request("POST", "tenant/k/reset", &json!({ "reason": "r" }));
    for _ in 0..100 {
        connection.send(reset.repeat(100));
        for _ in 0..100 {
            let done = connection.answer("POST");
            assert_eq!(done.status, 200, "{}", done.text());
        }
    }
    for _ in 0..2 {
        connection.send(&reset);
        let refused = connection.answer("POST");
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert!(
            refused.text().contains("the next one in 1 s"),
            "{}",
            refused.text()
        );
        assert_eq!(refused.header("retry-after"), Some("1"));
        let refused = block(&mut connection, "k");
        assert_eq!(refused.status, 429, "{}", refused.text());
    }
    let listed = gateway.admin_get("/api/v1/overrides").json();
    assert_eq!(listed["overrides"], json!([]));
    let kept = gateway.admin_get("/api/v1/audit").json()["entries"].clone();
    assert_eq!(kept.as_array().map(Vec::len), Some(1_000));
    assert_eq!(
        gateway.request("GET", "/", &[("x-api-key", "k")]).status,
        200
    );
    gateway.advance(Duration::from_secs(1));
    assert_eq!(block(&mut connection, "k").status, 200);
    assert_eq!(block(&mut connection, "k").status, 429);
    assert_eq!(
        gateway.request("GET", "/", &[("x-api-key", "k")]).status,
        429
    );
}

/// Changes of one gateway are made one after the other in the store: none is refused because of another.
#[test]
fn overrides_at_the_same_time_on_one_gateway_are_all_made() {
    each_server(|shared| {
        let gateway = Gateway::start(&format!("{CONFIG}{}", shared.table));
        let list = || gateway.admin_get("/api/v1/overrides").json()["overrides"].clone();
        eventually("the store keeps overrides", || {
            block(&mut Connection::open(gateway.admin()), "first").status == 200
        });
        std::thread::scope(|scope| {
            for number in 0..40 {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut connection = Connection::open(gateway.admin());
                    let set = block(&mut connection, &format!("key-{number}"));
                    assert_eq!(set.status, 200, "{number}: {}", set.text());
                });
            }
        });
        assert_eq!(list().as_array().map(Vec::len), Some(41));
    });
}

/// The bound is of overrides in force: those that have ended make room for others.
#[test]
fn overrides_that_have_ended_make_room() {
    let gateway = Gateway::start(CONFIG);
    let mut connection = Connection::open(gateway.admin());
    let short = json!({ "reason": "r", "block": true, "for": "1m" }).to_string();
    for number in 0..1_000 {
        let path = format!("/api/v1/keys/tenant/key-{number}/override");
        assert_eq!(send(&mut connection, "PUT", &path, &short).status, 200);
    }
    assert_eq!(block(&mut connection, "more").status, 409);
    gateway.advance(Duration::from_secs(60));
    for number in 0..1_000 {
        let set = block(&mut connection, &format!("more-{number}"));
        assert_eq!(set.status, 200, "{number}: {}", set.text());
    }
    assert_eq!(block(&mut connection, "more").status, 409);
    let status = |key: &str| gateway.request("GET", "/", &[("x-api-key", key)]).status;
    assert_eq!([status("key-0"), status("more-0")], [200, 429]);
}
