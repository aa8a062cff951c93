//! The thread that writes the access log: swaps full buffers for empty ones and writes them out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::{Destination, GATHER, HAND_OVER, Inner, LAST_WORDS};
use crate::outlet::{Lost, Outlet};

/// Ends the writer when dropped, after it has written the rest, if that makes progress.
#[derive(Debug)]
pub(super) struct Joiner {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Joiner {
    fn drop(&mut self) {
        let ended = self.inner.signal.stop(LAST_WORDS);
        let thread = self.thread.lock().take();
        if let (Some(thread), true) = (thread, ended) {
            // The thread has reported its panic; there is nothing left to save.
            let _ = thread.join();
        }
        // Otherwise it blocks on a pipe that is not read, and ends with the process.
    }
}

pub(super) fn start(inner: Arc<Inner>, outlet: Outlet) -> io::Result<Joiner> {
    let its = Arc::clone(&inner);
    let thread = std::thread::Builder::new()
        .name("access-log".to_owned())
        .spawn(move || run(&its, outlet))?;
    Ok(Joiner {
        inner,
        thread: Mutex::new(Some(thread)),
    })
}

fn run(inner: &Inner, mut outlet: Outlet) {
    // However it ends, nothing waits for it afterwards.
    let _ended = Ended(inner);
    let mut spare = Vec::new();
    loop {
        let (stop, flushes) = wait(inner);
        if inner.reopen.swap(false, Ordering::AcqRel)
            && let Destination::File(path) = &inner.options.to
        {
            match Outlet::file(path) {
                Ok(file) => {
                    let before = std::mem::replace(&mut outlet, file);
                    inner
                        .dropped
                        .fetch_add(u64::from(before.is_in_a_line()), Ordering::Relaxed);
                }
                // Keep using the old file.
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "cannot reopen the access log")
                }
            }
        }
        drain(inner, &mut outlet, &mut spare);
        inner.signal.state.lock().done = flushes;
        inner.signal.written.notify_all();
        if stop {
            return;
        }
    }
}

struct Ended<'w>(&'w Inner);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let signal = &self.0.signal;
        signal.state.lock().ended = true;
        signal.written.notify_all();
    }
}

/// Waits for records, then a little longer. Returns whether to end, and the requested flushes.
fn wait(inner: &Inner) -> (bool, u64) {
    let signal = &inner.signal;
    let mut state = signal.state.lock();
    signal.woken.wait_while(&mut state, |state| {
        !state.pending && !state.urgent && !state.stop
    });
    signal
        .woken
        .wait_while_for(&mut state, |state| !state.urgent && !state.stop, GATHER);
    // Cleared before the buffers are read, so that later records signal again.
    state.pending = false;
    state.urgent = false;
    (state.stop, state.asked)
}

fn drain(inner: &Inner, outlet: &mut Outlet, spare: &mut Vec<u8>) {
    let buffers = inner.buffers.lock().clone();
    for buffer in &buffers {
        let abandoned = buffer.abandoned.load(Ordering::Acquire);
        std::mem::swap(spare, &mut *buffer.lines.lock());
        if let Err(Lost { lines, error }) = outlet.write(spare, &inner.signal.progress) {
            // Log only the first failure; the counter shows how many records were lost.
            if inner.dropped.fetch_add(lines, Ordering::Relaxed) == 0 {
                tracing::error!(%error, "cannot write the access log");
            }
        }
        spare.clear();
        if spare.capacity() > 2 * HAND_OVER {
            // Free the memory that a burst needed.
            *spare = Vec::new();
        }
        if abandoned {
            let mut buffers = inner.buffers.lock();
            buffers.retain(|known| !Arc::ptr_eq(known, buffer));
        }
    }
}

pub(super) fn open(to: &Destination) -> io::Result<Outlet> {
    match to {
        Destination::Stdout => Outlet::stdout(),
        Destination::Stderr => Outlet::stderr(),
        Destination::File(path) => Outlet::file(path),
    }
}
