//! What heartbeats tell of the places held, whatever else waits for a call.

use std::cell::RefCell;
use std::collections::HashMap;

use super::*;

/// The places a server has counted, how many heartbeats told of some, and those that told of another number.
#[derive(Default)]
struct Places {
    held: RefCell<HashMap<u128, u64>>,
    told: Cell<u64>,
    wrong: RefCell<Vec<String>>,
}

impl Places {
    async fn answer(&self, batch: &Batch) -> Answer {
        // Others come and go meanwhile.
        turns(8).await;
        let mut held = self.held.borrow_mut();
        for (bucket, adjust) in &batch.corrections {
            let count = held
                .entry(batch.buckets[*bucket as usize].0.hash)
                .or_default();
            match adjust {
                Adjust::Hold(units) => {
                    self.told.update(|told| told + 1);
                    if *units != *count {
                        self.wrong
                            .borrow_mut()
                            .push(format!("{units} told of {count}"));
                    }
                    *count = *units;
                }
                Adjust::Change(Change::Release { units }, _) => {
                    *count = count.saturating_sub(*units)
                }
                Adjust::Change(..) => {}
            }
        }
        for group in &batch.groups {
            for part in &group.parts {
                *held
                    .entry(batch.buckets[part.bucket as usize].0.hash)
                    .or_default() += u64::from(group.count) * part.cost;
            }
        }
        granted(batch)
    }
}

/// With far more corrections waiting than a call takes, and more buckets held than it can tell of.
#[tokio::test]
async fn heartbeat_reports_exactly_the_held_places_in_any_queue() {
    let server = Rc::new(Made::new(Places::default(), Places::answer));
    let shared = Arc::new(LaneState::new(Clock::system(), Micros::from_secs(60), true));
    let places = limit("places", &terms(Kind::InFlight, 1 << 40, Micros::ZERO));
    let other = Limit {
        index: 1,
        ..bucket(1_000_000)
    };
    let names = Arc::new(Names::new(b"secret"));
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), server.clone()));
    // Each of these holds one place for good, in a bucket of its own.
    let wants = |limit: &Limit, key: &[u8]| names.wants(&[Claim::new(limit, key, 1)]);
    for caller in 0..600_u32 {
        let (shared, wants) = (shared.clone(), wants(&places, &caller.to_le_bytes()));
        local.spawn_local(async move {
            shared.connected().await;
            assert!(shared.ask(wants, false).await.expect("answered").granted);
        });
    }
    // These come and go, all to one bucket, or stay now and then.
    for caller in 0..8_u32 {
        let (shared, wants) = (shared.clone(), wants(&places, b"busy"));
        local.spawn_local(async move {
            shared.connected().await;
            let mut random = fastrand::Rng::with_seed(caller.into());
            while shared.ask(wants.clone(), false).await.is_ok() {
                if random.u8(..8) > 0 {
                    shared.release(wants[0].name, wants[0].shape.clone(), 1);
                }
            }
        });
    }
    // And this many corrections of another limit always wait.
    let (flooded, refunded) = (shared.clone(), wants(&other, b"k"));
    local.spawn_local(async move {
        loop {
            while flooded.corrections_queued() < 3 * CORRECTIONS_MAX {
                let adjust = Adjust::Change(Change::Refund { units: 1 }, Corrects::Any);
                let (name, shape) = (refunded[0].name, refunded[0].shape.clone());
                flooded.correct(Correction {
                    name,
                    shape,
                    adjust,
                });
            }
            tokio::task::yield_now().await;
        }
    });
    let enough = local.run_until(async {
        while server.kept.told.get() < 3_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let enough = tokio::time::timeout(Duration::from_secs(60), enough).await;
    assert!(enough.is_ok(), "{} heartbeats", server.kept.told.get());
    assert_eq!(*server.kept.wrong.borrow(), Vec::<String>::new());
}

/// What a busy server has granted, and the heartbeats it got with what it had granted by then.
#[derive(Default)]
struct Busy {
    granted: Cell<u64>,
    heartbeats: RefCell<Vec<(u64, u64)>>,
}

impl Busy {
    async fn answer(&self, batch: &Batch) -> Answer {
        turns(8).await;
        for (_, adjust) in &batch.corrections {
            if let Adjust::Hold(units) = adjust {
                self.heartbeats
                    .borrow_mut()
                    .push((*units, self.granted.get()));
            }
        }
        let more: u64 = batch
            .groups
            .iter()
            .map(|group| u64::from(group.count))
            .sum();
        self.granted.update(|granted| granted + more);
        granted(batch)
    }
}

#[tokio::test]
async fn lane_always_busy_reports_every_held_place_and_keeps_house() {
    let server = Rc::new(Made::new(Busy::default(), Busy::answer));
    let shared = Arc::new(LaneState::new(Clock::system(), Micros::from_secs(60), true));
    let places = limit("places", &terms(Kind::InFlight, 1 << 40, Micros::ZERO));
    let names = Names::new(b"secret");
    let wants = names.wants(&[Claim::new(&places, b"k", 1)]);
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), server.clone()));
    for caller in 0..8 {
        let (shared, wants) = (shared.clone(), wants.clone());
        local.spawn_local(async move {
            shared.connected().await;
            // Half of them begin while the others' call is out: one call or the other is always asked for.
            while caller >= 4 && shared.counters.calls.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            while shared.ask(wants.clone(), false).await.is_ok() {}
        });
    }
    let beaten = local.run_until(async {
        while server.housekeeps.load(Ordering::Relaxed) < 5
            || server.kept.heartbeats.borrow().len() < 5
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let beaten = tokio::time::timeout(Duration::from_secs(10), beaten).await;
    assert!(
        beaten.is_ok(),
        "{} turns of housekeeping",
        server.housekeeps.load(Ordering::Relaxed)
    );
    for (told, granted) in &*server.kept.heartbeats.borrow() {
        // (No request gives a place back.)
        assert_eq!(
            told, granted,
            "a heartbeat leaves out places that were granted"
        );
    }
}
