//! The present servers of an upstream: those that the file gives by address, and every address of
//! those that it gives by name. Names are looked up periodically; connections to an address that is
//! gone are closed.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_rustls::TlsConnector;

use super::connect::Connector;
use super::incidents::Incidents;
use super::server::ServerState;
use super::upstream_health::{self, UpstreamHealth};
use super::{ForwardError, balance, probe, tls};
use tollgate_net::timers;
use tollgate_policy::upstream::{Server, ServerAddress, Upstream};

/// An upstream's servers on this worker. The roster is replaced when a name's addresses change.
pub(super) struct Members {
    upstream: Arc<Upstream>,
    tls: Option<TlsConnector>,
    health: UpstreamHealth,
    roster: RefCell<Rc<Roster>>,
    names: Vec<Name>,
    /// Notified when a name was looked up.
    asked: Notify,
}

#[derive(Default)]
pub(super) struct Roster {
    pub(super) servers: Vec<Rc<ServerState>>,
    /// The servers' indices, repeated by weight, for round robin.
    pub(super) turns: Vec<usize>,
}

struct Name {
    index: usize,
    host: String,
    port: u16,
    addresses: RefCell<Vec<SocketAddr>>,
    rounds: Cell<u64>,
    failure: RefCell<Option<String>>,
    incidents: Incidents,
    /// Whether a reload added it to other servers.
    comes: Cell<bool>,
    /// Notified when a request waits for an address.
    wanted: Rc<Notify>,
}

impl Members {
    /// The servers of `upstream`; starts to look up their names.
    pub(super) fn new(
        upstream: &Arc<Upstream>,
        health: &UpstreamHealth,
    ) -> Result<Rc<Self>, ForwardError> {
        let speaks_tls = upstream.servers.iter().any(|server| server.tls.is_some());
        let tls = if speaks_tls {
            let config =
                tls::client_config(&upstream.tls, upstream.http2).map_err(ForwardError::Tls)?;
            Some(TlsConnector::from(config))
        } else {
            None
        };
        health.meet(upstream);
        let servers = upstream.servers.iter().enumerate();
        let names: Vec<Name> = servers
            .filter_map(|(index, server)| Name::of(index, server, &upstream.name))
            .collect();
        for name in &names {
            // Use the last answer of another configuration or worker: the resolver may have failed since.
            name.addresses
                .replace(health.answers.last(&name.host, name.port));
        }
        let members = Self {
            upstream: Arc::clone(upstream),
            tls,
            health: health.clone(),
            roster: RefCell::default(),
            names,
            asked: Notify::new(),
        };
        for server in &upstream.servers {
            // Report a wrong setting now, and not when the name is resolved.
            Connector::new(server, members.tls.as_ref(), upstream)?;
        }
        members.fill()?;
        let members = Rc::new(members);
        for place in 0..members.names.len() {
            tokio::task::spawn_local(look_up(Rc::downgrade(&members), place));
        }
        Ok(members)
    }

    pub(super) fn now(&self) -> Rc<Roster> {
        Rc::clone(&self.roster.borrow())
    }

    /// The present servers; at least one, if there can be one. A name that is still being looked up
    /// delays no request while there are other servers.
    pub(super) async fn roster(&self) -> Result<Rc<Roster>, ForwardError> {
        let roster = self.now();
        if self.names.is_empty() || !roster.servers.is_empty() {
            return Ok(roster);
        }
        let patience = self.upstream.timeouts.connect.into();
        let answered = timers::within(patience, Box::pin(self.answered())).await;
        let roster = self.now();
        if !roster.servers.is_empty() {
            return Ok(roster);
        }
        if answered.is_err() {
            return Err(ForwardError::ConnectTimeout);
        }
        let failure = self
            .names
            .iter()
            .find_map(|name| name.failure.borrow().clone());
        let failure = failure.unwrap_or_else(|| "the name has no address".to_owned());
        Err(ForwardError::Connect(io::Error::new(
            io::ErrorKind::NotFound,
            failure,
        )))
    }

    /// Waits until there is a server, or every name has been looked up: for the first time, or once
    /// more if none had an address.
    async fn answered(&self) {
        let first = self.names.iter().any(|name| name.rounds.get() == 0);
        let before: Vec<u64> = self
            .names
            .iter()
            .map(|name| if first { 0 } else { name.rounds.get() })
            .collect();
        if !first {
            self.names.iter().for_each(|name| name.wanted.notify_one());
        }
        let is_done = || {
            !self.now().servers.is_empty()
                || self
                    .names
                    .iter()
                    .zip(&before)
                    .all(|(name, before)| name.rounds.get() > *before)
        };
        loop {
            let mut asked = std::pin::pin!(self.asked.notified());
            asked.as_mut().enable();
            if is_done() {
                return;
            }
            asked.await;
        }
    }

