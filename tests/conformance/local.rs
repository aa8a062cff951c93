//! The local store, on a manual clock.

use std::io::Cursor;
use std::sync::Arc;

use tollgate_limit::{Limit, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore, Remembered};

use crate::subject::Subject;

/// The local store.
pub(crate) struct Local {
    store: LocalStore,
    clock: Clock,
}

impl Subject for Local {
    type Store = LocalStore;
    const SHARED: bool = false;
    const RUNS: u64 = 300;

    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self> {
        let clock = Clock::manual(now);
        Some(Self {
            store: LocalStore::new(limits, clock.clone(), ColdStart::Full),
            clock,
        })
    }

    fn store(&self) -> &LocalStore {
        &self.store
    }

    fn set_time(&mut self, now: Timestamp) {
        self.clock.advance(now.since(self.clock.now()));
    }

    fn reload(&mut self, limits: &[Arc<Limit>], restart: bool) {
        self.store = if restart {
            let mut file = Vec::new();
            self.store
                .save(None, &mut file, &Remembered::default())
                .expect("memory takes everything");
            LocalStore::restored(limits, self.clock.clone(), Cursor::new(file))
                .expect("sound")
                .0
        } else {
            self.store.next(limits).0
        };
    }
}
