//! `/api/v1/events`: what changes, as Server-Sent Events.
//!
//! Every event has a number, and the last ones are kept, so that a reader who was away goes on
//! where it stopped. Readers are few, and one that does not keep up is disconnected. What changes
//! by itself (refusals, the store, upstreams) is found by comparison (`watch`), and only while
//! there is a reader.

pub(in crate::admin) mod changes;
mod ring;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use crate::moments::moment;
use ring::Ring;
pub(super) use stream::respond;
use tollgate_store::clock::Clock;
pub(super) use watch::watch;

/// The events of a gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// Distinguishes the numbers of this process from those of another one.
    process: String,
    state: Mutex<State>,
    readers: tokio::sync::watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    ring: Ring,
    readers: Vec<Reader>,
    forwards: Vec<Forward>,
    next_reader: u64,
    figures: Option<Arc<Message>>,
    /// The number of the first event of the time for which changes have been looked for without a
    /// break; `None`: they are not looked for.
    unbroken_since: Option<u64>,
}

#[derive(Debug)]
struct Reader {
    number: u64,
    messages: mpsc::Sender<Arc<Message>>,
    cut: Arc<Notify>,
}

/// Takes each event as it happens. It must not wait.
struct Forward(Box<dyn Fn(&Message) + Send + Sync>);

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forward(..)")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Hello,
    Figures,
    RefusalsBegan,
    RefusalsEnded,
    /// A key has used four fifths of its units.
    Near,
    /// A key has used a percentage of its units that the file names.
    Threshold,
    /// More keys changed at once than are told one by one.
    Omitted,
    StoreDown,
    StoreUp,
    /// A server of an upstream gets no requests.
    UpstreamOut,
    /// A server of an upstream gets requests again.
    UpstreamBack,
    /// A configuration was put in force, or refused.
    Reload,
    Reset,
    /// An operator gave a key other numbers for a time.
    OverrideSet,
    /// That time ended, or an operator ended it.
    OverrideEnded,
}

impl Kind {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Figures => "figures",
            Self::RefusalsBegan => "refusals_began",
            Self::RefusalsEnded => "refusals_ended",
            Self::Near => "near",
            Self::Threshold => "threshold",
            Self::Omitted => "omitted",
            Self::StoreDown => "store_down",
            Self::StoreUp => "store_up",
            Self::UpstreamOut => "upstream_out",
            Self::UpstreamBack => "upstream_back",
            Self::Reload => "reload",
            Self::Reset => "reset",
            Self::OverrideSet => "override_set",
            Self::OverrideEnded => "override_ended",
        }
    }
}

#[derive(Debug)]
pub struct Message {
    pub kind: Kind,
    wire: Bytes,
    /// The part of it that is the JSON document.
    data: std::ops::Range<usize>,
}

impl Message {
    fn new(kind: Kind, id: Option<&str>, data: &str) -> Self {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        let head = format!("{id}event: {}\ndata: ", kind.label());
        let data_at = head.len()..head.len() + data.len();
        Self {
            kind,
            wire: Bytes::from(head + data + "\n\n"),
            data: data_at,
        }
    }

    /// Its id; `None`: it is not kept.
    pub fn id(&self) -> Option<&str> {
        let rest = self.wire.strip_prefix(b"id: ")?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    pub fn data(&self) -> Bytes {
        self.wire.slice(self.data.clone())
    }
}

#[derive(Serialize)]
struct Document<'d, T> {
    format: u32,
    at: String,
    #[serde(flatten)]
    details: &'d T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

#[derive(Debug)]
pub struct Subscription {
    events: Events,
    number: u64,
    kept: std::vec::IntoIter<Arc<Message>>,
    messages: mpsc::Receiver<Arc<Message>>,
}

impl Events {
    pub fn new(clock: Clock) -> Self {
        let state = State::default();
        Self(Arc::new(Shared {
            clock,
            process: format!("{:08x}", fastrand::u32(..)),
            state: Mutex::new(state),
            readers: tokio::sync::watch::Sender::new(0),
        }))
    }

    /// Tells all readers what happened. `details` are the members of the document beside `format`
    /// and `at`: a structure or a map.
    pub fn emit(&self, kind: Kind, details: &impl Serialize) {
        let data = self.document(details);
        let mut state = self.0.state.lock();
        let id = format!("{}-{}", self.0.process, state.ring.next());
        let message = Arc::new(Message::new(kind, Some(&id), &data));
        state.ring.push(Arc::clone(&message));
        self.send(&mut state, &message);
    }

