//! The threads of the workers: their start, and the phases that they go through together.

use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

use super::{CURRENT, Drain, Worker};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Serve the existing connections, accept none; the number increases with each hold.
    Hold(u32),
    Serve,
    Drain(Drain),
    Stop,
}

#[derive(Debug)]
pub struct Workers {
    phase: watch::Sender<Phase>,
    /// The last hold, and how many workers have acknowledged it.
    held: watch::Sender<(u32, usize)>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads; each runs `serve` once inside its runtime, then runs the tasks that
    /// it spawned. If one cannot be started, the others are stopped again.
    pub fn start<S>(count: usize, serve: S) -> io::Result<Self>
    where
        S: Fn(&Rc<Worker>) -> io::Result<()> + Clone + Send + 'static,
    {
        let workers = Self::start_held(count, serve)?;
        workers.open();
        Ok(workers)
    }

    /// As [`Workers::start`], but they accept nothing before [`Workers::open`].
    pub fn start_held<S>(count: usize, serve: S) -> io::Result<Self>
    where
        S: Fn(&Rc<Worker>) -> io::Result<()> + Clone + Send + 'static,
    {
        let mut workers = Self {
            phase: watch::Sender::new(Phase::Hold(0)),
            held: watch::Sender::new((0, 0)),
            threads: Vec::with_capacity(count),
        };
        for index in 0..count {
            let phase = workers.phase.subscribe();
            let held = workers.held.clone();
            let serve = serve.clone();
            let (started, start) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || run(index, phase, held, &serve, &started))?;
            workers.threads.push(thread);
            match start.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(io::Error::other("a worker died at its start")),
            }
        }
        Ok(workers)
    }

    pub fn open(&self) {
        self.phase.send_if_modified(|phase| {
            let held = matches!(phase, Phase::Hold(_));
            if held {
                *phase = Phase::Serve;
            }
            held
        });
    }

    /// Makes every worker accept nothing until [`Workers::open`], and waits until each has
    /// acknowledged: synchronous work that a worker was doing is finished then. Blocks the thread;
    /// returns whether all have acknowledged within `patience`.
    pub fn hold(&self, patience: Duration) -> bool {
        let round = self.held.borrow().0.wrapping_add(1);
        self.held.send_replace((round, 0));
        self.phase.send_replace(Phase::Hold(round));
        // A few checks: the workers acknowledge within one turn of their loops.
        let mut left = patience;
        while self.held.borrow().1 < self.threads.len() {
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
            left = left.saturating_sub(LOOK_EVERY);
        }
        true
    }

    pub fn drain(&self, drain: Drain) {
        self.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Serve | Phase::Hold(_));
            if first {
                *phase = Phase::Drain(drain);
            }
            first
        });
    }

    pub fn stop(&self) {
        self.phase.send_replace(Phase::Stop);
    }

    /// Waits until every worker has ended. Blocks the thread.
    pub fn join(mut self) {
        self.join_threads();
    }

    pub fn ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        self.join_threads();
    }
}

fn run<S>(
    index: usize,
    mut phase: watch::Receiver<Phase>,
    held: watch::Sender<(u32, usize)>,
    serve: &S,
    started: &std::sync::mpsc::Sender<io::Result<()>>,
) where
    S: Fn(&Rc<Worker>) -> io::Result<()>,
{
    let runtime = match Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let worker = Rc::new(Worker::new(index));
    CURRENT.set(Some(Rc::clone(&worker)));
    runtime.block_on(async {
        let result = serve(&worker);
        let failed = result.is_err();
        let _ = started.send(result);
        if failed {
            return;
        }
        let mut known = Phase::Hold(0);
        let drain = loop {
            match phase.wait_for(|phase| *phase != known).await.map(|phase| *phase) {
                Ok(Phase::Drain(drain)) => break drain,
                Ok(Phase::Hold(round)) => {
                    known = Phase::Hold(round);
                    worker.hold(true);
                    held.send_modify(|(last, heard)| {
                        if *last == round {
                            *heard += 1;
                        }
                    });
                }
                Ok(Phase::Serve) => {
                    known = Phase::Serve;
                    worker.hold(false);
                }
                Ok(Phase::Stop) | Err(_) => return,
            }
        };
        worker.drain(drain);
        let stop = async {
            let _ = phase.wait_for(|phase| *phase == Phase::Stop).await;
        };
        tokio::select! {
            () = worker.emptied() => {}
            () = tokio::time::sleep(drain.span) => {
                tracing::warn!(left = worker.tasks(), "the drain ran out of time: the rest is cut off");
            }
            () = stop => {}
        }
    });
    CURRENT.set(None);
    // Drops the remaining tasks; a name lookup that hangs blocks a thread and is not awaited.
    runtime.shutdown_background();
}

const LOOK_EVERY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn worker_ends_while_a_name_lookup_hangs() {
        let (release, hangs) = channel::<()>();
        let (report, reports) = channel();
        let lookup = Arc::new(Mutex::new(Some((hangs, report))));
        let workers = Workers::start(1, move |_| {
            let (hangs, report) = lookup.lock().expect("no panic").take().expect("one worker");
            // As the system's resolver is called.
            tokio::task::spawn_blocking(move || {
                let _ = report.send(Err(RecvTimeoutError::Timeout));
                let _ = report.send(hangs.recv_timeout(Duration::from_secs(20)));
            });
            Ok(())
        });
        let workers = workers.expect("a worker");
        reports.recv().expect("it is called").expect_err("so far");
        workers.drain(Drain {
            span: Duration::from_secs(20),
            grace: Duration::ZERO,
            handed_over: false,
        });
        workers.join();
        drop(release);
        let outcome = reports.recv().expect("it ends when it is released");
        assert_eq!(outcome, Err(RecvTimeoutError::Disconnected));
    }
}
