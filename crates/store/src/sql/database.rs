//! What a link to any SQL database does alike: connecting, retries after conflicts, heartbeats, sweeps.
//! The statements, and how they are sent, belong to each database.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::decide::{Decided, Decider, Locked};
use super::mark::origin;
use super::{CONNECT_WITHIN, HOUSEKEEPING, PAGE, SWEEP_WITHIN, SWEEPS, SWEEPS_MAX, pause_before};
use crate::audit::Finding;
use crate::batch::{
    Answer, Batch, LaneState, Link, NewDocument, Obstacle, StoredDocument, Trouble, Wanted, Wants,
};
use crate::options::RemoteOptions;
use crate::wire_form::{Name, moment, signed};
use tollgate_limit::{Micros, Timestamp};

/// What a link to an SQL database has, whatever its kind.
pub(crate) struct Base {
    pub(crate) options: RemoteOptions,
    pub(crate) shared: Arc<LaneState>,
    pub(crate) decider: Decider,
    elsewhere: Elsewhere,
    /// How many calls there were at the last housekeeping, and how many heartbeats since the last sweep.
    calls: Cell<u64>,
    beats: Cell<u32>,
}

impl Base {
    pub(super) fn new(options: RemoteOptions, shared: Arc<LaneState>) -> Self {
        Self {
            decider: Decider::new(options.pinned.is_some()),
            options,
            shared,
            elsewhere: Elsewhere::default(),
            calls: Cell::new(u64::MAX),
            beats: Cell::new(0),
        }
    }

    /// The moment at which a test has requests decided, in microseconds.
    pub(crate) fn pinned(&self) -> Option<i64> {
        let clock = self.options.pinned.as_ref()?;
        Some(signed(clock.now().as_micros()))
    }

    pub(crate) fn is_elsewhere(&self, name: &Name) -> bool {
        self.elsewhere.has(name, self.options.clock.now())
    }

    /// Decides a batch on what a transaction has locked. `scarce`: the function left it, and is
    /// likely to leave the next: a bucket has too little for the several groups that draw from it.
    pub(crate) fn decide(&self, batch: &Batch, locked: Locked, scarce: bool) -> Decided {
        let decided = self.decider.decide(batch, locked);
        let (at, users) = (self.options.clock.now(), batch.users());
        for (place, (name, _)) in batch.buckets.iter().enumerate() {
            let elsewhere = decided.elsewhere[place] || (scarce && users[place] > 1);
            self.elsewhere.remember(name, elsewhere, at);
        }
        decided
    }

    fn is_leased(&self, wanted: &Wanted) -> bool {
        let leases = self.shared.leases.as_ref();
        wanted.shape.lease().is_some() && leases.is_some_and(|leases| leases.holds(wanted))
    }
}

/// How long a bucket that the function left to the transaction is decided there directly: calling
/// the function first would be wasted, and the server would roll it back.
const ELSEWHERE_FOR: Micros = Micros(250_000);
/// The most buckets for which that is remembered.
const ELSEWHERE_MAX: usize = 4096;

/// For how long a conflict about the document is tried again: for less than the lane waits for the call,
/// so that the operator learns that nothing was written.
const DOCUMENT_WITHIN: Micros = Micros(750_000);

/// After so many heartbeats a gateway without requests sweeps instead.
const IDLE_SWEEP_EVERY: u32 = 9;

/// Buckets that the function leaves to the transaction, because they have leases or cannot be read,
/// and until when this is assumed.
#[derive(Debug, Default)]
struct Elsewhere(RefCell<HashMap<u128, Timestamp, RandomState>>);

impl Elsewhere {
    /// Whether the function is known to leave a bucket to the transaction.
    fn has(&self, name: &Name, now: Timestamp) -> bool {
        let known = self.0.borrow();
        !known.is_empty() && known.get(&name.hash).is_some_and(|until| now < *until)
    }

    /// Records whether the transaction must decide a bucket.
    fn remember(&self, name: &Name, is_elsewhere: bool, now: Timestamp) {
        let mut known = self.0.borrow_mut();
        if !is_elsewhere {
            known.remove(&name.hash);
            return;
        }
        if known.len() >= ELSEWHERE_MAX {
            known.retain(|_, until| now < *until);
        }
        if known.len() < ELSEWHERE_MAX {
            known.insert(name.hash, now.after(ELSEWHERE_FOR));
        }
    }
}

