//! Sends the corrections of a process that has handed its buckets over to the process that has a copy
//! of them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::message::{Correction, LimitName, Message};
use super::wire::Wire;
use tollgate_gateway::Snapshot;
use tollgate_limit::{Change, Limit, Mode, Placement, Role, Settlement};
use tollgate_limiter::Successor;
use tollgate_store::local::HeldPlaces;

/// The limits whose buckets are in this process.
pub(super) fn names(limits: &[Arc<Limit>]) -> Vec<LimitName> {
    limits
        .iter()
        .filter(|limit| limit.placement == Placement::Local)
        .map(|limit| LimitName::of(limit))
        .collect()
}

// --- the process that has handed over ---

/// The process that has a copy of the buckets.
pub(super) struct Remote {
    limits: Vec<LimitName>,
    corrections: mpsc::SyncSender<Message>,
}

impl Remote {
    /// Starts the thread that sends; `limits` are those whose buckets the other process has.
    ///
    /// The socket stays open as long as the thread, even if nothing can be sent: its end says to the
    /// other process that this one has ended, and that the places of its requests are free.
    pub(super) fn start(mut wire: Wire, limits: Vec<LimitName>) -> io::Result<Self> {
        wire.patience(Some(SENT_WITHIN))?;
        let (corrections, queue) = mpsc::sync_channel(CORRECTIONS_MAX);
        let send = move || {
            let mut is_cut = false;
            for message in queue {
                if is_cut {
                    continue;
                }
                if let Err(error) = wire.send(&message) {
                    // A part of the message may have been sent, so that no other one can follow.
                    is_cut = true;
                    tracing::error!(%error, "the new process receives no more corrections: what this one's last requests cost is not charged there");
                }
            }
        };
        let thread = std::thread::Builder::new().name("relay".to_owned());
        thread.spawn(send)?;
        Ok(Self {
            limits,
            corrections,
        })
    }
}

impl Successor for Remote {
    fn settle(&self, settlement: &Settlement<'_>) {
        let mut limits = self.limits.iter();
        let Some(limit) = limits.position(|name| name.names(settlement.limit)) else {
            return;
        };
        let correction = Message::Settle(Correction {
            limit,
            key: STANDARD_NO_PAD.encode(settlement.key),
            change: settlement.change,
        });
        // It is full only if the other process has stopped to read. Then its bound on the corrections
        // is more than a request is worth waiting for.
        let _ = self.corrections.try_send(correction);
    }
}

// --- the process that has taken over ---

/// Receives the corrections of the previous process while it lives.
#[derive(Debug)]
pub(in crate::app) struct Relay {
    ended: Arc<AtomicBool>,
    // Ends with the other process, or with this one.
    _thread: JoinHandle<()>,
}

impl Relay {
    pub(super) fn start(
        mut wire: Wire,
        current: Arc<ArcSwap<Snapshot>>,
        names: Vec<LimitName>,
    ) -> io::Result<Self> {
        wire.patience(None)?;
        let mut places = Places::of(&current.load());
        let ended = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                while let Ok(Some(Message::Settle(correction))) = wire.receive() {
                    settle(correction, &names, &current.load(), &mut places);
                }
                // After an invalid message, too, its requests hold their places.
                wire.wait_for_end();
                places.release(&current.load());
                done.store(true, Ordering::Release);
                tracing::info!("the gateway before this one has ended");
            })?;
        Ok(Self {
            ended,
            _thread: thread,
        })
    }

    pub(in crate::app) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Corrects a charge. A reload may have changed or removed its limit.
fn settle(
    correction: Correction,
    names: &[LimitName],
    snapshot: &Snapshot,
    places: &mut Places,
) -> Option<()> {
    let key = STANDARD_NO_PAD.decode(correction.key).ok()?;
    let name = names.get(correction.limit)?;
    let mut limits = snapshot.limiter.limits().iter();
    let limit = limits.find(|limit| name.names(limit))?;
    let mut change = correction.change;
    if let Change::Release { units } = &mut change {
        let tag = snapshot.limiter.local().tag(&key);
        *units = places.free(limit, tag, *units);
    }
    snapshot
        .limiter
        .settle_for(Settlement::new(limit, &key, change));
    Some(())
}

/// Places of concurrency limits that requests of the other process held when the buckets arrived. It
/// may end without freeing them.
pub(super) struct Places(HashMap<Bucket, u64>);

/// The bucket of a concurrency limit: the limit's name, which its tiers share, and the key's tag.
type Bucket = (Arc<str>, Role, u64);

impl Places {
    /// Those of requests that run in the other process, before this one serves any.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let limiter = &snapshot.limiter;
        let held = limiter.local().held_places().into_iter();
        let bucket = |held: HeldPlaces| {
            let limit = &limiter.limits()[held.limit];
            ((Arc::clone(&limit.name), limit.role, held.tag), held.units)
        };
        Self(held.map(bucket).collect())
    }

    /// How many of these places the other process held, and holds no more.
    fn free(&mut self, limit: &Limit, tag: u64, units: u64) -> u64 {
        let bucket = (Arc::clone(&limit.name), limit.role, tag);
        let Some(held) = self.0.get_mut(&bucket) else {
            return 0;
        };
        let units = units.min(*held);
        *held -= units;
        units
    }

    /// Frees all, because the other process has ended.
    pub(super) fn release(self, snapshot: &Snapshot) {
        let limits = snapshot.limiter.limits();
        for ((name, role, tag), units) in self.0 {
            let has_bucket = |limit: &&Arc<Limit>| {
                limit.placement == Placement::Local
                    && limit.algorithm.holds_places()
                    && limit.mode != Mode::Off
                    && (&limit.name, limit.role) == (&name, role)
            };
            if let Some(limit) = limits.iter().find(has_bucket) {
                snapshot.limiter.local().release(limit, tag, units);
            }
        }
    }
}

/// The other process reads at once, so this passes only if it is stopped or dead.
const SENT_WITHIN: Duration = Duration::from_secs(5);
const CORRECTIONS_MAX: usize = 65_536;
