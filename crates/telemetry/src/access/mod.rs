//! The access log: a line per finished request, formatted by its worker, written by a thread.
//!
//! A record is appended to the worker's buffer. The writer collects the buffers ten times a second,
//! or sooner if one fills up. Records that do not fit are dropped and counted; a request never
//! waits. Part of each buffer is reserved for refused requests, so that a flood of admitted ones
//! cannot crowd them out. Sampling drops a record before it is formatted, and never drops a refused one.

mod escape;
mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use siphasher::sip::SipHasher13;

use super::outlet::Progress;
use record::Stamp;
pub use record::{Charge, Record, Usage};
use tollgate_limit::printable::hex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub to: Destination,
    pub format: Format,
    pub keys: Keys,
    pub sample: u16,
    /// Whether queries are written, which may contain secrets.
    pub query: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    Stderr,
    /// A file, appended to; reopened by [`AccessLog::reopen`] after a rotation.
    File(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Combined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    Hashed(KeyNames),
    Plain,
}

/// The access log of one process. When its last clone is dropped, the rest is written.
#[derive(Clone, Debug)]
pub struct AccessLog {
    inner: Arc<Inner>,
    /// Joins the writer after all workers have dropped the log.
    _thread: Arc<writer::Joiner>,
}

#[derive(Debug)]
pub struct AccessWriter {
    log: AccessLog,
    buffer: Arc<Buffer>,
    /// The sampling credit, in 10,000ths of a record.
    credit: Cell<u16>,
    stamp: Stamp,
}

impl AccessLog {
    pub fn open(options: Options) -> io::Result<Self> {
        let outlet = writer::open(&options.to)?;
        let inner = Arc::new(Inner {
            options,
            buffers: Mutex::new(Vec::new()),
            dropped: AtomicU64::new(0),
            reopen: AtomicBool::new(false),
            signal: Signal::default(),
        });
        let thread = writer::start(Arc::clone(&inner), outlet)?;
        Ok(Self {
            inner,
            _thread: Arc::new(thread),
        })
    }

    pub fn writer(&self) -> AccessWriter {
        let buffer = Arc::new(Buffer::default());
        self.inner.buffers.lock().push(Arc::clone(&buffer));
        AccessWriter {
            log: self.clone(),
            buffer,
            credit: Cell::new(0),
            stamp: Stamp::default(),
        }
    }

    /// Reopens the file by its name; to be called after the file was moved away.
    pub fn reopen(&self) {
        self.inner.reopen.store(true, Ordering::Release);
        self.inner.signal.urge();
    }

    /// The number of dropped records: the writer was too slow, or writing failed.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything recorded so far is written, for at most `patience`, and only while
    /// writes make progress. Returns whether it is written.
    pub fn flush(&self, patience: Duration) -> bool {
        self.inner.signal.flush(patience)
    }
}

impl AccessWriter {
    /// Whether the next request's record is wanted; to be called before its contents are gathered.
    /// A request that the gateway itself `refused` is always wanted.
    pub fn enabled(&self, refused: bool) -> bool {
        let sample = self.log.inner.options.sample;
        if refused || sample >= SAMPLE_ALL {
            return true;
        }
        let credit = self.credit.get() + sample;
        if credit >= SAMPLE_ALL {
            self.credit.set(credit - SAMPLE_ALL);
            return true;
        }
        self.credit.set(credit);
        false
    }

    pub fn wants_query(&self) -> bool {
        self.log.inner.options.query
    }

    pub fn record(&self, record: &Record<'_>) {
        let inner = &*self.log.inner;
        let mut lines = self.buffer.lines.lock();
        let room = if record.refused {
            BUFFER_MAX
        } else {
            BUFFER_MAX - RESERVED
        };
        if lines.len() >= room {
            drop(lines);
            inner.dropped.fetch_add(1, Ordering::Relaxed);
            inner.signal.urge();
            return;
        }
        let was = lines.len();
        let Options { format, keys, .. } = &inner.options;
        record.write(&mut lines, *format, &self.stamp, keys);
        let is = lines.len();
        drop(lines);
        if was == 0 {
            inner.signal.pending();
        } else if was < HAND_OVER && is >= HAND_OVER {
            inner.signal.urge();
        }
    }
}

impl Drop for AccessWriter {
    fn drop(&mut self) {
        self.buffer.abandoned.store(true, Ordering::Release);
        self.log.inner.signal.urge();
    }
}

#[derive(Debug)]
struct Inner {
    options: Options,
    buffers: Mutex<Vec<Arc<Buffer>>>,
    dropped: AtomicU64,
    reopen: AtomicBool,
    signal: Signal,
}

/// The pending records of one worker. Only the worker takes its lock, except ten times a second
/// when the writer swaps the contents out, so that it is hardly ever contended.
#[derive(Debug, Default)]
struct Buffer {
    lines: Mutex<Vec<u8>>,
    abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<SignalState>,
    woken: Condvar,
    written: Condvar,
    progress: Progress,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Some buffer is no longer empty: write within [`GATHER`].
    pending: bool,
    urgent: bool,
    /// The last owner has dropped the log: write the rest, and end.
    stop: bool,
    asked: u64,
    done: u64,
    ended: bool,
    /// Whether writing made no progress and is not awaited again.
    given_up: bool,
}

impl Signal {
    fn pending(&self) {
        let mut state = self.state.lock();
        if !state.pending {
            state.pending = true;
            self.woken.notify_one();
        }
    }

    fn urge(&self) {
        let mut state = self.state.lock();
        if !state.urgent {
            state.urgent = true;
            self.woken.notify_one();
        }
    }

    /// Tells the writer to write the rest and to end; returns whether it did within `patience`.
    /// Stops waiting if writing makes no progress.
    fn stop(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.stop = true;
        self.woken.notify_one();
        let patience = if state.given_up {
            Duration::ZERO
        } else {
            patience
        };
        self.progress
            .wait(&self.written, &mut state, patience, |state| state.ended)
    }

    fn flush(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.asked += 1;
        let ticket = state.asked;
        state.urgent = true;
        self.woken.notify_one();
        let done = self
            .progress
            .wait(&self.written, &mut state, patience, |state| {
                state.done >= ticket
            });
        state.given_up |= !done;
        done
    }
}

/// The value of [`Options::sample`] that keeps everything.
pub const SAMPLE_ALL: u16 = 10_000;

/// The size of a worker's buffer: some 3,500 records, a tenth of a second at 35,000 requests/s.
const BUFFER_MAX: usize = 1 << 20;

/// The part of it reserved for refused requests.
const RESERVED: usize = BUFFER_MAX / 4;

/// The fill level at which a buffer is written early.
const HAND_OVER: usize = 64 << 10;

/// The longest time a record waits to be written together with others.
const GATHER: Duration = Duration::from_millis(100);

/// How long closing the log waits for the remaining records.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Makes the names of keys. The same secret gives the same names, in every process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyNames([u8; 16]);

impl KeyNames {
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    pub const fn secret(&self) -> [u8; 16] {
        self.0
    }

    /// The name of the bytes that select a bucket: 16 hexadecimal digits.
    pub fn name(&self, key: &[u8]) -> [u8; 16] {
        hex(SipHasher13::new_with_key(&self.0).hash(key))
    }

    pub fn is_name(text: &str) -> bool {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == 16 && text.bytes().all(is_digit)
    }

    pub fn text(&self, key: &[u8]) -> String {
        self.name(key).iter().copied().map(char::from).collect()
    }
}

impl std::fmt::Debug for KeyNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyNames(..)")
    }
}
