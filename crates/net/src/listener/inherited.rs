//! Sockets that go from one process to the next.

use std::os::fd::OwnedFd;

use socket2::Socket;

use super::Address;

/// A listening socket bound by another process: a service manager, or the process that this one
/// replaces.
#[derive(Debug)]
pub struct Inherited {
    /// The address that its owner was told to use; `None`: ask the socket.
    pub wanted: Option<String>,
    /// The socket.
    pub socket: Socket,
}

impl Inherited {
    /// Its address, in the form of [`Address`].
    pub fn place(&self) -> String {
        let Ok(local) = self.socket.local_addr() else {
            return String::new();
        };
        let unix = || {
            local
                .as_pathname()
                .map(|path| Address::Unix(path.to_path_buf()))
        };
        local
            .as_socket()
            .map(Address::Tcp)
            .or_else(unix)
            .map_or_else(String::new, |address| address.to_string())
    }

    /// Takes the sockets that were bound for `place` out of `all`.
    pub fn take(all: &mut Vec<Self>, place: &str) -> Vec<Socket> {
        let is = |one: &mut Self| one.wanted.clone().unwrap_or_else(|| one.place()) == place;
        all.extract_if(.., is).map(|one| one.socket).collect()
    }
}

/// The sockets of a listener, kept to be handed over.
#[derive(Debug)]
pub struct Kept {
    /// Its address in the file.
    pub wanted: String,
    /// Each socket once.
    pub sockets: Vec<OwnedFd>,
}
