//! A database that spans machines, without one: PostgreSQL whose tables are views, which have no system columns, and
//! PostgreSQL behind a proxy that refuses what such databases refuse and disturbs statements and COMMITs as they do.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate_limit::{Change, Claim, Kind, Limit, Micros, Settlement};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, storm};
use crate::gateways::{Gateway, example, response, share_exactly};
use crate::kinds::StoreKind;
use crate::limits::{bucket, limit, terms};
use crate::servers::{Postgres, Spanning, eventually, wait_until};

const HOUR: Micros = Micros::from_secs(3600);
const SECOND: Micros = Micros::from_secs(1);

/// Tests of the suite that are written for any kind of store, over views.
macro_rules! over_views {
    ($($name:ident: $test:expr;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                ($test)(StoreKind::Views).await;
            }
        )*
    };
}

/// The same of whole gateways.
macro_rules! gateways_over_views {
    ($($name:ident: $test:expr;)*) => {
        $(
            #[test]
            fn $name() {
                ($test)(StoreKind::Views);
            }
        )*
    };
}

over_views! {
    views_killed_server_is_answered_for_in_time_and_found_again: crate::sql_faults::survives_a_crash;
    views_frozen_server_is_answered_for_in_time_and_found_again: crate::sql_faults::survives_a_pause;
    views_caller_who_leaves_in_the_middle_leaves_no_lock: crate::sql_faults::leaves_no_lock;
    views_full_buckets_are_swept_and_others_stay: crate::sql_faults::sweeps_full_buckets;
    views_gateways_started_together_make_the_function_without_an_error: crate::sql_faults::makes_its_tables_once;
    views_two_gateways_share_one_limit_exactly_in_a_serializable_database: crate::sql_conflicts::shares_one_limit_exactly;
    views_several_limits_in_any_order_are_all_charged_or_none: crate::sql_conflicts::charges_all_or_none;
    views_conflicts_are_tried_again_and_charge_once: crate::sql_conflicts::tries_again;
    views_deadlock_with_a_stranger_costs_time_and_nothing_else: crate::sql_conflicts::survives_a_deadlock;
    views_what_is_asked_after_a_request_was_given_up_is_kept: crate::sql_conflicts::keeps_what_is_asked_later;
    views_settlements_during_a_pause_are_made_once: crate::corrections::survive_a_pause;
    views_settlements_while_the_table_is_locked_are_made_once: crate::corrections::survive_a_lock;
    views_settlements_committed_late_are_made_once: crate::corrections::committed_late;
    views_settlements_of_a_session_killed_in_its_commit_are_made_once: crate::corrections::killed_in_commit;
    views_draw_whose_client_leaves_is_given_back: crate::unanswered::client_leaves;
    views_draw_that_was_refused_for_want_of_a_response_is_given_back: crate::unanswered::refused_in_time;
    views_first_request_after_a_close_is_decided: crate::unanswered::first_request_after_a_close;
    views_gateways_whose_clocks_differ_grant_no_more: crate::losses::clocks_that_differ_grant_no_more;
    views_many_callers_are_kept_apart: crate::many_callers::keeps_many_callers_apart;
    views_gateway_whose_clock_is_days_away_shares_windows: crate::calendars::shares_windows_with_a_clock_days_away;
    views_name_of_a_store_is_that_of_its_data_and_the_secret: crate::names::is_that_of_the_data_and_the_secret;
    views_half_open_connection_is_replaced: crate::half_open::connection_is_replaced;
    views_lease_beside_a_gateway_that_does_not: async |kind| crate::leases::lease_beside_one_that_does_not(kind, 300).await;
    views_leases_of_changing_limits_grant_no_more: crate::leases::grant_no_more_than_the_largest;
    views_lease_beside_a_limit_that_refuses_loses_no_unit: crate::leases::loses_no_unit;
}

