//! What the process inherits at its start: sockets of a service manager, the gateway that it
//! replaces, its own name.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use listenfd::ListenFd;

use crate::app::{Anew, Origin};
use tollgate_net::listener::Inherited;

/// `take_over`: standard input is a socket to a running gateway.
pub(super) fn find(take_over: bool) -> io::Result<Origin> {
    let predecessor = match take_over {
        true => Some(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)),
        false => None,
    };
    Ok(Origin {
        sockets: activated()?,
        predecessor,
        anew: anew(),
    })
}

/// The sockets that a service manager holds for this process (sd_listen_fds(3)): `LISTEN_FDS`, `LISTEN_PID`.
fn activated() -> io::Result<Vec<Inherited>> {
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(handed.len());
    for place in 0..handed.len() {
        // A socket of another kind, or one that does not listen, gives an error in the second call.
        let socket = match handed.take_tcp_listener(place) {
            Ok(Some(listener)) => listener.into(),
            _ => match handed.take_unix_listener(place)? {
                Some(listener) => listener.into(),
                None => continue,
            },
        };
        sockets.push(Inherited {
            wanted: None,
            socket,
        });
    }
    Ok(sockets)
}

/// How to start this process again. The path is determined now; when it is used it may contain a
/// new version of the program, as intended.
fn anew() -> Option<Anew> {
    let program = std::env::current_exe().ok()?;
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !arguments.iter().any(|argument| argument == TAKE_OVER) {
        arguments.push(TAKE_OVER.into());
    }
    Some(Anew { program, arguments })
}

const TAKE_OVER: &str = "--take-over";