    /// Sends the figures to all readers; they are not kept, because the next ones replace them.
    fn show(&self, figures: &impl Serialize) {
        let data = serde_json::to_string(figures).expect("text and numbers are JSON");
        let message = Arc::new(Message::new(Kind::Figures, None, &data));
        let mut state = self.0.state.lock();
        state.figures = Some(Arc::clone(&message));
        self.send(&mut state, &message);
    }

    fn document(&self, details: &impl Serialize) -> String {
        let document = Document {
            format: FORMAT,
            at: moment(self.0.clock.now()),
            details,
        };
        serde_json::to_string(&document).expect("text and numbers are JSON")
    }

    fn send(&self, state: &mut State, message: &Arc<Message>) {
        state.forwards.iter().for_each(|forward| forward.0(message));
        state.readers.retain(|reader| {
            let sent = reader.messages.try_send(Arc::clone(message)).is_ok();
            if !sent {
                reader.cut.notify_one();
            }
            sent
        });
        self.count_readers(state);
    }

    fn count_readers(&self, state: &State) {
        let count = state.readers.len() + state.forwards.len();
        self.0
            .readers
            .send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    /// The messages from now on, after those that followed the event with the id `last`, if they
    /// are kept. `cut` is notified when the reader does not keep up; its messages end then.
    pub fn subscribe(&self, last: Option<&str>, cut: Arc<Notify>) -> Result<Subscription, TooMany> {
        let mut state = self.0.state.lock();
        if state.readers.len() >= READERS_MAX {
            return Err(TooMany);
        }
        let kept = last.map(|last| {
            let (process, number) = last.split_once('-')?;
            let next = number.parse::<u64>().ok()?.checked_add(1)?;
            let unbroken = state.unbroken_since.is_some_and(|first| first <= next);
            let known = process == self.0.process && unbroken;
            known.then(|| state.ring.since(next)).flatten()
        });
        // Whether events are missing between the last one that the reader has and the next one.
        let missed = matches!(kept, Some(None));
        let version = env!("CARGO_PKG_VERSION");
        let hello = self.document(&json!({ "version": version, "missed": missed }));
        let mut kept = kept.flatten().unwrap_or_default();
        kept.insert(0, Arc::new(Message::new(Kind::Hello, None, &hello)));
        kept.extend(state.figures.clone());
        let (sender, messages) = mpsc::channel(QUEUE);
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.push(Reader {
            number,
            messages: sender,
            cut,
        });
        self.count_readers(&state);
        Ok(Subscription {
            events: self.clone(),
            number,
            kept: kept.into_iter(),
            messages,
        })
    }

    /// Passes every event from now on to `forward`, which must not wait. It counts as a reader, and
    /// takes the place of none.
    pub(super) fn forward(&self, forward: impl Fn(&Message) + Send + Sync + 'static) {
        let mut state = self.0.state.lock();
        state.forwards.push(Forward(Box::new(forward)));
        self.count_readers(&state);
    }

    /// Waits until there is a reader.
    async fn read(&self) {
        let mut readers = self.0.readers.subscribe();
        // The sender is here, so this does not fail.
        let _ = readers.wait_for(|count| *count > 0).await;
    }

    fn readers(&self) -> usize {
        *self.0.readers.borrow()
    }

    fn begin(&self) {
        let mut state = self.0.state.lock();
        state.unbroken_since = Some(state.ring.next());
    }

    /// Changes are not looked for any more.
    fn pause(&self) {
        let mut state = self.0.state.lock();
        (state.unbroken_since, state.figures) = (None, None);
    }
}

impl Subscription {
    /// The next message; `None`: the reader did not keep up.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Arc<Message>>> {
        match self.kept.next() {
            Some(message) => Poll::Ready(Some(message)),
            None => self.messages.poll_recv(context),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.events.0.state.lock();
        state.readers.retain(|reader| reader.number != self.number);
        self.events.count_readers(&state);
    }
}

/// The version of the documents of all messages.
pub(super) const FORMAT: u32 = 1;

pub const READERS_MAX: usize = 16;

/// The messages that wait for one reader, beside what its connection has taken.
const QUEUE: usize = 64;
