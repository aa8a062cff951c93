//! The process that takes a place.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

use super::leave::VERSION;
use super::relay::{self, Relay};
use super::wire::Wire;
use crate::app::StartError;
use crate::app::state_file::{self, Mark};
use tollgate_config::Config;
use tollgate_gateway::gateway::Snapshot;
use tollgate_limiter::Limiter;
use tollgate_net::listener::Inherited;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;

/// The gateway whose place this one takes.
#[derive(Debug)]
pub(in crate::app) struct Predecessor {
    wire: Wire,
    /// It has died: nobody is asked or told any more.
    gone: bool,
}

impl Predecessor {
    /// Takes its listening sockets.
    pub(in crate::app) fn greet(stream: UnixStream) -> Result<(Self, Vec<Inherited>), StartError> {
        let mut wire = Wire::new(stream);
        let sockets = greet(&mut wire).map_err(failed)?;
        Ok((Self { wire, gone: false }, sockets))
    }

    /// Says that everything else stands, and takes its buckets.
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
        // As long as it takes: the other process has its own patience, and ends this one when it is over.
        self.wire.patience(None)?;
        self.wire.send("ready", &Value::Null)?;
        if self.wire.expect("state")?.is_none() {
            return Ok(None);
        }
        Ok(self.wire.receive_descriptors(1)?.pop().map(File::from))
    }

    /// Says that the buckets are here, and waits for the word to serve.
    pub(in crate::app) fn succeed(
        mut self,
        current: Arc<ArcSwap<Snapshot>>,
    ) -> Result<Option<Relay>, StartError> {
        if self.gone {
            return Ok(None);
        }
        let names = relay::names(current.load().limiter.limits());
        self.wire.send("serving", &names).map_err(failed)?;
        if self.wire.expect("go").map_err(failed)?.is_none() {
            // It would have ended this process if it went on serving.
            tracing::warn!("the gateway before this one has died: this one serves");
            return Ok(None);
        }
        Relay::start(self.wire, current, &names)
            .map(Some)
            .map_err(failed)
    }
}

fn greet(wire: &mut Wire) -> io::Result<Vec<Inherited>> {
    let invalid = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words.to_owned());
    wire.patience(Some(HELLO_WITHIN))?;
    let hello = wire.expect("hello")?.ok_or_else(|| invalid("it is gone"))?;
    if hello["version"] != VERSION {
        return Err(invalid(
            "it is of a version that hands over otherwise: restart instead",
        ));
    }
    let mut sockets = Vec::new();
    for one in hello["listeners"].as_array().into_iter().flatten() {
        let (Some(wanted), Some(count)) = (one[0].as_str(), one[1].as_u64()) else {
            return Err(invalid("a listener of no known form"));
        };
        sockets.extend((0..count).map(|_| wanted.to_owned()));
    }
    let descriptors = wire.receive_descriptors(sockets.len())?;
    let inherited = |(wanted, socket): (String, std::os::fd::OwnedFd)| Inherited {
        wanted: Some(wanted),
        socket: socket.into(),
    };
    Ok(sockets
        .into_iter()
        .zip(descriptors)
        .map(inherited)
        .collect())
}

fn failed(error: io::Error) -> StartError {
    StartError::TakeOver(error.to_string())
}

/// It is the first thing that the other process does.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
