//! Makes a listening socket, with the options that the connections it accepts inherit.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

#[cfg(target_os = "linux")]
use nix::sys::socket::setsockopt;
#[cfg(target_os = "linux")]
use nix::{setsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// A listening socket, alone or `beside` other sockets of this process on its port.
pub(super) fn tcp(address: SocketAddr, beside: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Remains of closed connections do not keep a port taken, but a listening socket does.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(beside)?;
    if address.is_ipv6() {
        // `[::]` must not shadow a listener on 0.0.0.0: each address must be listed in the file.
        socket.set_only_v6(true)?;
    }
    // Inherited by accepted connections, which saves two system calls for each.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    defer_accept(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Lets the kernel hold a connection until its client has sent something, for a second at most. A
/// request can then be read as soon as its connection is accepted: a new connection takes about a
/// fifth less CPU. Only Linux has that.
#[cfg(target_os = "linux")]
pub(super) fn defer_accept(socket: &Socket) -> io::Result<()> {
    Ok(setsockopt(socket, DeferAccept, &DEFER_SECONDS)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn defer_accept(_: &Socket) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `TCP_DEFER_ACCEPT` (tcp(7)), in seconds, which the kernel rounds to its retransmissions.
    DeferAccept,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_DEFER_ACCEPT,
    u32
);

/// How long a client may send nothing before it is accepted: the least that the kernel knows.
#[cfg(target_os = "linux")]
const DEFER_SECONDS: u32 = 1;

pub(super) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES)
}

pub(super) fn unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file of a process that has ended; a socket in use, and any other file, stay.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is in the way",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
        Err(_) => std::fs::remove_file(path),
    }
}

/// The length of the accept queue per socket; the kernel clamps it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// TCP keepalive: the idle time before probes, their interval and number. A peer that vanished
/// during a long response or a tunnel is detected within 90 seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