/// What a sweep found in one page of the table.
pub(crate) struct Swept {
    pub(crate) rows: i64,
    pub(crate) gone: i64,
}

/// What one heartbeat finds on the server.
pub(crate) struct Beat {
    /// How many gateways there are, including this one.
    pub(crate) gateways: i64,
    /// The print of the mark of the server's data, if it is valid.
    pub(crate) print: Option<i64>,
    pub(crate) now: i64,
    /// The epoch of the document of overrides, where there is a table for it.
    pub(crate) document: Option<i64>,
}

pub(crate) trait Database: 'static {
    type Session: 'static;
    type Fault;

    fn base(&self) -> &Base;

    /// Connects to a server that can be written to, and checks it and its tables.
    async fn session(&self) -> Result<Self::Session, Obstacle>;

    async fn decide(&self, session: &Self::Session, batch: &Batch) -> Result<Answer, Self::Fault>;

    /// Waits until it is noticed that the server has ended the session.
    async fn ended(_session: &Self::Session) {
        std::future::pending().await
    }

    /// Whether the function on the server supports every claim of a request.
    fn carries(&self, wants: &Wants) -> bool;

    /// The heartbeat, in one call.
    async fn beat(&self, session: &Self::Session) -> Result<Beat, Self::Fault>;

    /// Keeps and returns the print of the mark of the server's data; makes a mark if there is none that
    /// is valid, so that a limit that needs it finds it.
    async fn keep_mark(
        &self,
        session: &Self::Session,
        print: Option<i64>,
    ) -> Result<i64, Self::Fault>;

    /// Notifies the users of the document of its changes, if the database can.
    async fn listen(&self, _session: &Self::Session) {
        std::future::pending().await
    }

    async fn audit(&self, session: &Self::Session) -> Result<Vec<Finding>, Self::Fault>;

    /// Deletes the buckets of the table's next page that have long been full again.
    async fn sweep_page(&self, session: &Self::Session) -> Result<Swept, Self::Fault>;

    fn keeps_document(session: &Self::Session) -> bool;

    /// Replaces the document of overrides, if its epoch is the known one; returns whether it was.
    async fn write_document(
        &self,
        session: &Self::Session,
        new: &NewDocument,
    ) -> Result<bool, Self::Fault>;

    /// The document, with its text unless its epoch is `known`.
    async fn read_document(
        &self,
        session: &Self::Session,
        known: u64,
    ) -> Result<StoredDocument, Self::Fault>;

    /// Whether the statement conflicted with another one and was rolled back.
    fn is_conflict(fault: &Self::Fault) -> bool;

    /// The effect of a fault on waiting requests. `charges`: a charge may be committed.
    fn trouble(session: &Self::Session, fault: Self::Fault, charges: bool) -> Trouble;
}

/// Sweeps so many pages of the table, and more while it pays.
async fn sweep<D: Database>(
    database: &D,
    session: &D::Session,
    pages: usize,
) -> Result<(), D::Fault> {
    let clock = &database.base().options.clock;
    let enough = clock.now().after(SWEEP_WITHIN);
    for turn in 1..=SWEEPS_MAX {
        let Swept { rows, gone } = database.sweep_page(session).await?;
        // A flood of one-time callers leaves many full pages: continue while pages yield rows.
        let is_worth_it = turn < pages || gone >= PAGE / 2;
        if rows < PAGE || !is_worth_it || clock.now() >= enough {
            break;
        }
    }
    Ok(())
}

async fn housekeep<D: Database>(database: &D, session: &D::Session) -> Result<(), D::Fault> {
    let base = database.base();
    let calls = base.shared.counters.calls.load(Ordering::Relaxed);
    let is_idle = base.calls.replace(calls) == calls;
    // The server's clock cannot be compared with rows dated by another clock.
    let sweeps = base.options.pinned.is_none();
    // A gateway without requests makes one call: a heartbeat, or now and then a page of the sweep.
    let beats = !(is_idle && sweeps && base.beats.get() >= IDLE_SWEEP_EVERY);
    base.beats.set(if beats { base.beats.get() + 1 } else { 0 });
    if beats {
        let beat = database.beat(session).await?;
        let gateways = u32::try_from(beat.gateways).unwrap_or(u32::MAX);
        base.shared.shared_by(gateways);
        let ours = base.options.clock.now();
        let print = database.keep_mark(session, beat.print).await?;
        if let (Some(epoch), Some(now)) = (beat.document, moment(beat.now)) {
            let epoch = u64::try_from(epoch).unwrap_or(0);
            base.shared.documents.seen(epoch, origin(print), now, ours);
        }
    }
    if base.shared.is_audit_due() {
        base.shared.audited(database.audit(session).await?);
    }
    if sweeps && !(is_idle && beats) {
        sweep(database, session, if is_idle { 1 } else { SWEEPS }).await?;
    }
    Ok(())
}

