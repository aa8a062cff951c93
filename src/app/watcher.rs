//! The thread that checks the files and reloads when they change.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::Core;

/// The thread that checks the files; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Option<Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// `None` if there is no file to check.
    pub(super) fn start(core: &Arc<Core>) -> io::Result<Option<Self>> {
        if core.reloads.lock().watch.is_empty() {
            return Ok(None);
        }
        let core = Arc::clone(core);
        let (stop, stopped) = channel();
        let (ends, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || {
                let _ends: Sender<()> = ends;
                while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                    core.look();
                }
            })?;
        Ok(Some(Self {
            stop: Some(stop),
            ended: Mutex::new(ended),
            thread: Some(thread),
        }))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop = None;
        // Reading a file may hang, for instance a pipe without a writer. Then the process ends
        // without that thread.
        let hangs = self.ended.get_mut().recv_timeout(END_WITHIN) == Err(RecvTimeoutError::Timeout);
        if let Some(thread) = self.thread.take().filter(|_| !hangs) {
            // A panic has already been logged by its thread.
            let _ = thread.join();
        }
    }
}

/// How long the thread may take to end.
const END_WITHIN: Duration = Duration::from_secs(1);
const WATCH_EVERY: Duration = Duration::from_millis(250);
