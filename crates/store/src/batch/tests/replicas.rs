//! The number of gateways, as the stand-in for the server gets it.

use std::sync::Weak;

use super::*;
use crate::{Owed, StandIn};
use parking_lot::Mutex;

/// Receives the number of gateways; during its first call a heartbeat reports four of them.
struct CountReceiver {
    shared: Arc<LaneState>,
    last: AtomicU64,
    heartbeat: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl StandIn for CountReceiver {
    fn shared_by(&self, replicas: u32) {
        self.last.store(u64::from(replicas), Ordering::SeqCst);
        let mut heartbeat = self.heartbeat.lock();
        if replicas == 4 || heartbeat.is_some() {
            return;
        }
        let shared = self.shared.clone();
        *heartbeat = Some(std::thread::spawn(move || shared.shared_by(4)));
        while self.shared.replicas.most() != 4 {
            std::thread::yield_now();
        }
    }

    fn owed(&self) -> Vec<Owed> {
        Vec::new()
    }

    fn owe_again(&self, owed: Vec<Owed>) -> Vec<Owed> {
        owed
    }
}

#[test]
fn substitute_named_while_a_heartbeat_counts_gets_the_new_count() {
    let shared = Arc::new(LaneState::new(Clock::system(), Micros::from_secs(60), true));
    shared.shared_by(2);
    let receiver = Arc::new(CountReceiver {
        shared: shared.clone(),
        last: AtomicU64::new(0),
        heartbeat: Mutex::default(),
    });
    let stand_in: Weak<dyn StandIn> = Arc::downgrade(&(receiver.clone() as Arc<dyn StandIn>));
    shared.substitute(Arc::new(Names::new(b"secret")), stand_in, true);
    let heartbeat = receiver
        .heartbeat
        .lock()
        .take()
        .expect("it was called for two gateways");
    heartbeat.join().expect("no panic");
    assert_eq!(receiver.last.load(Ordering::SeqCst), 4);
}