gateways_over_views! {
    views_one_to_four_gateways_share_a_limit_exactly: crate::gateways::one_to_four_gateways_share_exactly;
    views_two_gateways_give_out_a_burst_once: crate::gateways::two_gateways_give_out_a_burst_once;
    views_reset_reaches_the_other_gateway: crate::resets::reaches_the_others;
    views_call_under_way_at_a_reset: crate::resets::call_under_way_on;
    views_gateways_that_decide_for_others_admit_one_burst: crate::deciding::admit_one_burst_together;
    views_override_reaches_the_other_gateway: |kind| crate::overrides::reaches_the_others(kind, "");
    views_override_stays_while_the_store_is_away: crate::overrides::stays_while_the_store_is_away;
    views_override_is_recorded_once: crate::overrides::is_recorded_once;
}

#[tokio::test]
async fn views_decide_as_the_pure_core() {
    if let Some(server) = StoreKind::Views.start() {
        crate::parity::decides_as_the_pure_core(&server, 300).await;
    }
}

/// A server whose settings and name are those of a database that spans machines, with tables that the gateway makes.
fn behind_a_proxy(settings: &[&str]) -> Option<(Postgres, Spanning)> {
    Postgres::available().then(|| {
        let server = Postgres::start_with(&[&["fsync=off"], settings].concat());
        let proxy = Spanning::to(server.port);
        (server, proxy)
    })
}

async fn connect(proxy: &Spanning) -> RemoteStore {
    StoreKind::Postgres.connect(&proxy.url()).await
}

/// One after the other, so that each request is a transaction of its own.
async fn draws_charge_once(percent: u64, turns: u64) {
    let Some((_server, proxy)) = behind_a_proxy(&[]) else {
        return;
    };
    let store = connect(&proxy).await;
    let both = [
        // (Nothing is refilled meanwhile.)
        bucket("a", 0, 1, HOUR, 1000),
        limit("b", 1, &terms(Kind::SlidingLog, 1000, HOUR)),
    ];
    let claims = [0, 1].map(|place| Claim::new(&both[place], b"k", 1));
    proxy.disturb(percent);
    for turn in 0..turns {
        let drawn = store.draw(&claims).await;
        assert!(drawn.is_ok_and(|draw| draw.granted), "turn {turn}");
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
    let Some((_server, proxy)) = behind_a_proxy(&[]) else {
        return;
    };
    let store = connect(&proxy).await;
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

/// Two gateways whose nodes' clocks are `skew` apart; at most what a burst and the rate bring, and what the rate brings
/// in that time.
async fn storm_over(proxies: [&Spanning; 2], percent: u64, skew: Duration) {
    let stores = [connect(proxies[0]).await, connect(proxies[1]).await];
    for proxy in proxies {
        proxy.disturb(percent);
    }
    let ten = bucket("ten", 0, 10, SECOND, 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 32, Duration::from_secs(3)).await;
    let passed = u64::try_from((start.elapsed() + skew).as_millis()).unwrap();
    let most = 10 + 10 * passed / 1000 + 1;
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}"
    );
    assert_eq!(failed, [], "no conflict reaches a caller");
}

#[tokio::test]
async fn spanning_two_gateways_share_one_limit_exactly_through_conflicts() {
    let Some((server, one)) = behind_a_proxy(&[]) else {
        return;
    };
    let other = Spanning::to(server.port);
    storm_over([&one, &other], 10, Duration::ZERO).await;
}

#[tokio::test]
async fn spanning_two_gateways_share_one_limit_exactly_in_a_serializable_database() {
    let Some((server, one)) = behind_a_proxy(&["default_transaction_isolation=serializable"])
    else {
        return;
    };
    let other = Spanning::to(server.port);
    storm_over([&one, &other], 1, Duration::ZERO).await;
}

