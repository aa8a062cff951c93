//! The thread that writes the access log: swaps full buffers for empty ones and writes them out.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::{Destination, GATHER, HAND_OVER, Inner, Lines};

/// Ends the writer when dropped, after it has written what there is.
#[derive(Debug)]
pub(super) struct Joiner {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Joiner {
    fn drop(&mut self) {
        self.inner.signal.stop();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the writer has already been reported by its thread; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

/// Starts the writer.
pub(super) fn start(inner: Arc<Inner>, sink: Sink) -> io::Result<Joiner> {
    let its = Arc::clone(&inner);
    let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || run(&its, sink))?;
    Ok(Joiner { inner, thread: Mutex::new(Some(thread)) })
}

fn run(inner: &Inner, mut sink: Sink) {
    let mut spare = Lines::default();
    loop {
        let (stop, flushes) = wait(inner);
        if inner.reopen.swap(false, Ordering::AcqRel)
            && let Destination::File(path) = &inner.options.to
        {
            match open_file(path) {
                Ok(file) => sink = Sink::File(file),
                // The old file is better than none.
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "cannot reopen the access log")
                }
            }
        }
        drain(inner, &mut sink, &mut spare);
        inner.signal.state.lock().done = flushes;
        inner.signal.written.notify_all();
        if stop {
            return;
        }
    }
}

/// Waits for something to write, then a little longer for more of it. Whether to end, and the flushes asked for.
fn wait(inner: &Inner) -> (bool, u64) {
    let signal = &inner.signal;
    let mut state = signal.state.lock();
    signal.woken.wait_while(&mut state, |state| !state.pending && !state.urgent && !state.stop);
    signal.woken.wait_while_for(&mut state, |state| !state.urgent && !state.stop, GATHER);
    // Cleared before the buffers are looked at: what is appended from now on signals anew.
    state.pending = false;
    state.urgent = false;
    (state.stop, state.asked)
}

fn drain(inner: &Inner, sink: &mut Sink, spare: &mut Lines) {
    let buffers = inner.buffers.lock().clone();
    for buffer in &buffers {
        let abandoned = buffer.abandoned.load(Ordering::Acquire);
        std::mem::swap(spare, &mut *buffer.lines.lock());
        if let Err(error) = sink.write(&spare.bytes) {
            // No line of its own for every failure: the counter tells how much was lost.
            if inner.dropped.fetch_add(spare.records.max(1), Ordering::Relaxed) == 0 {
                tracing::error!(%error, "cannot write the access log");
            }
        }
        spare.bytes.clear();
        spare.records = 0;
        if spare.bytes.capacity() > 2 * HAND_OVER {
            // A burst is over: its memory goes back.
            spare.bytes = Vec::new();
        }
        if abandoned {
            inner.buffers.lock().retain(|known| !Arc::ptr_eq(known, buffer));
        }
    }
}

/// Where the lines go.
#[derive(Debug)]
pub(super) enum Sink {
    Stdout,
    Stderr,
    File(File),
}

impl Sink {
    pub(super) fn open(to: &Destination) -> io::Result<Self> {
        Ok(match to {
            Destination::Stdout => Self::Stdout,
            Destination::Stderr => Self::Stderr,
            Destination::File(path) => Self::File(open_file(path)?),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Self::Stderr => io::stderr().lock().write_all(bytes),
            Self::File(file) => file.write_all(bytes),
        }
    }
}

/// Appending: several processes, and a rotation by copy and truncate, keep lines whole. A new file is not for everybody to
/// read: addresses and targets stand in it.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}
