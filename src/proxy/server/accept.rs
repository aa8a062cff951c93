//! The accept loop: it outlives every error, and lets in no more than the bounds say.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::bounds::{Full, Place};
use super::connection;
use super::io::Plain;
use super::respond::OVERLOADED;
use super::{Event, Handler, Shared};
use crate::proxy::listener::{Address, Listener};
use crate::proxy::timers;
use crate::proxy::tls::ServerTls;
use crate::proxy::worker::{Task, Worker};

/// A listener and what stands behind it.
pub(super) struct Door<H> {
    pub(super) address: Arc<Address>,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Rc<H>,
}

/// Accepts on `socket` until the worker drains.
pub(super) fn open<H: Handler>(socket: Listener, door: Door<H>, worker: &Rc<Worker>) -> io::Result<()> {
    let socket = match socket {
        Listener::Tcp(socket) => Socket::Tcp(tokio::net::TcpListener::from_std(socket)?),
        Listener::Unix(socket) => Socket::Unix(tokio::net::UnixListener::from_std(socket)?),
    };
    let task = worker.task();
    tokio::task::spawn_local(accept(socket, Rc::new(door), task));
    Ok(())
}

enum Socket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

type Accepted = (Plain, Option<std::net::SocketAddr>);

impl Socket {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(socket) => socket.accept().await.map(|(stream, peer)| (Plain::Tcp(stream), Some(peer))),
            Self::Unix(socket) => socket.accept().await.map(|(stream, _)| (Plain::Unix(stream), None)),
        }
    }
}

async fn accept<H: Handler>(socket: Socket, door: Rc<Door<H>>, mut task: Task) {
    let mut failing = false;
    loop {
        let worker = Rc::clone(task.worker());
        let accepted = tokio::select! {
            biased;
            () = &mut task => break,
            () = worker.accepts(false) => {
                // Only a drain or the leave to go on ends the wait.
                tokio::select! {
                    () = &mut task => break,
                    () = worker.accepts(true) => continue,
                }
            }
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                failing = false;
                admit(accepted, &door, &task);
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                door.shared.stats.accept_failures.add();
                door.handler.observe(Event::AcceptFailed);
                if !failing {
                    tracing::warn!(listener = %door.address, %error, "cannot accept connections for now");
                    failing = true;
                }
                // Out of descriptors or memory: what is open must end first; asking at once again would spin.
                tokio::select! {
                    () = &mut task => break,
                    () = timers::pause(PAUSE) => {}
                }
            }
        }
    }
    if task.worker().has_handed_over() {
        return;
    }
    // Closing a socket of a reuseport group resets what it has queued: take that in first.
    while let Ok(Ok(accepted)) = timers::within(Duration::ZERO, socket.accept()).await {
        admit(accepted, &door, &task);
    }
}

fn admit<H: Handler>((stream, peer): Accepted, door: &Rc<Door<H>>, task: &Task) {
    let stats = &door.shared.stats;
    stats.accepted.add();
    let settings = door.shared.settings.load_full();
    let place = Place::take(&door.shared, settings.connections).and_then(|mut place| {
        // Behind the PROXY protocol the address is known only after its header.
        match peer.filter(|_| !settings.proxy_protocol) {
            Some(peer) => place.from(peer.ip(), &settings).map(|()| place),
            None => Ok(place),
        }
    });
    match place {
        Ok(place) => {
            let door = Rc::clone(door);
            let task = task.worker().task();
            tokio::task::spawn_local(connection::serve(stream, peer, door, settings, place, task));
        }
        Err(full) => {
            match full {
                Full::Total => stats.refused_total.add(),
                Full::Address => stats.refused_address.add(),
            }
            door.handler.observe(Event::Refused(full.label()));
            if door.tls.is_none() {
                stream.dismiss(OVERLOADED);
            }
        }
    }
}

/// Errors of the connection that was about to be accepted, not of the listener (accept(2)).
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::PermissionDenied
    )
}

/// How long accepting rests after it failed.
const PAUSE: Duration = Duration::from_millis(100);
