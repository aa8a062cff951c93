//! Rows of PostgreSQL that another program wrote: a limit of another algorithm under the same name, a later gateway.

use tollgate_limit::{Claim, Kind, Limit, Micros, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::{Store, StoreError};

use crate::faults::draw;
use crate::limits::{bucket, limit, terms};
use crate::servers::StoreKind;
use crate::servers::{Postgres, wait_until};

const HOUR: Micros = Micros::from_secs(3600);
/// Turns every plain row of a token bucket into one of which three units are leased for a long time.
const LEASE: &str = "UPDATE tollgate_buckets
                     SET kind = 9, a = NULL, b = NULL, c = NULL, level = NULL, at = NULL,
                         more = ARRAY[a, b, c, level - 3 * b, at, 3, at + 2200000]
                     WHERE octet_length(key) = 16";
const ROWS: &str = "SELECT kind, epoch, a, b, c, level, at, more FROM tollgate_buckets
                    WHERE octet_length(key) = 16";

/// A fixed window of that name.
fn window(name: &str) -> std::sync::Arc<Limit> {
    limit(name, 0, &terms(Kind::FixedWindow, 1000, HOUR))
}

#[tokio::test]
async fn a_row_of_an_unknown_kind_is_refused_and_never_reset() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let one = bucket("one", 0, 10, HOUR, 10);
    let window = window("window");
    let rows = [
        "kind = 10, more = ARRAY[1, 2, 3]",
        "kind = 0",
        // Of a known one, with numbers missing, and with such as no limit has.
        "kind = 9, more = ARRAY[1, 2]",
        "kind = 9, more = ARRAY[1, NULL]",
        "kind = 3, a = -1",
        "level = NULL",
        "at = NULL",
        "a = NULL",
        "c = NULL",
        "kind = 3, level = NULL",
        "kind = 3, at = NULL",
    ];
    for row in rows {
        let store = StoreKind::Postgres.connect(&server.url()).await;
        assert!(draw(&store, &one, b"k").await.unwrap());
        assert!(draw(&store, &window, b"k").await.unwrap());
        server.psql(
            "postgres",
            &format!("UPDATE tollgate_buckets SET {row} WHERE octet_length(key) = 16"),
        );
        let before = server.psql("postgres", ROWS);
        store.forget_bounds();
        let limit = if row.starts_with("kind = 3") {
            &window
        } else {
            &one
        };
        // Alone, and beside another limit.
        let claims = [&one, &window].map(|limit| Claim::new(limit, b"k", 1));
        let claims = if row.starts_with("kind = 3") {
            [claims[1], claims[0]]
        } else {
            claims
        };
        for drawn in [
            draw(&store, limit, b"k").await,
            store.draw(&claims).await.map(|draw| draw.granted),
        ] {
            assert!(
                matches!(drawn, Err(StoreError::Corrupt(_))),
                "{row}: {drawn:?}"
            );
        }
        assert_eq!(server.psql("postgres", ROWS), before, "{row}");
        server.psql("postgres", "TRUNCATE tollgate_buckets");
    }
}

/// Requests that are in one call with one whose bucket cannot be read.
#[tokio::test]
async fn a_row_that_cannot_be_read_fails_only_those_who_need_it() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = StoreKind::Postgres.connect(&server.url()).await;
    let one = bucket("one", 0, 1000, HOUR, 1000);
    assert!(draw(&store, &one, b"bad").await.unwrap());
    for row in ["kind = 10, more = ARRAY[1, 2, 3]", "kind = 1, level = NULL"] {
        server.psql(
            "postgres",
            &format!("UPDATE tollgate_buckets SET {row} WHERE octet_length(key) = 16"),
        );
        let bad = server
            .psql(
                "postgres",
                "SELECT key FROM tollgate_buckets WHERE octet_length(key) = 16",
            )
            .trim()
            .to_owned();
        let kept = format!("SELECT row FROM tollgate_buckets AS row WHERE key = '{bad}'");
        let before = server.psql("postgres", &kept);
        for round in 0..20_u8 {
            let keys: Vec<[u8; 2]> = (0..8).map(|key| [round, key]).collect();
            let good = keys.iter().map(|key| draw(&store, &one, key));
            let mut good: Vec<_> = good.map(Box::pin).collect();
            let mut bad = Box::pin(draw(&store, &one, b"bad"));
            // All are asked before any is answered.
            std::future::poll_fn(|context| {
                for (place, asked) in good.iter_mut().enumerate() {
                    assert!(asked.as_mut().poll(context).is_pending());
                    if place == 3 {
                        assert!(bad.as_mut().poll(context).is_pending());
                    }
                }
                std::task::Poll::Ready(())
            })
            .await;
            for asked in good {
                assert!(asked.await.expect("it does not need that row"), "{row}");
            }
            assert!(matches!(bad.await, Err(StoreError::Corrupt(_))), "{row}");
        }
        assert_eq!(server.psql("postgres", &kept), before, "{row}");
        server.psql(
            "postgres",
            &format!("DELETE FROM tollgate_buckets WHERE key <> '{bad}'"),
        );
    }
    assert!(store.health().up, "the server serves all other keys");
    assert!(
        store.health().last_error.contains("cannot be read"),
        "{:?}",
        store.health()
    );
}

/// A bucket of which another gateway holds parts.
#[tokio::test]
async fn the_function_is_not_asked_in_vain_for_every_request_of_a_leased_bucket() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off", "track_functions=all"]);
    let start = Timestamp::from_micros(1_760_000_000_000_000);
    let clock = Clock::manual(start);
    let store = StoreKind::Postgres
        .connect_with(&server.url(), |options| options.clock = clock.clone())
        .await;
    let one = bucket("one", 0, 1000, HOUR, 1000);
    assert!(draw(&store, &one, b"k").await.unwrap());
    server.psql("postgres", LEASE);
    let draws = async |count: u32| {
        for _ in 0..count {
            assert!(draw(&store, &one, b"k").await.unwrap());
        }
    };
    draws(20).await;
    // Where nothing more is heard of the bucket it is asked about again.
    clock.advance(Micros(249_999));
    draws(1).await;
    clock.advance(Micros(250_000));
    draws(20).await;
    // And of one whose lease has ended, at once.
    server.psql(
        "postgres",
        "UPDATE tollgate_buckets SET kind = NULL, more = NULL WHERE octet_length(key) = 16",
    );
    draws(1).await;
    draws(10).await;
    drop(store);
    // A session tells what it counted when it ends.
    wait_until("end of the session", || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate'";
        server.psql("postgres", sessions).trim() == "0"
    });
    let asked = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'tollgate_draw'";
    let calls = server.psql("postgres", asked);
    // One before the lease and ten after it; in between, two in vain.
    assert_eq!(calls.trim(), "13");
}
