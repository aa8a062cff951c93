//! The operations log on standard error: starts, reloads, states of stores, errors; no requests.
//!
//! Logging never blocks: lines are put into a queue, and a thread writes them. Lines that do not
//! fit, because the output is not read, are dropped and counted in the log itself.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

use super::outlet::{Outlet, Progress};
use super::text::push_escaped;
use tollgate_limit::printable::is_deceptive;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For people, with or without colours.
    Human {
        colour: bool,
    },
    Json,
}

/// The running operations log. When dropped, it writes what waits, if the output is read.
#[derive(Debug)]
#[must_use]
pub struct OperationsLog {
    queue: Queue,
    patience: Duration,
}

/// Starts the operations log. `filter` is a level (`info`) or a list of levels by module
/// (`info,tollgate::store=debug`).
pub fn start(style: Style, filter: &str) -> Result<OperationsLog, String> {
    let filter = parse(filter)?;
    let queue = Queue::default();
    let outlet = Outlet::stderr().map_err(|error| error.to_string())?;
    let its = queue.clone();
    let thread = std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || its.write_on(outlet));
    thread.map_err(|error| error.to_string())?;
    let lines = queue.clone();
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(move || Plain(lines.clone()));
    let (done, replace): (_, Replace) = match style {
        Style::Human { colour } => {
            let builder = builder.with_ansi(colour).with_target(false);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            let replace = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.finish().try_init(), Box::new(replace))
        }
        Style::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            let replace = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.finish().try_init(), Box::new(replace))
        }
    };
    done.map_err(|error| error.to_string())?;
    // The first one: a process has one operations log.
    let _ = REPLACE.set(replace);
    Ok(OperationsLog {
        queue,
        patience: LAST_WORDS,
    })
}

/// Replaces the filter of the operations log of this process.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = parse(filter)?;
    let replace = REPLACE.get().ok_or("this process has no operations log")?;
    replace(filter)
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    let parsed = EnvFilter::builder().parse(filter);
    parsed.map_err(|error| error.to_string())
}

type Replace = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// A process has one operations log, so how its filter is replaced is known to the whole process.
static REPLACE: OnceLock<Replace> = OnceLock::new();

impl OperationsLog {
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }
}

impl Drop for OperationsLog {
    fn drop(&mut self) {
        let shared = &*self.queue.shared;
        let mut state = shared.state.lock();
        let idle = |state: &State| state.lines.is_empty() && !state.writing;
        shared
            .progress
            .wait(&shared.written, &mut state, self.patience, idle);
    }
}

/// Lines waiting for the thread that writes them. Clones share it.
#[derive(Clone, Debug, Default)]
struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    woken: Condvar,
    written: Condvar,
    progress: Progress,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    writing: bool,
    dropped: u64,
}

impl Queue {
    fn write_on(&self, mut outlet: Outlet) {
        let shared = &*self.shared;
        loop {
            let (lines, dropped) = {
                let mut state = shared.state.lock();
                state.writing = false;
                shared.written.notify_all();
                shared
                    .woken
                    .wait_while(&mut state, |state| state.lines.is_empty());
                state.writing = true;
                (
                    std::mem::take(&mut state.lines),
                    std::mem::take(&mut state.dropped),
                )
            };
            // A failure to write the operations log cannot be reported anywhere.
            let _ = outlet.write(&lines, &shared.progress);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "messages of the operations log were dropped: its reader was too slow"
                );
            }
        }
    }
}

impl Write for Queue {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.state.lock();
        if state.lines.len() + message.len() > QUEUE_MAX {
            state.dropped += 1;
        } else {
            state.lines.extend_from_slice(message);
            self.shared.woken.notify_one();
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const QUEUE_MAX: usize = 1 << 20;
/// The default time for which the end of the process waits for the last lines.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Escapes what could change how a line is read: some lines contain input from clients.
struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().all(|byte| *byte < 0x7f) {
            return self.0.write(bytes);
        }
        let mut line = Vec::with_capacity(bytes.len() + 32);
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                if is_deceptive(character) {
                    push_escaped(&mut line, character);
                } else {
                    line.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            if !chunk.invalid().is_empty() {
                line.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        self.0.write_all(&line).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_with_controls_is_shown_as_it_was_written() {
        let mut out = Vec::new();
        Plain(&mut out)
            .write_all("a \u{9b}2J \u{202e}b\u{2066}c\u{200f}\u{61c}\u{7f} ü\n".as_bytes())
            .expect("written");
        let expected = "a \\u009b2J \\u202eb\\u2066c\\u200f\\u061c\\u007f ü\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn operations_log_queue_is_bounded_and_counts_what_it_drops() {
        let mut queue = Queue::default();
        let message = [b'x'; 1000];
        for _ in 0..2_000 {
            queue.write_all(&message).expect("it never fails");
        }
        let state = queue.shared.state.lock();
        assert!(state.lines.len() <= QUEUE_MAX);
        assert_eq!(state.lines.len() as u64 / 1000 + state.dropped, 2_000);
    }
}
