//! What heartbeats tell of the places held, whatever else waits for a call.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::*;

/// A server that counts places, and how many calls had heartbeats that told of another number than it had counted.
#[derive(Default)]
struct Places {
    overlaps: bool,
    held: Mutex<HashMap<u128, u64>>,
    told: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Places {
    fn decide(&self, batch: &Batch) {
        let mut held = self.held.lock();
        for (bucket, adjust) in &batch.corrections {
            let count = held.entry(batch.buckets[*bucket as usize].0.hash).or_default();
            match adjust {
                Adjust::Hold(units) => {
                    self.told.fetch_add(1, Ordering::Relaxed);
                    if *units != *count {
                        self.wrong.lock().push(format!("{units} told of {count}"));
                    }
                    *count = *units;
                }
                Adjust::Change(Change::Release { units }) => *count = count.saturating_sub(*units),
                Adjust::Change(_) => {}
            }
        }
        for group in &batch.groups {
            for part in &group.parts {
                *held.entry(batch.buckets[part.bucket as usize].0.hash).or_default() +=
                    u64::from(group.count) * part.cost;
            }
        }
    }
}

impl Link for Arc<Places> {
    type Connection = ();

    async fn connect(&self) -> Result<(), String> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        // Others come and go meanwhile.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        self.decide(batch);
        Made { answers: true }.call(&(), batch).await
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_millis(20)
    }
}

/// With far more corrections waiting than a call takes, and more buckets held than it can tell of.
#[tokio::test]
async fn a_heartbeat_tells_of_exactly_the_places_that_stand_however_much_waits_before_it() {
    for overlaps in [false, true] {
        let server = Arc::new(Places { overlaps, ..Places::default() });
        let shared = Arc::new(Shared::new(Clock::system(), Micros::from_secs(60), true));
        let places = limit("places", &terms(Kind::InFlight, 1 << 40, Micros::ZERO));
        let other = Limit { index: 1, ..bucket(1_000_000) };
        let names = Arc::new(Names::new(b"secret"));
        let local = tokio::task::LocalSet::new();
        local.spawn_local(lane(shared.clone(), Rc::new(server.clone())));
        // Each of these holds one place for good, in a bucket of its own.
        let wants = |limit: &Limit, key: &[u8]| names.wants(&[Claim { limit, key, cost: 1, enforced: true }]);
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
                    let adjust = Adjust::Change(Change::Refund { units: 1 });
                    let (name, shape) = (refunded[0].name, refunded[0].shape.clone());
                    flooded.correct(Correction { name, shape, adjust });
                }
                tokio::task::yield_now().await;
            }
        });
        let enough = local.run_until(async {
            while server.told.load(Ordering::Relaxed) < 3_000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let enough = tokio::time::timeout(Duration::from_secs(60), enough).await;
        assert!(enough.is_ok(), "{} heartbeats", server.told.load(Ordering::Relaxed));
        assert_eq!(*server.wrong.lock(), Vec::<String>::new(), "overlaps: {overlaps}");
    }
}