#[tokio::test]
async fn spanning_nodes_whose_clocks_differ_grant_what_the_rate_brings_in_between() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let (behind, ahead) = (
        Spanning::ahead(server.port, "-250 ms"),
        Spanning::ahead(server.port, "250 ms"),
    );
    storm_over([&behind, &ahead], 0, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn spanning_conflicts_without_end_are_answered_for_in_time() {
    let Some((_server, proxy)) = behind_a_proxy(&[]) else {
        return;
    };
    let within = Duration::from_millis(100);
    let store = StoreKind::Postgres.connect_in_haste(&proxy.url()).await;
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
fn spanning_two_and_four_gateways_share_a_limit_exactly_through_conflicts() {
    for count in [2, 4] {
        let Some((_server, proxy)) = behind_a_proxy(&[]) else {
            return;
        };
        proxy.disturb(2);
        let limit = "rate = \"10/second\"\nburst = 10";
        share_exactly(&example("postgres", &proxy.url(), limit), count);
    }
}

#[test]
fn views_two_and_four_gateways_share_a_limit_exactly_in_a_serializable_database() {
    for count in [2, 4] {
        let settings = ["default_transaction_isolation=serializable"];
        let Some(server) = StoreKind::Views.start_with(&settings) else {
            return;
        };
        let limit = "rate = \"10/second\"\nburst = 10";
        share_exactly(&example("postgres", &server.url(), limit), count);
    }
}

#[test]
fn spanning_database_is_named_to_operators() {
    let Some((_server, proxy)) = behind_a_proxy(&[]) else {
        return;
    };
    let limit = "rate = \"10/second\"\nburst = 10";
    let gateway = Gateway::start_on(&example("postgres", &proxy.url(), limit));
    for path in ["/readyz?verbose", "/api/v1/audit", "/api/v1/status"] {
        wait_until("the name of the database", || {
            let text = response(gateway.admin, &format!("GET {path} HTTP/1.1\r\n"));
            text.contains("YugabyteDB (PostgreSQL 15.2-YB-2.25.1.0-b0)")
        });
    }
}

/// The rows and the mark go together, or come back as they were.
#[tokio::test]
async fn views_emptied_or_restored_under_drain_refill_no_bucket() {
    let tables = "plain_buckets, plain_gateways";
    let level = "SELECT coalesce(max(level), 0) FROM tollgate_buckets WHERE key = 'tollgate'";
    for lost in [
        "TRUNCATE plain_buckets",
        "DELETE FROM tollgate_buckets",
        "dump",
    ] {
        let Some(server) = StoreKind::Views.start() else {
            return;
        };
        let clock = crate::drains::clock();
        let store = server
            .connect_with(|options| {
                options.pinned = Some(clock.clone());
                options.local_refusals = false;
            })
            .await;
        let beats = || server.sql(level).trim().parse::<u64>().unwrap();
        let raised_by = async |more| {
            let before = beats();
            eventually("heartbeats", PATIENCE, async || beats() >= before + more).await;
        };
        raised_by(1).await;
        let crate::kinds::Server::Views(postgres) = &server else {
            unreachable!("views were made")
        };
        let dump = postgres.dump(&["--data-only", "--table=plain_*"]);
        crate::drains::no_bucket_is_refilled(&store, &clock, lost, async || {
            if lost != "dump" {
                server.sql(lost);
                return;
            }
            raised_by(2).await;
            let mut tries = 0;
            wait_until("restored dump", || {
                tries += 1;
                server.sql(&format!("TRUNCATE {tables}, plain_overrides"));
                postgres.try_psql_file(&dump) || tries > 1_000
            });
        })
        .await;
    }
}

#[tokio::test]
async fn views_emptied_under_load_refill_no_bucket() {
    let Some(server) = StoreKind::Views.start() else {
        return;
    };
    let stores = [server.connect().await, server.connect().await];
    crate::drains::lost_under_load(stores, || server.clear()).await;
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
    let passed = u64::try_from((start.elapsed() + Duration::from_millis(500)).as_millis()).unwrap();
    let most = 10 + 10 * passed / 1000 + 1;
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
