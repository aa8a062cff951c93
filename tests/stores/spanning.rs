//! A database that spans machines, without one: PostgreSQL whose tables are views, which have no system columns, and
//! PostgreSQL behind a proxy that refuses what such databases refuse and disturbs statements and COMMITs as they do.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate_limit::{Change, Claim, Kind, Limit, Micros, Settlement};
use tollgate_store::clock::Clock;
use tollgate_store::{RemoteOptions, RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, storm};
use crate::gateways::{Gateway, at_most, example, response};
use crate::limits::{bucket, limit, terms};
use crate::servers::{Server, Spanning, StoreKind, eventually, wait_until};

const HOUR: Micros = Micros::from_secs(3600);
const SECOND: Micros = Micros::from_secs(1);

/// One after the other, so that each request is a transaction of its own.
async fn draws_charge_once(percent: u64, turns: u64) {
    let Some(server) = StoreKind::Proxy.start() else {
        return;
    };
    // Of the transactions through the worst proxy one in thirty gets through.
    let patient = |options: &mut RemoteOptions| options.answer_within = Micros::from_secs(60);
    let (store, proxy) = (server.connect_with(patient).await, server.proxy());
    let both = [
        // (Nothing is refilled meanwhile.)
        bucket("a", 0, 1, HOUR, 1000),
        limit("b", 1, &terms(Kind::SlidingLog, 1000, HOUR)),
    ];
    let claims = [0, 1].map(|place| Claim::new(&both[place], b"k", 1));
    proxy.disturb(percent);
    for turn in 0..turns {
        let drawn = store.draw(&claims).await;
        assert!(
            drawn.as_ref().is_ok_and(|draw| draw.granted),
            "turn {turn}: {drawn:?}"
        );
    }
    proxy.disturb(0);
    let [statements, made, not_made] = proxy.disturbed();
    assert!(
        statements > 0 && (percent < 10 || made + not_made > 0),
        "{statements} statements, {made} and {not_made} commits were disturbed"
    );
    for limit in &both {
        assert_eq!(
            drain(&store, limit, b"k").await,
            1000 - turns,
            "{}",
            limit.name
        );
    }
}

#[tokio::test]
async fn spanning_conflicts_of_one_in_a_hundred_statements_charge_each_request_once() {
    draws_charge_once(1, 600).await;
}

#[tokio::test]
async fn spanning_conflicts_of_one_in_ten_statements_charge_each_request_once() {
    draws_charge_once(10, 150).await;
}

#[tokio::test]
async fn spanning_conflicts_of_every_second_statement_charge_each_request_once() {
    draws_charge_once(50, 12).await;
}

#[tokio::test]
async fn spanning_conflicts_make_each_settlement_once() {
    let Some(server) = StoreKind::Proxy.start() else {
        return;
    };
    let (store, proxy) = (server.connect().await, server.proxy());
    let spend = limit("spend", 0, &terms(Kind::FixedWindow, 1_000_000, HOUR));
    let settle = |change| store.settle(&[Settlement::new(&spend, b"k", change)]);
    let charged = async || {
        let peeked = store.peek(&[Claim::new(&spend, b"k", 1)]).await;
        peeked.map(|standings| 1_000_000 - standings[0].remaining())
    };
    proxy.disturb(20);
    for turn in 1..=60 {
        settle(Change::Charge { more: 300 });
        settle(Change::Refund { units: 100 });
        if turn % 3 == 0 {
            let _ = charged().await;
        }
    }
    proxy.disturb(0);
    eventually("settlements", PATIENCE, async || {
        charged().await == Ok(60 * 200)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(charged().await, Ok(60 * 200), "none is made again");
    let counters = store.counters();
    assert_eq!(counters.corrections_dropped.load(Ordering::Relaxed), 0);
    assert_eq!(counters.corrections_unconfirmed.load(Ordering::Relaxed), 0);
}

/// Each change is made once and says what it replaced, whether a statement met the conflict or a COMMIT that was made or not.
#[test]
fn spanning_conflicts_make_each_change_of_an_override_once() {
    let Some(server) = StoreKind::Proxy.start() else {
        return;
    };
    server.proxy().disturb(20);
    crate::overrides::records_what_it_replaced(server);
}

/// Two gateways, through two proxies whose clocks are `skew` milliseconds apart; at most what a burst and the rate bring,
/// and what the rate brings in that time.
async fn storm_over(settings: &[&str], percent: u64, skew: u64) {
    let Some(server) = StoreKind::Proxy.start_with(settings) else {
        return;
    };
    let way = |sign: &str| {
        let ahead = format!("{sign}{} ms", skew / 2);
        let proxy = Spanning::ahead(server.postgres().port, &ahead);
        proxy.disturb(percent);
        proxy
    };
    let proxies = [way("-"), way("")];
    let connect = |proxy: &Spanning| {
        let url = proxy.url();
        async move { StoreKind::Proxy.connect(&url).await }
    };
    let stores = [connect(&proxies[0]).await, connect(&proxies[1]).await];
    let ten = bucket("ten", 0, 10, SECOND, 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 32, Duration::from_secs(3)).await;
    let most = at_most(10, 10, start) + 10 * skew / 1000;
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}"
    );
    assert_eq!(failed, [], "no conflict reaches a caller");
}

#[tokio::test]
async fn spanning_two_gateways_share_one_limit_exactly_through_conflicts() {
    storm_over(&[], 10, 0).await;
}

#[tokio::test]
async fn spanning_two_gateways_share_one_limit_exactly_in_a_serializable_database() {
    storm_over(&["default_transaction_isolation=serializable"], 1, 0).await;
}

