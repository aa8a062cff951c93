//! The old process of a handover.

use std::fs::File;
use std::io::{self, BufWriter, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::Anew;
use super::message::{Hello, Listener, Message, VERSION};
use super::relay::Remote;
use super::wire::Wire;
use crate::app::RunningGateway;
use crate::app::reload::Reloads;

/// The new process of a handover, as far as it can still be given up.
#[derive(Debug, Default)]
pub(in crate::app) struct Successor {
    /// Set from its start until it is about to serve.
    process: Option<Pid>,
    /// Whether this process was told to stop.
    unwanted: bool,
}

impl RunningGateway {
    /// Gives up a handover that is under way, because this process was told to stop. A new process
    /// that is about to serve is left alone.
    pub fn abandon_handover(&self) {
        let mut successor = self.successor.lock();
        successor.unwanted = true;
        if let Some(process) = successor.process {
            // It is not reaped while it is set, so this is still its id.
            let _ = kill_process(process, Signal::KILL);
        }
    }

    /// Starts the program again and hands everything over: listening sockets, local buckets,
    /// waiting clients. Requests in progress continue here; [`RunningGateway::drain`] ends them.
    /// `announce` receives the new process's id when only its death can still make the handover
    /// fail, and this process's id if that happens. Blocks the thread.
    /// The error: why the new process did not take over; then it has ended, and this one serves as before.
    pub fn hand_over(&self, anew: &Anew, announce: &dyn Fn(u32)) -> Result<u32, String> {
        if std::process::id() == 1 {
            return Err(
                "as process 1 its container ends with it: replace the container instead".to_owned(),
            );
        }
        if self.relay.as_ref().is_some_and(|relay| !relay.ended()) {
            return Err("the gateway before this one has not ended yet".to_owned());
        }
        let kept = self.kept.lock();
        if kept.is_empty() {
            return Err("it drains already".to_owned());
        }
        let (here, there) = UnixStream::pair().map_err(|error| error.to_string())?;
        let mut child =
            start(anew, there).map_err(|error| format!("{}: {error}", anew.program.display()))?;
        let pid = child.id();
        tracing::info!(pid, "a new process starts, to take over");
        let outcome = self.converse(Wire::new(here), &kept, &child, announce);
        self.successor.lock().process = None;
        match outcome {
            Ok(()) => {
                self.handed_over.store(true, Ordering::Release);
                Ok(pid)
            }
            Err(error) => {
                let error = self.still_wanted().err().unwrap_or(error);
                Err(self.take_back(&mut child, &error))
            }
        }
    }

    fn converse(
        &self,
        mut wire: Wire,
        kept: &[tollgate_net::listener::ListenerSockets],
        child: &Child,
        announce: &dyn Fn(u32),
    ) -> io::Result<()> {
        self.still_wanted()?.process = Some(Pid::from_child(child));
        let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it served");
        let listeners = kept
            .iter()
            .map(|one| Listener {
                wanted: one.wanted.clone(),
                sockets: one.sockets.len(),
            })
            .collect();
        let descriptors: Vec<_> = kept
            .iter()
            .flat_map(|one| one.sockets.iter().map(AsFd::as_fd))
            .collect();
        wire.patience(Some(READY_WITHIN))?;
        wire.send(&Message::Hello(Hello {
            version: VERSION,
            listeners,
            names: self.core.names.secret(),
        }))?;
        wire.send_descriptors(&descriptors)?;
        wire.expect_sign(&Message::Ready)?.ok_or_else(gone)?;

        // Prevents a reload meanwhile, which would change the limits whose buckets are handed over.
        let _no_reload = self.without_reload()?;
        let snapshot = self.core.gateway.current.load_full();
        snapshot.limiter.begin_handover();
        // After this no worker is executing a draw that began before the handover.
        let workers = self.workers.as_ref().ok_or_else(gone)?;
        if !workers.hold(HELD_WITHIN) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "a worker did not stop accepting",
            ));
        }
        let mut buckets = memory_file()?;
        let mut out = BufWriter::new(&mut buckets);
        let saved = snapshot.limiter.save_for_handover(&mut out);
        saved.map_err(io::Error::other)?;
        out.into_inner().map_err(|error| error.into_error())?;
        buckets.rewind()?;
        wire.patience(Some(SERVING_WITHIN))?;
        wire.send(&Message::State(self.core.overrides.handed_over()))?;
        wire.send_descriptors(&[buckets.as_fd()])?;
        drop(buckets);
        let serving = |message| match message {
            Message::Serving(limits) => Ok(limits),
            other => Err(other),
        };
        let limits = wire.expect(serving)?.ok_or_else(gone)?;
        let remote = Remote::start(wire.again()?, limits)?;
        self.still_wanted()?.process = None;
        // Announce before the new process reports: the service manager accepts messages only from
        // the process it knows.
        announce(child.id());
        wire.send(&Message::Go)?;
        snapshot.limiter.hand_to(Arc::new(remote));
        Ok(())
    }

    /// Waits until no reload is under way.
    fn without_reload(&self) -> io::Result<MutexGuard<'_, Reloads>> {
        let deadline = Instant::now() + RELOADED_WITHIN;
        loop {
            if let Some(reloads) = self.core.reloads.try_lock_for(LOOK_EVERY) {
                return Ok(reloads);
            }
            drop(self.still_wanted()?);
            if Instant::now() >= deadline {
                let words = "a reload is under way";
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
        }
    }

    /// An error if this process was told to stop.
    fn still_wanted(&self) -> io::Result<MutexGuard<'_, Successor>> {
        let successor = self.successor.lock();
        if successor.unwanted {
            return Err(io::Error::other("this process was told to stop"));
        }
        Ok(successor)
    }

    /// Ends the new process, and serves as before.
    fn take_back(&self, child: &mut Child, error: &io::Error) -> String {
        // Done first: while it lives it might conclude that this process has died, and serve.
        let _ = child.kill();
        let ended = child.wait();
        self.core.gateway.current.load().limiter.abandon_handover();
        if let Some(workers) = &self.workers {
            workers.open();
        }
        match ended {
            Ok(status) if status.code().is_some_and(|code| code != 0) => {
                format!("{error} ({status}; it says why)")
            }
            _ => error.to_string(),
        }
    }
}

/// A file in memory, which only those have that get its descriptor.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    Ok(File::from(rustix::fs::memfd_create("tollgate", flags)?))
}

#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    let why = "only Linux has what an upgrade in place needs";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Starts the new process. No copy of its end of the socket stays here, so that its death is noticed.
fn start(anew: &Anew, there: UnixStream) -> io::Result<Child> {
    Command::new(&anew.program)
        .args(&anew.arguments)
        .stdin(Stdio::from(OwnedFd::from(there)))
        // These variables were meant for this process.
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        .spawn()
}

/// The time for the new process to read the configuration and open its stores; this process serves meanwhile.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The time for a reload that is under way to end.
const RELOADED_WITHIN: Duration = Duration::from_secs(5);
/// How often it is checked meanwhile whether this process was told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const HELD_WITHIN: Duration = Duration::from_secs(5);
/// The time for the new process to install the buckets; clients wait meanwhile.
const SERVING_WITHIN: Duration = Duration::from_secs(20);
