//! Hands a running gateway over to a new process: listening sockets, buckets, waiting clients.
//!
//! The old process starts the new one with a socket as its standard input, over which they exchange
//! messages:
//!
//! 1. old: `hello`, with every listening socket as a descriptor. The new process reads its
//!    configuration, takes the sockets it names, binds additional ones and opens its stores:
//!    every step that can fail.
//! 2. new: `ready`. The old process stops accepting, and keeps the corrections of local buckets.
//! 3. old: `state`, with the descriptor of a copy of the buckets in a block of memory. The new process
//!    installs it, and counts the places in flight of the old one's requests among its own.
//! 4. new: `serving`, with the limits it knows. From here on only the death of a process can make
//!    the handover fail.
//! 5. old: `go`. The new process accepts, including the connections queued in the sockets.
//!
//! The old process then finishes its connections by its own buckets. It still responds to one more
//! request on each, and the response says that the connection closes. What requests that drew before
//! turn out to cost, and the places they free, it also sends to the new process over the same socket;
//! nothing is sent back. A place in flight is free when its request ends, or the old process does.
//!
//! If any step fails before `go`, the old process ends the new one, takes its buckets back and
//! continues to serve; it also ends the new process if a signal stops it before then. If the old
//! process dies instead, the new one has the sockets, and serves.

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
pub(super) use leave::Successor;
pub(super) use relay::Relay;

/// What a gateway inherits when it starts.
#[derive(Debug, Default)]
pub struct Origin {
    /// Listening sockets that a service manager holds for it.
    pub sockets: Vec<Inherited>,
    pub predecessor: Option<UnixStream>,
    /// How to start the process again; `None`: not possible.
    pub anew: Option<Anew>,
}

/// How to start the process again, possibly with another version of the program.
#[derive(Clone, Debug)]
pub struct Anew {
    pub program: PathBuf,
    /// Its arguments, including the one that makes it take over.
    pub arguments: Vec<OsString>,
}
