//! Learns of changed overrides, and puts them in force.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    CacheFile, Document, Documents, Entry, Event, InForce, Inner, LocalFile, Overrides, ours,
};
use tollgate_gateway::Snapshot;
use tollgate_limit::{Placement, Timestamp};
use tollgate_limiter::Override;
use tollgate_store::{Document as StoreDocument, clock::Clock};

/// How often, and after what time, a start looks whether a store that responds has told its overrides.
const FIRST_LOOKS: u32 = 250;
const FIRST_LOOK_EVERY: Duration = Duration::from_millis(2);

impl Overrides {
    /// The overrides of the gateway whose snapshot is `current`, in force as far as they are known.
    /// `state_file`: local ones are kept beside it; `handed_over`: those that the process before this
    /// one had. `secret` names buckets of the process.
    pub(crate) fn start(
        current: Arc<ArcSwap<Snapshot>>,
        clock: Clock,
        state_file: Option<&std::path::Path>,
        handed_over: Option<&str>,
        secret: &[u8],
    ) -> Self {
        current.load().limiter.name_buckets_by(secret);
        let kept = Inner {
            current,
            clock,
            file: state_file.map(LocalFile::of),
            cache: state_file.map(CacheFile::of),
            known: parking_lot::Mutex::default(),
            writing: parking_lot::Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            telling: parking_lot::Mutex::default(),
            listeners: parking_lot::Mutex::default(),
            wake: tokio::sync::Notify::new(),
        };
        let local = match (handed_over, &kept.file) {
            (Some(text), _) => Document::read(text),
            (None, Some(file)) => file.read(),
            (None, None) => Ok(Document::default()),
        };
        match local {
            Ok(document) => kept.learn_local(document),
            Err(error) => {
                tracing::error!(%error, "the overrides of local limits cannot be read: none is in force");
            }
        }
        kept.obey_what_was_told();
        kept.hear_first();
        Self(Arc::new(kept))
    }
}

impl Inner {
    /// Waits a moment for the document of a store that responds, so that a blocked key stays blocked
    /// through a restart.
    fn hear_first(&self) {
        let snapshot = self.current.load_full();
        let Some(store) = snapshot.limiter.shared().remote() else {
            return;
        };
        let watched = store.document();
        for _ in 0..FIRST_LOOKS {
            if watched.borrow().heard || !store.health().up {
                break;
            }
            std::thread::sleep(FIRST_LOOK_EVERY);
        }
        self.learn_shared(&watched);
    }

    /// Puts in force what the store told the process before this one, until it tells more.
    fn obey_what_was_told(&self) {
        if self.current.load().limiter.shared().remote().is_none() {
            return;
        }
        let cache = self.cache.as_ref();
        if let Some(cache) = cache.and_then(|cache| cache.document(&self.clock)) {
            self.learn(Placement::Shared, |known| {
                (known.shared, known.ahead) = cache;
            });
        }
    }

    /// Keeps what the store has told, for a start while it does not respond.
    pub(super) fn keep_told(&self, watched: &watch::Receiver<StoreDocument>) {
        if let Some(cache) = &self.cache {
            cache.keep(watched, &self.clock);
        }
    }

    pub(super) fn learn_local(&self, document: Document) {
        self.learn(Placement::Local, |known| known.local = document);
    }

    /// Learns the document that the store has told last.
    pub(super) fn learn_shared(&self, watched: &watch::Receiver<StoreDocument>) {
        self.learn(Placement::Shared, |known| {
            // Read under the lock, so that an older one never replaces a newer one.
            let heard = watched.borrow();
            if !heard.heard {
                return;
            }
            known.ahead = heard.ahead;
            match Document::read(&heard.text) {
                Ok(document) => known.shared = document,
                Err(error) => {
                    tracing::error!(%error, "the overrides in the store cannot be read: those that are known stay");
                }
            }
        });
        self.keep_told(watched);
    }

    /// Changes what is known, and puts it in force.
    pub(super) fn learn(&self, placement: Placement, change: impl FnOnce(&mut Documents)) {
        let _telling = self.telling.lock();
        let mut known = self.known.lock();
        let before = known.of(placement).clone();
        change(&mut known);
        let after = known.of(placement).clone();
        self.put(&known);
        let ahead = known.ahead_of(placement);
        drop(known);
        let changed = |from: &Document, to: &Document| -> Vec<Entry> {
            let others = from
                .overrides
                .iter()
                .filter(|one| !to.overrides.contains(one));
            others.cloned().collect()
        };
        let (gone, new) = (changed(&before, &after), changed(&after, &before));
        if placement == Placement::Shared
            && (before.resets != after.resets || !gone.is_empty() || !new.is_empty())
        {
            self.let_go(gone.iter().chain(&new).filter_map(Entry::bucket));
        }
        let now = self.clock.now();
        for entry in gone {
            let replaced = new
                .iter()
                .any(|one| (&one.limit, &one.bucket) == (&entry.limit, &entry.bucket));
            // Those that had ended by themselves were told of then.
            if !replaced && ours(entry.until(), ahead) > now {
                self.tell(false, true, entry.by_our_clock(placement, ahead));
            }
        }
        for entry in new {
            self.tell(true, false, entry.by_our_clock(placement, ahead));
        }
        // The next end may be another one.
        self.wake.notify_one();
    }

    /// Puts all overrides in force that have not ended.
    fn put(&self, known: &Documents) {
        let local = known.local.compiled(Placement::Local, 0);
        let shared = known.shared.compiled(Placement::Shared, known.ahead);
        let now = self.clock.now();
        let all = local.into_iter().chain(shared);
        let in_force = all.filter(|one: &Override| one.until > now);
        self.current.load().limiter.put_overrides(in_force);
    }

    /// Gives the leases of these buckets back, and forgets which buckets are exhausted.
    fn let_go(&self, buckets: impl Iterator<Item = u128>) {
        let buckets: HashSet<u128> = buckets.collect();
        if let Some(store) = self.current.load().limiter.shared().remote() {
            store.let_go(&buckets.into_iter().collect::<Vec<_>>());
        }
    }

    fn tell(&self, set: bool, lifted: bool, one: InForce) {
        let event = Event { set, lifted, one };
        let listeners = self.listeners.lock();
        listeners.iter().for_each(|listener| listener(&event));
    }

    /// Tells of the overrides that have ended by themselves since `since`. They are out of force
    /// already: each request compares their end with its time.
    pub(super) fn end(&self, since: Timestamp, now: Timestamp) {
        let _telling = self.telling.lock();
        let ended: Vec<InForce> = {
            let known = self.known.lock();
            known
                .ending(|until| since < until && until <= now)
                .collect()
        };
        if ended.is_empty() {
            return;
        }
        self.put(&self.known.lock());
        let shared = ended
            .iter()
            .filter(|one| one.placement == Placement::Shared);
        self.let_go(shared.filter_map(|one| one.bucket));
        for one in ended {
            self.tell(false, false, one);
        }
    }
}

impl Documents {
    pub(super) fn of(&self, placement: Placement) -> &Document {
        match placement {
            Placement::Local => &self.local,
            Placement::Shared => &self.shared,
        }
    }

    pub(super) fn ahead_of(&self, placement: Placement) -> i64 {
        match placement {
            Placement::Local => 0,
            Placement::Shared => self.ahead,
        }
    }
}
