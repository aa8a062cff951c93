//! The accept loop: accepts connections within the bounds, and continues after every error.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::SocketAddrAny;
#[cfg(target_os = "linux")]
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tollgate_response::Problem;

use super::bounds::ConnectionSlot;
use super::connection;
use super::io::Plain;
use super::socket::Socket;
use super::task_pool::TaskPool;
use super::{Event, Handler, ServerState, Settings};
use crate::listener::{Address, Listener};
use crate::timers;
use crate::tls::ServerTls;
use crate::worker::{Task, Worker};

/// A listener, with the settings and the handler for its connections.
pub(super) struct Acceptor<H> {
    pub(super) address: Arc<Address>,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) shared: Arc<ServerState>,
    pub(super) handler: Rc<H>,
    pub(super) tasks: TaskPool<Caller>,
}

pub(super) struct Caller {
    pub(super) stream: Plain,
    pub(super) peer: Option<SocketAddr>,
    pub(super) settings: Arc<Settings>,
    pub(super) place: ConnectionSlot,
    pub(super) task: Task,
}

/// Serves `caller`, then other connections as they arrive.
async fn attend<H: Handler>(acceptor: Rc<Acceptor<H>>, mut caller: Caller) {
    loop {
        connection::serve(caller, &acceptor).await;
        match acceptor.tasks.next().await {
            Some(next) => caller = next,
            None => return,
        }
    }
}

pub(super) fn open<H: Handler>(
    socket: Listener,
    acceptor: Acceptor<H>,
    worker: &Rc<Worker>,
) -> io::Result<()> {
    let socket = match socket {
        // The runtime's own listener would register each connection before anything is known about
        // it. Its `TcpStream` also reports readiness of a listening socket.
        Listener::Tcp(socket) => {
            AsyncListener::Tcp(TcpStream::from_std(OwnedFd::from(socket).into())?)
        }
        Listener::Unix(socket) => AsyncListener::Unix(tokio::net::UnixListener::from_std(socket)?),
    };
    let task = worker.task();
    tokio::task::spawn_local(accept(socket, Rc::new(acceptor), task));
    Ok(())
}

enum AsyncListener {
    Tcp(TcpStream),
    Unix(tokio::net::UnixListener),
}

struct Accepted {
    stream: Plain,
    peer: Option<SocketAddr>,
}

impl AsyncListener {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Tcp(socket) => loop {
                ready!(socket.poll_read_ready(context))?;
                let accepted = socket.try_io(Interest::READABLE, || Ok(accept_from(socket)?));
                match accepted {
                    Ok((fd, peer)) => {
                        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                        let stream = Plain::Tcp(Socket::fresh(fd));
                        return Poll::Ready(Ok(Accepted { stream, peer }));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            },
            Self::Unix(socket) => socket.poll_accept(context).map_ok(|(stream, _)| Accepted {
                stream: Plain::Unix(stream),
                peer: None,
            }),
        }
    }
}

/// Accepts a connection that does not wait, and that programs started later do not get.
#[cfg(target_os = "linux")]
fn accept_from(socket: &TcpStream) -> rustix::io::Result<(OwnedFd, Option<SocketAddrAny>)> {
    acceptfrom_with(socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

/// Another system takes three calls for it.
#[cfg(not(target_os = "linux"))]
fn accept_from(socket: &TcpStream) -> rustix::io::Result<(OwnedFd, Option<SocketAddrAny>)> {
    let (fd, peer) = rustix::net::acceptfrom(socket)?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok((fd, peer))
}

enum Turn {
    Drain,
    Accepted(io::Result<Accepted>),
}

async fn accept<H: Handler>(socket: AsyncListener, acceptor: Rc<Acceptor<H>>, mut task: Task) {
    let mut failing = false;
    loop {
        let turn = poll_fn(|context| {
            if task.poll_drain(context).is_ready() {
                return Poll::Ready(Turn::Drain);
            }
            ready!(task.worker().poll_open(context));
            socket.poll_accept(context).map(Turn::Accepted)
        });
        match turn.await {
            Turn::Drain => break,
            Turn::Accepted(Ok(accepted)) => {
                failing = false;
                admit(accepted, &acceptor, &task);
            }
            Turn::Accepted(Err(error)) if concerns_one_connection(&error) => {}
            Turn::Accepted(Err(error)) => {
                acceptor.handler.observe(Event::AcceptFailed);
                if !failing {
                    tracing::warn!(listener = %acceptor.address, %error, "cannot accept connections for now");
                    failing = true;
                }
                // Out of descriptors or memory: retrying at once would spin.
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
    // Closing a socket of a reuseport group resets its queued connections, so accept those first.
    while let Ok(Ok(accepted)) = timers::within(
        Duration::ZERO,
        poll_fn(|context| socket.poll_accept(context)),
    )
    .await
    {
        admit(accepted, &acceptor, &task);
    }
}

fn admit<H: Handler>(accepted: Accepted, acceptor: &Rc<Acceptor<H>>, task: &Task) {
    let Accepted { stream, peer } = accepted;
    let settings = acceptor.shared.settings.load_full();
    let place =
        ConnectionSlot::take(&acceptor.shared, settings.connections).and_then(|mut place| {
            // With the PROXY protocol the address is known only after its header.
            match peer.filter(|_| !settings.proxy_protocol) {
                Some(peer) => place.from(peer.ip(), &settings).map(|()| place),
                None => Ok(place),
            }
        });
    match place {
        Ok(place) => {
            let caller = Caller {
                stream,
                peer,
                settings,
                place,
                task: task.worker().task(),
            };
            if let Some(caller) = acceptor.tasks.hand_over(caller) {
                tokio::task::spawn_local(attend(Rc::clone(acceptor), caller));
            }
        }
        Err(full) => {
            acceptor.handler.observe(Event::Refused(full.label()));
            if acceptor.tls.is_none() {
                stream.dismiss(&Problem::TOO_MANY_CONNECTIONS.last_response());
            }
        }
    }
}

/// Whether the error concerns the accepted connection, and not the listener (accept(2)).
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

/// How long accepting pauses after a failure.
const PAUSE: Duration = Duration::from_millis(100);
