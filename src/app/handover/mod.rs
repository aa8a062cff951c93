//! A running gateway leaves its place to a new process: listening sockets, buckets, clients that wait.
//!
//! The old process starts the new one with a socket for its standard input, and they talk over that:
//!
//! 1. old: `hello`, with every listening socket as a descriptor. The new process reads its configuration, takes the
//!    sockets it names, binds those it has besides, opens its stores: everything that can fail.
//! 2. new: `ready`. The old process accepts nothing more, and freezes its local buckets: requests under way that have
//!    not drawn yet wait, corrections are kept.
//! 3. old: `state`, with the buckets in a piece of memory as a descriptor. The new process installs them.
//! 4. new: `serving`, with the limits it knows. Nothing can fail from here on but a process.
//! 5. old: `go`. The new process accepts: what waited in the sockets' queues is its own now.
//!
//! The old process then finishes what it has. Requests that still come on its connections are answered once more, and
//! told that the connection closes; what they draw and give back is asked of the new process over the same socket, so
//! that every bucket has one owner at any time.
//!
//! Whatever goes wrong before `go`, the old process ends the new one, takes its buckets back and serves on. Should the
//! old one die instead, the new one has the sockets, and serves.

mod arrive;
mod leave;
mod message;
mod relay;
mod wire;

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use tollgate_net::listener::Inherited;

pub(super) use arrive::Predecessor;
pub(super) use relay::Relay;

/// What a gateway finds when it starts.
#[derive(Debug, Default)]
pub struct Origin {
    /// Listening sockets that somebody else holds for it: a service manager.
    pub sockets: Vec<Inherited>,
    /// The gateway whose place it takes.
    pub predecessor: Option<UnixStream>,
    /// How the process is started once more; `None`: it cannot be.
    pub anew: Option<Anew>,
}

/// How a process is started once more, with what may be another version of the program.
#[derive(Clone, Debug)]
pub struct Anew {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the word that has it take over is among them.
    pub arguments: Vec<OsString>,
}

/// What the admin listener's socket is handed over as.
pub(super) fn admin_place(listen: &crate::admin::Listen) -> String {
    use crate::admin::Listen;
    match listen {
        Listen::Tcp(address) => format!("admin {address}"),
        Listen::Unix(path) => format!("admin unix:{}", path.display()),
    }
}