/// Tries again after a conflict, for as long as `within`: the server has rolled back, so nothing is
/// charged or written twice.
async fn retried<D: Database, T>(
    database: &D,
    within: Micros,
    attempt: impl AsyncFn() -> Result<T, D::Fault>,
) -> Result<T, D::Fault> {
    let options = &database.base().options;
    let until = options.clock.now().after(within);
    let mut attempts = 0;
    loop {
        match attempt().await {
            Err(fault) if D::is_conflict(&fault) && options.clock.now() < until => {
                attempts += 1;
                tokio::time::sleep(pause_before(attempts)).await;
            }
            outcome => return outcome,
        }
    }
}

impl<D: Database> Link for D {
    type Connection = D::Session;

    async fn connect(&self) -> Result<D::Session, Obstacle> {
        let attempt = async {
            let session = self.session().await?;
            Link::housekeep(self, &session)
                .await
                .map_err(|trouble| Obstacle::from(trouble.into_words()))?;
            Ok(session)
        };
        tokio::time::timeout(CONNECT_WITHIN, attempt)
            .await
            .unwrap_or_else(|_| Err(Obstacle::from(String::from("no connection in time"))))
    }

    async fn call(&self, session: &D::Session, batch: &Batch) -> Result<Answer, Trouble> {
        // Its requests are told of a conflict, which has charged nothing, before their time is over.
        let within = Micros(self.base().options.answer_within.0 / 4 * 3);
        let decided = retried(self, within, async || self.decide(session, batch).await);
        let trouble = |fault| D::trouble(session, fault, true);
        decided.await.map_err(trouble)
    }

    async fn ended(&self, session: &D::Session) {
        D::ended(session).await;
    }

    fn lane_of(&self, wants: &Wants) -> u32 {
        let base = self.base();
        let is_left = |wanted: &Wanted| base.is_elsewhere(&wanted.name) || base.is_leased(wanted);
        // Messages about leases have no claims, and are for the transaction.
        u32::from(wants.is_empty() || wants.iter().any(is_left) || !self.carries(wants))
    }

    fn sends_again(&self) -> bool {
        true
    }

    fn keeps_receipts(&self) -> bool {
        true
    }

    fn has_document(&self, session: &D::Session) -> bool {
        D::keeps_document(session)
    }

    async fn document(
        &self,
        session: &D::Session,
        known: u64,
        new: Option<&NewDocument>,
    ) -> Result<StoredDocument, Trouble> {
        let written = match new {
            Some(new) => {
                let write = async || self.write_document(session, new).await;
                retried(self, DOCUMENT_WITHIN, write).await
            }
            None => Ok(false),
        };
        let written = written.map_err(|fault| D::trouble(session, fault, true))?;
        let read = async || self.read_document(session, known).await;
        match retried(self, DOCUMENT_WITHIN, read).await {
            Ok(received) => Ok(StoredDocument {
                written,
                ..received
            }),
            Err(fault) => {
                let trouble = D::trouble(session, fault, true);
                Err(match written {
                    true => trouble.after_a_write(),
                    false => trouble,
                })
            }
        }
    }

    async fn listen(&self, session: &D::Session) {
        D::listen(self, session).await;
    }

    async fn housekeep(&self, session: &D::Session) -> Result<(), Trouble> {
        match housekeep(self, session).await {
            // After a conflict another gateway swept there; the next sweep follows.
            Err(fault) if !D::is_conflict(&fault) => Err(D::trouble(session, fault, false)),
            _ => Ok(()),
        }
    }

    fn housekeep_every(&self) -> Duration {
        HOUSEKEEPING
    }
}
