//! A reset on one gateway reaches the others on the same store.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::gateways::{Gateway, change, response, status};
use crate::kinds::{Server, StoreKind};
use crate::servers::{Postgres, wait_until};

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

fn settings(server: &Server) -> String {
    let (kind, url) = (server.name(), server.url());
    format!(
        "{OPERATORS}[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"900ms\"\n\
         key_secret_file = \"secret\"\n\
         [limits.total]\nper = \"everyone\"\nrate = \"3/hour\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
    )
}

/// Asks a gateway until it refuses; returns how many it granted.
fn exhaust(port: u16) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut granted = 0;
    while status(&mut stream, "/") == Some(200) {
        granted += 1;
    }
    granted
}

fn reset(admin: u16) -> String {
    change(admin, "POST", "reset", &json!({ "reason": "a test" }))
}

/// Every gateway has refused and knows that the bucket is exhausted; a reset on the first one makes the second admit, and
/// all of them together grant the burst once more and no unit beyond it.
fn reaches_the_others(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let settings = &settings(&server);
    let gateways = [Gateway::start_on(settings), Gateway::start_on(settings)];
    assert_eq!(exhaust(gateways[0].port), 3);
    assert_eq!(exhaust(gateways[1].port), 0);
    let done = reset(gateways[0].admin);
    assert!(done.starts_with("HTTP/1.1 200"), "{done}");
    assert!(done.contains("\"store\": \"shared\""), "{done}");
    let mut granted = 0;
    wait_until("an admission by the other gateway", || {
        granted = exhaust(gateways[1].port);
        granted > 0
    });
    assert_eq!(granted + exhaust(gateways[0].port), 3);
}

#[test]
fn reset_on_redis_reaches_the_other_gateway() {
    reaches_the_others(StoreKind::Redis);
}

#[test]
fn reset_on_postgres_reaches_the_other_gateway() {
    reaches_the_others(StoreKind::Postgres);
}

#[test]
fn reset_on_mysql_reaches_the_other_gateway() {
    reaches_the_others(StoreKind::Mysql);
}

#[test]
fn reset_without_a_store_changes_nothing_and_says_so() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let gateway = Gateway::start_on(&settings(&server));
    assert_eq!(exhaust(gateway.port), 3);
    drop(server);
    wait_until("a gateway that misses its store", || {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
        status(&mut stream, "/") == Some(503)
    });
    let done = reset(gateway.admin);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert!(done.contains("the store"), "{done}");
}

/// The change that several gateways are asked for.
fn together() -> Value {
    json!({ "reason": "a test", "change": "c1" })
}

fn postgres(server: &Server) -> &Postgres {
    match server {
        Server::Postgres(server) => server,
        other => panic!("{other:?}"),
    }
}

/// Two gateways cannot agree on which of them fills a bucket, so none does. One that is asked alone fills it.
#[test]
fn reset_on_postgres_without_the_table_of_overrides_is_made_by_one_gateway_alone() {
    let Some(server) = StoreKind::Postgres.start() else {
        return;
    };
    let settings = settings(&server);
    drop(Gateway::start_on(&settings));
    postgres(&server).psql("postgres", "DROP TABLE tollgate_overrides");
    let settings = settings.replace("[limits.total]", "create = false\n[limits.total]");
    let gateways = [(); 2].map(|()| Gateway::start_on(&settings));
    assert_eq!(exhaust(gateways[0].port), 3);
    for gateway in &gateways {
        let done = change(gateway.admin, "POST", "reset", &together());
        assert!(done.starts_with("HTTP/1.1 503"), "{done}");
        assert!(done.contains("the table tollgate_overrides"), "{done}");
    }
    // This one knows nothing of the bucket, so it asks the store.
    assert_eq!(exhaust(gateways[1].port), 0);
    let done = reset(gateways[0].admin);
    assert!(done.starts_with("HTTP/1.1 200"), "{done}");
    assert!(done.contains("\"remaining\": 3"), "{done}");
    assert_eq!(
        exhaust(gateways[0].port),
        3,
        "it forgets that the bucket was empty"
    );
}

/// The bucket can be filled although the other gateways cannot be told of it. Whether a gateway has taken a change on is
/// not known.
#[test]
fn reset_on_postgres_whose_overrides_are_locked_is_seen_or_left_alone() {
    let Some(server) = StoreKind::Postgres.start() else {
        return;
    };
    let gateway = Gateway::start_on(&settings(&server));
    assert_eq!(exhaust(gateway.port), 3);
    let postgres = postgres(&server);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lock = "LOCK TABLE tollgate_overrides IN EXCLUSIVE MODE; SELECT pg_sleep(60)";
            postgres.try_psql("postgres", lock)
        });
        wait_until("a lock", || {
            let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND relation = 'tollgate_overrides'::regclass";
            postgres.psql("postgres", locks).trim() == "1"
        });
        let alone = reset(gateway.admin);
        // A connection that the lock has cost is made anew first: until then nothing is sent.
        wait_until("a change that may have been made", || {
            let both = change(gateway.admin, "POST", "reset", &together());
            assert!(both.starts_with("HTTP/1.1 503"), "{both}");
            both.contains("may have been made")
        });
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE relation = 'tollgate_overrides'::regclass AND mode = 'ExclusiveLock'";
        postgres.psql("postgres", end);
        assert!(alone.starts_with("HTTP/1.1 200"), "{alone}");
    });
    // The others may find it taken on: one line of the audit must tell of it.
    let audit = response(gateway.admin, "GET /api/v1/audit HTTP/1.1\r\n");
    let outcomes = audit.lines().filter(|line| line.contains("\"outcome\""));
    let outcomes: Vec<&str> = outcomes.map(str::trim).collect();
    assert_eq!(
        outcomes,
        ["\"outcome\": \"unconfirmed\",", "\"outcome\": \"made\","],
        "the newest first: {audit}"
    );
}

/// A change of limits in the process is made also if the store does not respond for the limits that are written first.
#[test]
fn changes_without_a_store_are_made_for_the_limits_in_the_process() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let own = "[limits.zone]\nper = \"everyone\"\nrate = \"3/hour\"\nstore = \"local\"\n\
               [[routes]]\nmatch = \"/own\"\nupstream = \"builtin:echo\"\nlimits = [\"zone\"]\n";
    let gateway = Gateway::start_on(&(settings(&server) + own));
    let own = || {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
        status(&mut stream, "/own")
    };
    assert_eq!([(); 4].map(|()| own()), [200, 200, 200, 429].map(Some));
    drop(server);
    let done = reset(gateway.admin);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert_eq!(own(), Some(200));
    let block = json!({ "reason": "a test", "block": true, "for": "1h" });
    let done = change(gateway.admin, "PUT", "override", &block);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert_eq!(own(), Some(429));
}
