//! The listening sockets of a gateway: inherited from a service manager or from the gateway before
//! it, or bound anew.

use std::io;
use std::sync::Arc;

use super::handover::Predecessor;
use super::{Origin, StartError, mapped};
use crate::admin;
use tollgate_config::Config;
use tollgate_net::listener::{self, Bound, Inherited, Listen, ListenerSockets};
use tollgate_net::tls::ServerTls;

/// The sockets that a configuration names, and the process that held them before.
pub(super) struct Listeners {
    pub(super) public: Vec<Bound>,
    /// Those over which the gateway decides for other proxies.
    pub(super) deciding: Vec<Bound>,
    pub(super) admin: Option<admin::Door>,
    pub(super) kept: Vec<ListenerSockets>,
    /// The addresses of the sockets that a service manager holds.
    pub(super) activated: Vec<String>,
    pub(super) predecessor: Option<Predecessor>,
}

impl Listeners {
    /// Opens the listeners of `config` for this number of workers. An inherited socket that no
    /// listener names is an error if a service manager holds it, and is closed if a gateway did.
    pub(super) fn open(
        config: &Config,
        tls: Option<&Arc<ServerTls>>,
        workers: usize,
        origin: Origin,
    ) -> Result<Self, StartError> {
        let public = config.server.listen.iter();
        let mut listen: Vec<Listen> = public.map(|one| mapped::listen(one, tls)).collect();
        let publics = listen.len();
        let deciding = config.decide.iter().flat_map(|decide| &decide.listen);
        listen.extend(deciding.map(|one| mapped::listen(&one.listener, None)));
        let mut inherited = origin.sockets;
        let activated = inherited.iter().map(Inherited::place).collect();
        let predecessor = match origin.predecessor {
            None => None,
            Some(stream) => {
                let (predecessor, sockets) = Predecessor::greet(stream)?;
                inherited.extend(sockets);
                Some(predecessor)
            }
        };
        let (mut bound, mut kept) = listener::bind_or_adopt(&listen, workers, &mut inherited)?;
        let deciding = bound.split_off(publics);
        let admin = match &config.admin.listen {
            None => None,
            Some(listen) => {
                let door = admin_door(listen, &mut inherited, &mut kept);
                Some(door.map_err(StartError::admin(listen))?)
            }
        };
        if let (Some(unclaimed), None) = (inherited.first(), &predecessor) {
            return Err(StartError::Unclaimed(unclaimed.place()));
        }
        Ok(Self {
            public: bound,
            deciding,
            admin,
            kept,
            activated,
            predecessor,
        })
    }
}

/// The admin listener's socket: an inherited one, or a new one. It is also kept, to be handed over.
fn admin_door(
    listen: &admin::Listen,
    inherited: &mut Vec<Inherited>,
    kept: &mut Vec<ListenerSockets>,
) -> io::Result<admin::Door> {
    let wanted = format!("admin {}", mapped::listen(listen, None).address);
    // A predecessor names it; a service manager's socket is found by its address.
    let mut sockets = Inherited::take(inherited, &wanted);
    if sockets.is_empty() {
        sockets = Inherited::take(inherited, wanted.trim_start_matches("admin "));
    }
    let door = match sockets.pop() {
        Some(socket) => admin::Door::adopt(socket)?,
        None => admin::Door::bind(listen)?,
    };
    kept.push(ListenerSockets {
        wanted,
        sockets: vec![door.duplicate()?],
    });
    Ok(door)
}
