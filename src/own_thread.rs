//! Threads that work beside the workers and end with their owner.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::watch;

/// A thread with a runtime of its own. When this is dropped, the thread stops and is awaited.
#[derive(Debug)]
pub(crate) struct OwnThread {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl OwnThread {
    /// Runs `work` on a thread of this name. It ends soon after its argument becomes `true`.
    pub(crate) fn start<F: Future>(
        name: &str,
        work: impl FnOnce(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async { work(stopped).await });
                // What hangs, such as a reload, must not delay the end of the process.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has already been logged by its thread.
            let _ = thread.join();
        }
    }
}
