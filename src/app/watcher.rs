//! The thread that looks after the files: reloads when they change.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Core;

/// The thread that looks after the files; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// `None` where there is no file to look after.
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
            // If it panicked it has said so; there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}

/// How often files are looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);
