//! The thread that checks the files and reloads when they change.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Core;

/// The thread that checks the files; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// `None` if there is no file to check.
    pub(super) fn start(core: &Arc<Core>) -> io::Result<Option<Self>> {
        if core.state.lock().watch.is_empty() {
            return Ok(None);
        }
        let core = Arc::clone(core);
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                    core.look();
                }
            })?;
        Ok(Some(Self {
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been logged by its thread.
            let _ = thread.join();
        }
    }
}

/// How often files are checked.
const WATCH_EVERY: Duration = Duration::from_secs(1);