#[tokio::test]
async fn spanning_nodes_whose_clocks_differ_grant_what_the_rate_brings_in_between() {
    storm_over(&[], 0, 500).await;
}

#[tokio::test]
async fn spanning_conflicts_without_end_are_answered_for_in_time() {
    let Some(server) = StoreKind::Proxy.start() else {
        return;
    };
    let (within, proxy) = (Duration::from_millis(100), server.proxy());
    let store = StoreKind::Proxy.connect_in_haste(&server.url()).await;
    let hundred = bucket("hundred", 0, 100, HOUR, 100);
    proxy.disturb(100);
    let (mut late, mut charged) = (0, 0);
    for _ in 0..50 {
        let start = Instant::now();
        let error = draw(&store, &hundred, b"k")
            .await
            .expect_err("no statement is made");
        charged += u64::from(error.may_have_charged());
        late += u32::from(start.elapsed() > within + Duration::from_millis(500));
    }
    // The machine may hold this process up now and then.
    assert!(late < 5, "{late} of 50 came late");
    proxy.disturb(0);
    crate::faults::recovers(&store, &bucket("other", 1, 100, HOUR, 100)).await;
    let left = drain(&store, &hundred, b"k").await;
    assert!(
        (100 - charged..=100).contains(&left),
        "{left} left, {charged} unknown"
    );
}

#[test]
fn spanning_database_is_named_to_operators() {
    let Some(server) = StoreKind::Proxy.start() else {
        return;
    };
    let limit = "rate = \"10/second\"\nburst = 10";
    let gateway = Gateway::start_on(&example(&server, 0, limit));
    for path in ["/readyz?verbose", "/api/v1/audit", "/api/v1/status"] {
        wait_until("the name of the database", || {
            let text = response(gateway.admin, &format!("GET {path} HTTP/1.1\r\n"));
            text.contains("YugabyteDB (PostgreSQL 15.2-YB-2.25.1.0-b0)")
        });
    }
}

/// The rows and the mark go together.
pub async fn emptied_under_drain_refills_no_bucket(server: Server, emptied: &str) {
    let (store, clock) = pinned(&server).await;
    crate::drains::no_bucket_is_refilled(&store, &clock, emptied, async || {
        server.sql(emptied);
    })
    .await;
}

/// The rows and the mark come back as they were.
pub async fn restored_under_drain_refills_no_bucket(server: Server) {
    let (store, clock) = pinned(&server).await;
    let dump = server.postgres().dump(&["--data-only"]);
    crate::drains::no_bucket_is_refilled(&store, &clock, "a dump", async || {
        heartbeats(&server, 2).await;
        let mut tries = 0;
        wait_until("restored dump", || {
            tries += 1;
            server.sql("TRUNCATE tollgate_buckets, tollgate_gateways, tollgate_overrides");
            server.postgres().try_psql_file(&dump) || tries > 1_000
        });
    })
    .await;
}

/// A store whose clock stands, after its first heartbeat.
async fn pinned(server: &Server) -> (RemoteStore, Clock) {
    let clock = crate::drains::clock();
    let pin = |options: &mut RemoteOptions| {
        (options.pinned, options.local_refusals) = (Some(clock.clone()), false);
    };
    let store = server.connect_with(pin).await;
    heartbeats(server, 1).await;
    (store, clock)
}

/// Waits for more heartbeats.
async fn heartbeats(server: &Server, more: u64) {
    let level = "SELECT coalesce(max(level), 0) FROM tollgate_buckets WHERE key = 'tollgate'";
    let beats = || server.sql(level).trim().parse::<u64>().unwrap();
    let before = beats();
    eventually("heartbeats", PATIENCE, async || beats() >= before + more).await;
}

/// On a cluster of one's own: `YUGABYTE_URL=postgres://… cargo test --test stores -- --ignored spanning_cluster`, or with
/// `COCKROACH_URL`. The database should be empty: the tables are made there and stay.
#[tokio::test]
#[ignore = "no registry has YugabyteDB or CockroachDB; ./check runs it where YUGABYTE_URL or COCKROACH_URL is set"]
async fn spanning_cluster_shares_one_limit_exactly_and_charges_once() {
    let url = ["YUGABYTE_URL", "COCKROACH_URL"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .expect("YUGABYTE_URL or COCKROACH_URL is set");
    let stores = [
        StoreKind::Postgres.connect(&url).await,
        StoreKind::Postgres.connect(&url).await,
    ];
    println!("{}", stores[0].engine());
    let key = fastrand::u64(..).to_le_bytes();
    let ten = bucket("ten", 0, 10, SECOND, 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, &key, 32, Duration::from_secs(3)).await;
    let most = at_most(10, 10, start) + 5;
    assert!(
        (10..=most).contains(&granted),
        "granted {granted}, at most {most}"
    );
    assert_eq!(failed, []);
    for kind in [
        Kind::TokenBucket,
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
    ] {
        let own = limit(&format!("{kind:?}"), 1, &terms(kind, 20, HOUR));
        let settled = |change| stores[1].settle(&[Settlement::new(&own, &key, change)]);
        assert!(draw(&stores[0], &own, &key).await.unwrap());
        settled(Change::Charge { more: 5 });
        settled(Change::Refund { units: 2 });
        becomes(&stores[1], &own, &key, 16).await;
        assert_eq!(drain(&stores[0], &own, &key).await, 16, "{kind:?}");
    }
}

async fn becomes(store: &RemoteStore, limit: &Limit, key: &[u8], left: u64) {
    eventually("settlements", PATIENCE, async || {
        let peeked = store.peek(&[Claim::new(limit, key, 1)]).await;
        peeked.is_ok_and(|standings| standings[0].remaining() == left)
    })
    .await;
}
