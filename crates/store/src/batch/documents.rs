//! The document that all gateways of a store share: the overrides of operators.
//!
//! The store keeps one text with an epoch, which is replaced by compare-and-set. The store publishes
//! each change where it can ([`Link::listen`]), and every heartbeat brings the epoch, so that a change
//! of which a gateway was not notified is found within a second. A gateway reads the text only when
//! the epoch is another. While the store does not respond, the last text stays.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::{LaneState, Link};
use crate::StoreError;
use tollgate_limit::Timestamp;

/// How soon a lane looks again whether its server keeps the document, and how soon it subscribes again
/// to a server that ended the subscription or has none.
const AGAIN: Duration = Duration::from_secs(1);
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(60);

/// How long a call may take; also how long the writer of a document waits.
const WITHIN: Duration = Duration::from_secs(1);

/// A difference of the clocks by less than this is not reported: calls take time.
const DRIFT: u64 = 20_000;

/// Documents that wait to be written. There are few operators.
const WAITING_MAX: usize = 16;

/// Where a document is kept: the print of the server's data, and the number of the database there.
pub(crate) type Origin = (i64, i64);

/// The document that this gateway read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Its epoch, which every change raises; zero: there is none.
    pub epoch: u64,
    pub text: Arc<str>,
    /// By how much the store's clock is ahead of ours, in microseconds.
    pub ahead: i64,
    /// Whether the store has responded yet.
    pub heard: bool,
    /// Where it is kept; `None`: not known.
    pub(crate) origin: Option<Origin>,
}

#[derive(Debug)]
pub(crate) struct NewDocument {
    pub(crate) known: u64,
    pub(crate) epoch: u64,
    pub(crate) text: String,
    pub(crate) keep: Duration,
}

#[derive(Debug)]
pub(crate) struct StoredDocument {
    pub(crate) epoch: u64,
    pub(crate) now: Timestamp,
    pub(crate) written: bool,
    /// The text, unless its epoch is the one that is known.
    pub(crate) text: Option<String>,
    /// Where it is kept; `None`: not known.
    pub(crate) origin: Option<Origin>,
}

/// A document that waits to be written, and the channel of the writer that waits for the result.
type Waiting = (NewDocument, oneshot::Sender<Result<bool, StoreError>>);

/// What the lanes of a store and the users of its document share.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    latest: watch::Sender<Document>,
    waiting: Mutex<VecDeque<Waiting>>,
    arrived: Notify,
}

impl Documents {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Document> {
        self.latest.subscribe()
    }

    pub(crate) fn origin(&self) -> Option<Origin> {
        self.latest.borrow().origin
    }

    /// Writes a document, if the one it replaces is the present one; returns whether it was.
    pub(crate) async fn replace(&self, new: NewDocument) -> Result<bool, StoreError> {
        let (reply, replied) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            // Writers that gave up have closed their channel.
            waiting.retain(|(_, reply)| !reply.is_closed());
            if waiting.len() >= WAITING_MAX {
                let words = "too many changes wait for the store";
                return Err(StoreError::Unavailable(words.into()));
            }
            waiting.push_back((new, reply));
        }
        self.arrived.notify_one();
        match tokio::time::timeout(2 * WITHIN, replied).await {
            Ok(Ok(written)) => written,
            // The server may have written it.
            Ok(Err(_)) => Err(StoreError::Lost("the connection ended".into())),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    pub(crate) fn changed(&self) {
        self.arrived.notify_one();
    }

    /// A heartbeat found this epoch at `now` by the store's clock, in the data of `origin` if that is
    /// known. The document is read if it is another, or the clocks are no longer as far apart as they were.
    pub(crate) fn seen(&self, epoch: u64, origin: Option<Origin>, now: Timestamp, ours: Timestamp) {
        let latest = self.latest.borrow();
        let ahead = i128::from(now.as_micros()) - i128::from(ours.as_micros());
        let drifted = (i128::from(latest.ahead) - ahead).unsigned_abs() > u128::from(DRIFT);
        let moved = origin.is_some() && latest.origin != origin;
        if !latest.heard || latest.epoch != epoch || drifted || moved {
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        waiting.retain(|(_, reply)| !reply.is_closed());
        waiting.pop_front()
    }

    fn stored(&self, stored: StoredDocument, sent: Timestamp, received: Timestamp) {
        let ours = i128::from(sent.as_micros() + received.since(sent).0 / 2);
        let ahead = i64::try_from(i128::from(stored.now.as_micros()) - ours).unwrap_or(0);
        self.latest.send_if_modified(|document| {
            let drifted = document.ahead.abs_diff(ahead) > DRIFT;
            let moved = document.origin != stored.origin;
            if document.heard && document.epoch == stored.epoch && !drifted && !moved {
                return false;
            }
            document.heard = true;
            document.origin = stored.origin;
            document.ahead = ahead;
            if let Some(text) = stored.text {
                document.epoch = stored.epoch;
                document.text = text.into();
            }
            true
        });
    }
}

/// The task that watches the document over a connection. It ends when this is dropped.
pub(super) struct Watching(tokio::task::JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn watch<L: Link>(
    shared: &Arc<LaneState>,
    link: &Rc<L>,
    connection: &Rc<L::Connection>,
) -> Watching {
    let (shared, link) = (Arc::clone(shared), Rc::clone(link));
    let connection = Rc::clone(connection);
    Watching(tokio::task::spawn_local(async move {
        let listening = async {
            loop {
                let has_document = link.has_document(&connection);
                if has_document {
                    link.listen(&connection).await;
                }
                tokio::time::sleep(if has_document { SUBSCRIBE_AGAIN } else { AGAIN }).await;
            }
        };
        let asking = async {
            loop {
                if link.has_document(&connection) {
                    ask(&shared, &*link, &connection).await;
                    shared.documents.arrived.notified().await;
                } else {
                    tokio::time::sleep(AGAIN).await;
                }
            }
        };
        // Both go on at any time: a subscription that is left half made would keep its turn on the
        // connection, for which a change of the document may wait.
        tokio::join!(listening, asking);
    }))
}

async fn ask<L: Link>(shared: &LaneState, link: &L, connection: &L::Connection) {
    let documents = &shared.documents;
    let (new, reply) = documents.take().unzip();
    let known = {
        let latest = documents.latest.borrow();
        // Zero has a text too: none. It differs from every epoch that is not known.
        if latest.heard { latest.epoch } else { u64::MAX }
    };
    let sent = shared.clock.now();
    let call = link.document(connection, known, new.as_ref());
    let outcome = tokio::time::timeout(WITHIN, call).await;
    let written = match outcome {
        Ok(Ok(stored)) => {
            let written = stored.written;
            documents.stored(stored, sent, shared.clock.now());
            Ok(written)
        }
        Ok(Err(trouble)) => Err(StoreError::from(&trouble)),
        // The lane's own calls find out whether the connection is dead.
        Err(_) => Err(StoreError::Timeout),
    };
    if let Some(reply) = reply {
        // A writer that is gone finds the outcome in the document.
        let _ = reply.send(written);
    }
}
