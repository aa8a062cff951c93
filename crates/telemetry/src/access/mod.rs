//! The access log: a line per answered request, formatted by the worker that answered it and written by a thread of
//! its own.
//!
//! A record is bytes appended to the worker's buffer. The writer takes the buffers away ten times a second, or sooner
//! when one fills. What does not fit is dropped and counted, never waited for; part of each buffer is kept for
//! refused requests, so that a flood of admitted ones cannot crowd them out. Sampling drops a record before anything
//! is formatted, and never a refused one.

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

pub use record::{Charge, Escaped, Record};

use super::outlet::Progress;
use record::Stamp;

/// How the access log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where it goes.
    pub to: Destination,
    /// How a record looks.
    pub format: Format,
    /// How callers' keys stand in it.
    pub keys: Keys,
    /// How many of 10,000 requests that were not refused are written.
    pub sample: u16,
    /// Whether queries are written: they carry secrets.
    pub query: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            to: Destination::Stdout,
            format: Format::Json,
            keys: Keys::Plain,
            sample: SAMPLE_ALL,
            query: false,
        }
    }
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to; reopened by [`AccessLog::reopen`] after a rotation.
    File(PathBuf),
}

/// How a record looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON object a line.
    Json,
    /// The combined log format of Apache and NGINX.
    Combined,
}

/// How callers' keys stand in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// As a keyed hash: tells callers apart without naming them. With the same secret it is the same after a restart.
    Hashed([u8; 16]),
    /// As they are.
    Plain,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hashed(_) => "Hashed(..)",
            Self::Plain => "Plain",
        })
    }
}

/// The access log of one process. Clones share it. When the last one is dropped the rest is written.
#[derive(Clone, Debug)]
pub struct AccessLog {
    inner: Arc<Inner>,
    /// Joins the writer after the workers have let go.
    _thread: Arc<writer::Joiner>,
}

/// One worker's end of the access log.
#[derive(Debug)]
pub struct AccessWriter {
    log: AccessLog,
    buffer: Arc<Buffer>,
    /// What sampling has saved up, in 10,000ths of a record.
    credit: Cell<u16>,
    stamp: Stamp,
}

impl AccessLog {
    /// Opens the log and starts its writer.
    ///
    /// # Errors
    /// When the file cannot be opened, or no thread can be started.
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

    /// The end that one worker writes to.
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

    /// Opens the file anew by its name: call it after the file was moved away.
    pub fn reopen(&self) {
        self.inner.reopen.store(true, Ordering::Release);
        self.inner.signal.urge();
    }

    /// Records that were dropped: the writer could not keep up, or writing failed.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything recorded so far is written, at most `patience`, and only while somebody takes it. Whether
    /// it is.
    pub fn flush(&self, patience: Duration) -> bool {
        self.inner.signal.flush(patience)
    }
}

impl AccessWriter {
    /// Whether the next request's record is wanted: ask before gathering what goes into it. `refused`: the gateway
    /// itself turned the request away; such a record is always wanted.
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

    /// Whether a record's query is wanted.
    pub fn wants_query(&self) -> bool {
        self.log.inner.options.query
    }

    /// Writes a record down.
    pub fn record(&self, record: &Record<'_>) {
        let inner = &*self.log.inner;
        let mut lines = self.buffer.lines.lock();
        let room = if record.refused {
            BUFFER_MAX
        } else {
            BUFFER_MAX - RESERVED
        };
        if lines.bytes.len() >= room {
            drop(lines);
            inner.dropped.fetch_add(1, Ordering::Relaxed);
            inner.signal.urge();
            return;
        }
        let was = lines.bytes.len();
        match inner.options.format {
            Format::Json => record.json(&mut lines.bytes, &self.stamp, &inner.options.keys),
            Format::Combined => record.combined(&mut lines.bytes, &self.stamp),
        }
        let is = lines.bytes.len();
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

/// One worker's records on their way to the writer. The lock is the worker's own but for the ten times a second when
/// the writer swaps the contents out, so that it is all but never waited for.
#[derive(Debug, Default)]
struct Buffer {
    lines: Mutex<Lines>,
    abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
}

/// How workers wake the writer.
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
    /// Write now.
    urgent: bool,
    /// The last owner has gone: write what is left, and end.
    stop: bool,
    /// Flushes asked for and done.
    asked: u64,
    done: u64,
    /// The writer has ended.
    ended: bool,
    /// Nobody took what was written, and it is not waited for again.
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

    /// Has the writer write what is left, and end; whether it has within `patience`, which is over when nobody takes what
    /// is written.
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

/// [`Options::sample`] of a log that keeps everything.
pub const SAMPLE_ALL: u16 = 10_000;

/// A worker's buffer: at 300 bytes a record some 3,500 of them, a tenth of a second at 35,000 requests/s.
const BUFFER_MAX: usize = 1 << 20;

/// The part of it kept for refused requests.
const RESERVED: usize = BUFFER_MAX / 4;

/// A buffer this full is handed over before its time.
const HAND_OVER: usize = 64 << 10;

/// The longest a record waits for others to be written with.
const GATHER: Duration = Duration::from_millis(100);

/// How long the end of the log waits for what is left to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);
