//! Hands a running gateway over to a new process: listening sockets, buckets, waiting clients.
//!
//! The old process starts the new one with a socket as its standard input, over which they exchange
//! messages:
//!
//! 1. old: `hello`, with every listening socket as a descriptor. The new process reads its
//!    configuration, takes the sockets it names, binds additional ones and opens its stores:
//!    every step that can fail.
//! 2. new: `ready`. The old process stops accepting, and freezes its local buckets: requests in
//!    progress that have not drawn yet wait, corrections are kept.
//! 3. old: `state`, with two descriptors: the buckets in a block of memory, and a socket for reports
//!    about permits. The new process installs the buckets, and counts the places in flight of the
//!    old one's requests among its own.
//! 4. new: `serving`, with the limits it knows. From here on only the death of a process can make
//!    the handover fail.
//! 5. old: `go`. The new process accepts, including the connections queued in the sockets.
//!
//! The old process then finishes its connections. It still responds to one more request on each,
//! and the response says that the connection closes. Draws and refunds of these requests are sent
//! to the new process over the same socket, so that every bucket has one owner at any time. If the
//! new process lives but does not respond, these requests are refused. Its end makes the old one the
//! owner of the buckets again, by its own copy of them. A place in flight is free when its request ends, or
//! the old process does. The old process keeps the
//! permits of requests that other programs forward, within its drain time; the new one passes their
//! reports on to it.
//!
//! If any step fails before `go`, the old process ends the new one, takes its buckets back and
//! continues to serve; it also ends the new process if a signal stops it before then. If the old
//! process dies instead, the new one has the sockets, and serves.

mod arrive;
mod leave;
mod message;
mod peer;
mod places;
mod relay;
mod reports;
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
    /// The gateway process that it replaces.
    pub predecessor: Option<UnixStream>,
    /// How to start the process again; `None`: not possible.
    pub anew: Option<Anew>,
}

/// How to start the process again, possibly with another version of the program.
#[derive(Clone, Debug)]
pub struct Anew {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, including the one that makes it take over.
    pub arguments: Vec<OsString>,
}
