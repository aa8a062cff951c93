//! Rows of PostgreSQL that somebody else wrote: a limit of another algorithm under the same name, a later gateway.

use tollgate::limit::{Change, Claim, Kind, Limit, Micros, Settlement};
use tollgate::store::{Store, StoreError};

use crate::faults::draw;
use crate::limits::{bucket, limit, terms};
use crate::postgres_faults::connect;
use crate::servers::Postgres;

const HOUR: Micros = Micros::from_secs(3600);
/// Turns every plain row of a token bucket into one of which three units are leased for a long time.
const LEASE: &str = "UPDATE tollgate_buckets
                     SET kind = 9, a = NULL, b = NULL, c = NULL, level = NULL, at = NULL,
                         more = ARRAY[a, b, c, level - price * taken - 3 * b, at, 0, 5, 3, at + 3600000000]";
const ROWS: &str = "SELECT kind, epoch, a, b, c, d, level, at, price, taken, more FROM tollgate_buckets";

/// A fixed window of that name.
fn window(name: &str) -> std::sync::Arc<Limit> {
    limit(name, 0, &terms(Kind::FixedWindow, 1000, HOUR))
}

#[tokio::test]
async fn corrections_of_another_algorithm_leave_a_leased_row_as_it_is() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect(&server.url()).await;
    let now = bucket("total", 0, 10, HOUR, 10);
    for _ in 0..4 {
        assert!(draw(&store, &now, b"k").await.unwrap());
    }
    server.psql("postgres", LEASE);
    let before = server.psql("postgres", ROWS);
    // Of requests that were admitted before a reload made a token bucket of the limit.
    let jobs = limit("total", 0, &terms(Kind::InFlight, 10, HOUR));
    let corrections: [(&Limit, Change); 3] = [
        (&window("total"), Change::Refund { units: 1 }),
        (&window("total"), Change::Charge { more: 1 }),
        (&jobs, Change::Release { units: 1 }),
    ];
    for (limit, change) in corrections {
        store.settle(&[Settlement { limit, key: b"k", change }]);
        // A question that goes the same way comes behind it.
        store.peek(&[Claim { limit, key: b"k", cost: 1, enforced: true }]).await.unwrap();
        assert_eq!(server.psql("postgres", ROWS), before, "{change:?}");
    }
    // What is leased and what was drawn still count.
    store.forget_bounds();
    let mut left = 0;
    while draw(&store, &now, b"k").await.unwrap() {
        left += 1;
    }
    assert_eq!(left, 3, "of ten, four drawn and three leased");
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
    ];
    for row in rows {
        let store = connect(&server.url()).await;
        assert!(draw(&store, &one, b"k").await.unwrap());
        assert!(draw(&store, &window, b"k").await.unwrap());
        server.psql("postgres", &format!("UPDATE tollgate_buckets SET {row}"));
        let before = server.psql("postgres", ROWS);
        store.forget_bounds();
        let limit = if row.starts_with("kind = 3") { &window } else { &one };
        let drawn = draw(&store, limit, b"k").await;
        assert!(matches!(drawn, Err(StoreError::Corrupt(_))), "{row}: {drawn:?}");
        assert_eq!(server.psql("postgres", ROWS), before, "{row}");
        server.psql("postgres", "TRUNCATE tollgate_buckets");
    }
}
