//! How many calls many gateways make for each decision, in virtual time.

use std::cell::RefCell;

use super::leased::{Server, Slow, call};
use super::*;
use tollgate_limit::Terms;

/// What gateways did on one bucket.
#[derive(Debug, Default)]
struct Run {
    asked: u64,
    granted: u64,
    calls: u64,
}

impl Run {
    fn calls_a_decision(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a ratio to be read by people")]
        let ratio = self.calls as f64 / self.asked as f64;
        ratio
    }
}

/// So many gateways, each with a request each so many milliseconds. The first second does not count.
async fn run(gateways: u64, every_ms: u64, (rate, burst): (u64, u64), lease: bool) -> Run {
    let clock = Clock::manual(START);
    let total = Limit {
        lease,
        ..limit(
            "total",
            &Terms {
                burst: Some(burst),
                ..terms(Kind::TokenBucket, rate, Micros::from_secs(1))
            },
        )
    };
    let server: Server = Rc::new(RefCell::new(Slow::new(&clock, 7)));
    let names = Names::new(b"secret");
    let local = tokio::task::LocalSet::new();
    let mut servers = Vec::new();
    for _ in 0..gateways {
        let mut shared = LaneState::new(clock.clone(), Micros::from_secs(60), true);
        shared.leases = Some(Arc::new(Leases::new(clock.clone(), false)));
        shared.shared_by(u32::try_from(gateways).expect("a few"));
        let shared = Arc::new(shared);
        let made = Made {
            housekeep_every: Duration::from_secs(3600),
            ..Made::new(server.clone(), call)
        };
        local.spawn_local(lane(shared.clone(), Rc::new(made)));
        servers.push(Servers::one(shared));
    }
    let claims = [Claim::new(&total, b"", 1)];
    let mut run = Run::default();
    let all = async {
        for one in &servers {
            one.connected().await;
        }
        for millisecond in 0..3_000 {
            if millisecond == 1_000 {
                (run, server.borrow_mut().calls) = (Run::default(), 0);
            }
            for (place, one) in (0..).zip(&servers) {
                if (millisecond + place) % every_ms == 0 {
                    let deadline = Deadline::default();
                    let drawn = one.draw(names.wants(&claims), &deadline).await;
                    run.asked += 1;
                    run.granted += u64::from(drawn.expect("answered").granted);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.advance(Micros(1_000));
        }
    };
    local.run_until(all).await;
    run.calls = server.borrow().calls;
    run
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_hot_bucket_save_calls_whatever_the_number_of_gateways() {
    for gateways in [10, 64, 100] {
        let run = run(gateways, 4, (200_000, 400_000), true).await;
        println!(
            "hot, {gateways} gateways: {:.4} {run:?}",
            run.calls_a_decision()
        );
        assert_eq!(run.granted, run.asked);
        assert!(run.calls_a_decision() <= 0.02, "{gateways}: {run:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_cold_bucket_cost_next_to_nothing() {
    // (A request each 20 ms, and each 100 ms, in which case a lease's life has too few.)
    for (every_ms, numbers) in [
        (20, (200, 300)),
        (20, (1_000, 400)),
        (100, (200_000, 400_000)),
    ] {
        let run = run(32, every_ms, numbers, true).await;
        println!(
            "cold, every {every_ms} ms of {numbers:?}: {:.4} {run:?}",
            run.calls_a_decision()
        );
        assert!(run.calls_a_decision() <= 1.02, "{every_ms}: {run:?}");
    }
}

/// Leased units lie idle. Where the burst is large enough, few requests are refused for it.
#[tokio::test(start_paused = true)]
async fn leases_of_a_bucket_at_its_limit_grant_nearly_as_much_as_the_bucket_alone() {
    let numbers = (2_000, 1_000);
    let leased = run(10, 2, numbers, true).await;
    let alone = run(10, 2, numbers, false).await;
    println!(
        "half refused: {:.4} {leased:?}, alone {alone:?}",
        leased.calls_a_decision()
    );
    assert!(
        leased.granted * 100 >= alone.granted * 98,
        "{leased:?} {alone:?}"
    );
}

/// A bucket that refuses nearly all: gateways ask at moments apart.
#[tokio::test(start_paused = true)]
async fn leased_bucket_that_refuses_most_is_asked_about_seldom() {
    for gateways in [10, 64, 100] {
        // 10,000 requests a second; of 100 units a second some 200 come in the two that count.
        let run = run(gateways, gateways / 10, (100, 100), true).await;
        println!(
            "mostly refused, {gateways} gateways: {:.4} {run:?}",
            run.calls_a_decision()
        );
        assert!(run.calls_a_decision() <= 0.03, "{run:?}");
        assert!(run.granted >= 196, "{run:?}");
    }
}
