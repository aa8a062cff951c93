//! The new process of a handover.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::message::{Hello, Message, VERSION};
use super::relay::{self, Places, Relay};
use super::wire::Wire;
use crate::app::StartError;
use crate::app::state_file::{self, Mark};
use tollgate_config::Config;
use tollgate_gateway::Snapshot;
use tollgate_limiter::Limiter;
use tollgate_net::listener::Inherited;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_telemetry::access::KeyNames;

/// The gateway process that this one replaces.
#[derive(Debug)]
pub(in crate::app) struct Predecessor {
    wire: Wire,
    names: KeyNames,
    overrides: Option<String>,
    /// Whether it has died; no more messages are exchanged then.
    gone: bool,
}

impl Predecessor {
    pub(in crate::app) fn greet(stream: UnixStream) -> Result<(Self, Vec<Inherited>), StartError> {
        let mut wire = Wire::new(stream);
        let (sockets, names) = greet(&mut wire).map_err(failed)?;
        let predecessor = Self {
            wire,
            names,
            overrides: None,
            gone: false,
        };
        Ok((predecessor, sockets))
    }

    pub(in crate::app) const fn names(&self) -> KeyNames {
        self.names
    }

    /// Its overrides of local limits. `None`: it has died, or `names` does not name their buckets.
    pub(in crate::app) fn overrides(&self, names: KeyNames) -> Option<&str> {
        self.overrides.as_deref().filter(|_| names == self.names)
    }

    /// Reports that every other step is complete, and receives its buckets.
    pub(in crate::app) fn limiter(
        &mut self,
        config: &Config,
        shared: Arc<Backend>,
        clock: &Clock,
    ) -> Result<(Limiter<Backend>, Option<Mark>), StartError> {
        let Some(buckets) = self.buckets().map_err(failed)? else {
            tracing::warn!(
                "the gateway before this one has died: this one serves, without its buckets"
            );
            self.gone = true;
            return state_file::limiter(config, shared, clock);
        };
        let restored = Limiter::restored(
            &config.policy.limits,
            shared,
            clock.clone(),
            BufReader::new(buckets),
        );
        let (limiter, _) =
            restored.map_err(|error| StartError::TakeOver(format!("its buckets: {error}")))?;
        Ok((limiter, Mark::inherit(config)))
    }

    fn buckets(&mut self) -> io::Result<Option<File>> {
        // No timeout: the other process has one, and ends this process when it passes.
        self.wire.patience(None)?;
        self.wire.send(&Message::Ready)?;
        let state = |message| match message {
            Message::State(overrides) => Ok(overrides),
            other => Err(other),
        };
        self.overrides = self.wire.expect(state)?;
        if self.overrides.is_none() {
            return Ok(None);
        }
        let mut descriptors = self.wire.receive_descriptors(1)?;
        Ok(descriptors.pop().map(File::from))
    }

    /// Reports that the buckets are installed, and waits for the permission to serve.
    pub(in crate::app) fn succeed(
        mut self,
        current: Arc<ArcSwap<Snapshot>>,
    ) -> Result<Option<Relay>, StartError> {
        if self.gone {
            return Ok(None);
        }
        let names = relay::names(current.load().limiter.limits());
        let serving = Message::Serving(names.clone());
        self.wire.send(&serving).map_err(failed)?;
        let go = self.wire.expect_sign(&Message::Go).map_err(failed)?;
        if go.is_none() {
            // If it still served, it would have ended this process.
            tracing::warn!("the gateway before this one has died: this one serves");
            let snapshot = current.load();
            Places::of(&snapshot).release(&snapshot);
            return Ok(None);
        }
        Relay::start(self.wire, current, names)
            .map(Some)
            .map_err(failed)
    }
}

fn greet(wire: &mut Wire) -> io::Result<(Vec<Inherited>, KeyNames)> {
    let invalid = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words.to_owned());
    wire.patience(Some(HELLO_WITHIN))?;
    // Another version may send another message first.
    let hello = |message| match message {
        Message::Hello(hello) if hello.version == VERSION => Ok(hello),
        other => Err(other),
    };
    let hello = match wire.expect(hello) {
        Ok(hello) => hello.ok_or_else(|| invalid("it is gone"))?,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(invalid(
                "it is of a version that hands over otherwise: restart instead",
            ));
        }
        Err(error) => return Err(error),
    };
    let Hello {
        listeners, names, ..
    } = hello;
    let mut sockets = Vec::new();
    for one in listeners {
        sockets.extend(std::iter::repeat_n(one.wanted, one.sockets));
    }
    let descriptors = wire.receive_descriptors(sockets.len())?;
    let inherited = |(wanted, socket): (String, std::os::fd::OwnedFd)| Inherited {
        wanted: Some(wanted),
        socket: socket.into(),
    };
    let inherited = sockets.into_iter().zip(descriptors).map(inherited);
    Ok((inherited.collect(), KeyNames::new(names)))
}

fn failed(error: io::Error) -> StartError {
    StartError::TakeOver(error.to_string())
}

/// The other process sends it first of all.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