    /// Handles an answer of the resolver. If it failed or contains no address, the last good answer
    /// stays in use.
    fn resolved(&self, name: &Name, answer: io::Result<Vec<SocketAddr>>) {
        let every = Duration::from(self.upstream.resolve_every);
        if answer.as_ref().map_or(true, Vec::is_empty) {
            self.health
                .answers
                .stays(&name.host, &name.addresses.borrow(), every);
        }
        match answer {
            Ok(mut addresses) => {
                // Resolvers rotate the order of addresses.
                addresses.sort_unstable();
                addresses.dedup();
                name.failure.take();
                if !addresses.is_empty() {
                    self.health.answers.answered(&name.host, &addresses, every);
                }
                if !addresses.is_empty() && *name.addresses.borrow() != addresses {
                    name.addresses.replace(addresses);
                    if let Err(error) = self.fill() {
                        name.failure.replace(Some(error.to_string()));
                    }
                }
            }
            Err(error) => {
                name.incidents
                    .failed("resolve", format!("its name cannot be looked up: {error}"));
                name.failure
                    .replace(Some(format!("{}: {error}", name.host)));
            }
        }
        name.rounds.set(name.rounds.get() + 1);
        self.asked.notify_waiters();
    }

    /// Rebuilds the roster. Servers that stay keep their connections.
    fn fill(&self) -> Result<(), ForwardError> {
        let before = self.now();
        let mut servers = Vec::new();
        for (index, server) in self.upstream.servers.iter().enumerate() {
            let comes = self.health.comes(&self.upstream, server);
            let Some(name) = self.names.iter().find(|name| name.index == index) else {
                servers.push(self.state(&before, index, server, comes)?);
                continue;
            };
            name.comes.set(name.comes.get() || comes);
            let addresses = name.addresses.borrow();
            let found: Vec<Server> = addresses
                .iter()
                .map(|address| at(server, address))
                .collect();
            if found.is_empty() {
                continue;
            }
            // An address that is new for its name starts slowly, except the name's first addresses.
            let known = self.health.resolved(&self.upstream, server, &found);
            for server in &found {
                let comes = known.as_ref().map_or(name.comes.get(), |known| {
                    !known.contains(&upstream_health::name(server))
                });
                servers.push(self.state(&before, index, server, comes)?);
            }
        }
        let weights: Vec<u32> = servers.iter().map(|server| server.server.weight).collect();
        let turns = balance::turns(&weights);
        self.roster.replace(Rc::new(Roster { servers, turns }));
        Ok(())
    }

    fn state(
        &self,
        before: &Roster,
        origin: usize,
        server: &Server,
        comes: bool,
    ) -> Result<Rc<ServerState>, ForwardError> {
        if let Some(known) = before
            .servers
            .iter()
            .find(|known| known.origin == origin && known.server == *server)
        {
            return Ok(Rc::clone(known));
        }
        let record = self.health.record(&self.upstream, server, comes);
        let state = Rc::new(ServerState::new(
            server,
            origin,
            &self.upstream,
            self.tls.as_ref(),
            record,
        )?);
        if let Some(health) = &self.upstream.health {
            tokio::task::spawn_local(probe::run(Rc::downgrade(&state), health.clone()));
        }
        Ok(state)
    }
}

impl Roster {
    /// Returns another address of the name from which the server at `index` was found: not one in
    /// `tried` (one bit each), and not one that is left out while there are others.
    pub(super) fn sibling(&self, index: usize, tried: u64) -> Option<usize> {
        let origin = self.servers[index].origin;
        let is_untried =
            |other: &usize| self.servers[*other].origin == origin && tried & bit(*other) == 0;
        let mut untried = (0..self.servers.len()).filter(is_untried);
        untried
            .clone()
            .find(|&other| self.servers[other].record.is_fit())
            .or_else(|| untried.next())
    }
}

impl Name {
    /// `None` if the server is not given by a name, or if all addresses of the name are this
    /// machine: those are one server, which listens on one of them or on all.
    fn of(index: usize, server: &Server, upstream: &Arc<str>) -> Option<Self> {
        let ServerAddress::Tcp(host, port) = &server.address else {
            return None;
        };
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        if is_address || host == "localhost" {
            return None;
        }
        Some(Self {
            index,
            host: host.clone(),
            port: *port,
            addresses: RefCell::default(),
            rounds: Cell::new(0),
            failure: RefCell::default(),
            incidents: Incidents::new(upstream, upstream_health::name(server)),
            comes: Cell::new(false),
            wanted: Rc::default(),
        })
    }
}

fn at(server: &Server, address: &SocketAddr) -> Server {
    Server {
        address: ServerAddress::Tcp(address.ip().to_string(), address.port()),
        ..server.clone()
    }
}

/// Looks a name up periodically while its upstream is in use; one lookup at a time, however long
/// the resolver takes.
async fn look_up(members: Weak<Members>, place: usize) {
    loop {
        let Some(held) = members.upgrade() else {
            return;
        };
        let name = &held.names[place];
        let (host, port, wanted) = (name.host.clone(), name.port, Rc::clone(&name.wanted));
        let resolver = held.health.resolver.clone();
        let every = Duration::from(held.upstream.resolve_every);
        drop(held);
        let answer = resolver.ask(&host, port).await;
        let Some(held) = members.upgrade() else {
            return;
        };
        held.resolved(&held.names[place], answer);
        drop(held);
        // A request that finds no address triggers a lookup at once.
        let _ = timers::within(every, wanted.notified()).await;
    }
}

/// The bit of a server in a set of tried ones; beyond 64 servers they share bits, and a retry may
/// repeat a server.
pub(super) const fn bit(index: usize) -> u64 {
    1 << (index % 64)
}
