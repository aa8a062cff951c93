//! What the end-to-end tests are told with: a gateway from inline TOML on free ports, an upstream that records, a
//! client that shows the very bytes.

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod gateway;
pub(crate) mod nginx;
pub(crate) mod peers;
pub(crate) mod upstream;

use std::io::{self, Read};
use std::time::{Duration, Instant};

pub(crate) use client::Connection;
pub(crate) use gateway::Gateway;
pub(crate) use nginx::Nginx;
pub(crate) use peers::Peers;
pub(crate) use upstream::{Reply, Upstream};

/// Reads once. A signal in between is no end: a socket with a timeout reports it.
pub(crate) fn read(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Waits until `holds`, at most [`PATIENCE`]: for what another thread does. It looks again at once, then ever less
/// often.
///
/// # Panics
/// When it does not come to hold; `what` says what was waited for.
#[track_caller]
#[expect(
    clippy::disallowed_methods,
    reason = "the deadline of a test is real time"
)]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// How long a test waits for what must happen: far longer than it takes, since the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
