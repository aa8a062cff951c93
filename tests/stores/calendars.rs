//! Calendar windows of a gateway whose clock is windows away from the server's, which decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_limit::{Align, Calendar, Claim, Kind, Limit, Micros, Terms, Timestamp, Verdict};
use tollgate_store::clock::Clock;
use tollgate_store::{RemoteStore, Store};

use crate::limits::{limit, terms};
use crate::servers::Server;

const DAY: u64 = 86_400_000_000;

/// Ten a day, with a debt of as many as `days` bring.
fn daily(days: u64) -> Arc<Limit> {
    let today = Clock::system().now().as_micros() / DAY;
    let boundaries = (today - 100..today + 100)
        .map(|day| Timestamp::from_micros(day * DAY))
        .collect();
    let calendar = Calendar {
        boundaries,
        words: "day".into(),
    };
    let plain = terms(Kind::FixedWindow, 10, Micros(DAY));
    limit(
        "daily",
        0,
        &Terms {
            align: Align::Calendar(Arc::new(calendar)),
            debt: 10 * days,
            ..plain
        },
    )
}

fn days_ahead(days: i64) -> Clock {
    let now = Clock::system().now().as_micros();
    Clock::manual(Timestamp::from_micros(
        now.saturating_add_signed(days * DAY as i64),
    ))
}

/// `away` is a store of a gateway whose clock is days ahead or behind, `right` one whose clock is right.
async fn share_the_server_s_day(away: RemoteStore, right: RemoteStore) {
    let daily = daily(20);
    let claim = |cost| [Claim::new(&daily, b"k", cost)];
    for turn in 0..3 {
        for store in [&away, &right] {
            assert!(store.draw(&claim(1)).await.unwrap().granted, "turn {turn}");
        }
    }
    let far_from_midnight = Clock::system().now().as_micros() % DAY >= DAY / 24;
    assert!(
        !right.draw(&claim(205)).await.unwrap().granted || !far_from_midnight,
        "a day was refilled"
    );
    // Four are left, and two hundred may be owed: what twenty days bring.
    assert!(away.draw(&claim(204)).await.unwrap().granted);
    for store in [&right, &away] {
        let refused = store.draw(&claim(1)).await.unwrap();
        let (
            at,
            Verdict::Deny {
                retry_after: Some(told),
            },
        ) = (
            Clock::system().now().as_micros(),
            refused.standings[0].verdict,
        )
        else {
            panic!("{refused:?}")
        };
        let days = (at + told.0) / DAY - at / DAY;
        // (Midnight may have come in between.)
        assert!(days == 20 || at % DAY < DAY / 24, "{days} days by {told:?}");
    }
    for store in [away, right] {
        assert_eq!(store.counters().diverged.load(Ordering::Relaxed), 0);
    }
}

pub async fn shares_windows_with_a_clock_days_away(server: Server) {
    for days in [2, 50, -2, -50] {
        let away = server.connect_with(|options| {
            (options.clock, options.local_refusals) = (days_ahead(days), false);
        });
        let right = server.connect_with(|options| options.local_refusals = false);
        let (away, right) = (away.await, right.await);
        server.clear();
        share_the_server_s_day(away, right).await;
    }
}
