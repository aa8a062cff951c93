//! The servers of one store: a single server with all buckets, or the masters of a cluster with a
//! part each.
//!
//! Every server has its own queue, lane, circuit breaker and connections, so a server that is lost,
//! frozen or slow affects only its own buckets. The server of a bucket can change at any time:
//! requests that wait for the old one are handed over, and those in flight follow its redirection.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;

use arc_swap::ArcSwap;

use super::counters::{Counters, Health};
use super::documents::Documents;
use super::{Adjust, Correction, InPlace, Shared, Wants};
use crate::audit::Finding;
use crate::clock::Clock;
use crate::lease::Leases;
use crate::stand_in::StandIn;
use crate::wire_form::{Name, Names, WireForm};
use crate::{Deadline, StoreError};
use tollgate_limit::{Draw, Micros, Settlement};

/// No server has the slot.
const UNOWNED: u16 = u16::MAX;

/// The servers of one store.
#[derive(Debug)]
pub(crate) struct Servers {
    /// The only server, or the part that the servers of a cluster share.
    common: Arc<Shared>,
    /// Lets single requests call the only server directly.
    in_place: Option<Box<dyn InPlace>>,
    cluster: Option<Cluster>,
}

/// Several servers.
#[derive(Debug)]
struct Cluster {
    /// The slot of a bucket.
    slot: fn(&Name) -> u16,
    parts: Arc<ArcSwap<Parts>>,
}

/// The servers and their slots.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) servers: Vec<Arc<Server>>,
    /// The index of each slot's server; empty: not known yet.
    pub(crate) owners: Vec<u16>,
}

/// One of several servers.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) in_place: Box<dyn InPlace>,
}

impl Parts {
    /// The index of the server that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners
            .get(usize::from(slot))
            .filter(|owner| **owner != UNOWNED)
            .map(|owner| usize::from(*owner))
    }

    /// Whether every slot has a server.
    pub(crate) fn is_complete(&self) -> bool {
        !self.owners.is_empty() && !self.owners.contains(&UNOWNED)
    }

    fn server(&self, slot: u16) -> Option<&Arc<Server>> {
        self.servers.get(self.owner(slot)?)
    }

    /// Owners of `slots` slots; each range has the index of its server.
    pub(crate) fn table(
        slots: usize,
        ranges: impl Iterator<Item = (std::ops::RangeInclusive<u16>, usize)>,
    ) -> Vec<u16> {
        let mut owners = vec![UNOWNED; slots];
        for (range, place) in ranges {
            let (from, to) = (usize::from(*range.start()), usize::from(*range.end()));
            if let (Some(owned), Ok(place)) = (owners.get_mut(from..=to), u16::try_from(place)) {
                owned.fill(place);
            }
        }
        owners
    }
}

impl Servers {
    /// A store on one server.
    pub(crate) fn one(server: Arc<Shared>) -> Self {
        Self {
            common: server,
            in_place: None,
            cluster: None,
        }
    }

    /// A store on several servers; the caller keeps `parts` up to date.
    pub(crate) fn several(
        common: Arc<Shared>,
        slot: fn(&Name) -> u16,
        parts: Arc<ArcSwap<Parts>>,
    ) -> Self {
        Self {
            common,
            in_place: None,
            cluster: Some(Cluster { slot, parts }),
        }
    }

    /// Lets single requests call the server directly.
    pub(crate) fn with_calls_in_place(mut self, in_place: Box<dyn InPlace>) -> Self {
        self.in_place = Some(in_place);
        self
    }

    /// Asks for `wants`; a single request uses a call of its own.
    pub(crate) async fn ask_alone(
        &self,
        wants: Wants,
        deadline: &Deadline,
    ) -> Result<Draw, StoreError> {
        if self.cluster.is_none() {
            let in_place = self.in_place.as_deref();
            return self.common.ask_by(in_place, wants, false, deadline).await;
        }
        let server = self.server_of(&wants)?;
        let in_place = Some(&*server.in_place);
        server.shared.ask_by(in_place, wants, false, deadline).await
    }

    /// Asks for `wants` and waits for the response, which arrives by the deadline.
    pub(crate) async fn ask(
        &self,
        wants: Wants,
        peek: bool,
        deadline: &Deadline,
    ) -> Result<Draw, StoreError> {
        if self.cluster.is_none() {
            return self.common.ask_by(None, wants, peek, deadline).await;
        }
        let server = self.server_of(&wants)?;
        server.shared.ask_by(None, wants, peek, deadline).await
    }

    /// The server for `wants`. (If the buckets of a request are on several servers, the first is
    /// used, and reports the error.)
    fn server_of(&self, wants: &Wants) -> Result<Arc<Server>, StoreError> {
        let server = wants.first().map(|wanted| self.server(&wanted.name));
        server.unwrap_or_else(|| {
            // A request without claims: any server can respond.
            let any = self
                .parts()
                .and_then(|parts| parts.servers.first().cloned());
            any.ok_or_else(|| self.common.unavailable())
        })
    }

    /// The server of a bucket in a cluster.
    fn server(&self, name: &Name) -> Result<Arc<Server>, StoreError> {
        let Some(cluster) = &self.cluster else {
            return Err(self.common.unavailable());
        };
        let parts = cluster.parts.load();
        if let Some(server) = parts.server((cluster.slot)(name)) {
            return Ok(server.clone());
        }
        if parts.servers.is_empty() {
            return Err(self.common.unavailable());
        }
        self.common
            .counters
            .unavailable
            .fetch_add(1, Ordering::Relaxed);
        Err(StoreError::Unavailable(
            "no master of the cluster has the slot of this bucket".into(),
        ))
    }

    fn parts(&self) -> Option<Arc<Parts>> {
        self.cluster
            .as_ref()
            .map(|cluster| cluster.parts.load_full())
    }

    /// Queues corrections of earlier grants.
    pub(crate) fn settle(&self, names: &Names, settlements: &[Settlement<'_>]) {
        for settlement in settlements {
            let (name, shape) = (
                names.name(settlement.limit, settlement.key),
                names.shape(settlement.limit),
            );
            if self.cluster.is_none() {
                self.common.settle(name, shape, settlement.change);
                continue;
            }
            match self.server(&name) {
                Ok(server) => server.shared.settle(name, shape, settlement.change),
                // Kept until its slot has a server again.
                Err(_) => self.common.settle(name, shape, settlement.change),
            }
        }
    }

    /// Has a bucket take on the numbers of `shape`, as of the moment that was `ago`.
    pub(crate) fn take_numbers(&self, name: Name, shape: Arc<WireForm>, ago: Micros) {
        let correction = Correction {
            name,
            shape,
            adjust: Adjust::TakeNumbers { ago },
        };
        match self.cluster.as_ref().map(|_| self.server(&name)) {
            Some(Ok(server)) => server.shared.correct(correction),
            None | Some(Err(_)) => self.common.correct(correction),
        }
    }

    /// Schedules a call for messages about leases of this bucket.
    pub(crate) fn call_for_errands(&self, name: &Name) {
        if self.cluster.is_none() {
            return self.common.call_for_errands();
        }
        // Without a server for the slot the messages wait.
        if let Ok(server) = self.server(name) {
            server.shared.call_for_errands();
        }
    }

    /// # Errors
    /// When no server is available for this bucket.
    pub(crate) fn check_up(&self, name: &Name) -> Result<(), StoreError> {
        if self.cluster.is_none() {
            self.common.check_up()
        } else {
            self.server(name)?.shared.check_up()
        }
    }

    /// The leases held here; `None`: this store leases nothing.
    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        self.common.leases.as_ref()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.common.counters
    }

    pub(crate) fn answer_within(&self) -> Micros {
        self.common.answer_within
    }

    /// Forgets what is known of exhausted buckets.
    pub(crate) fn forget_bounds(&self) {
        self.common.bounds.forget();
    }

    /// Returns the leases of these buckets.
    pub(crate) fn let_go(&self, hashes: &[u128]) {
        let Some(leases) = self.leases() else { return };
        hashes.iter().for_each(|hash| leases.let_go(*hash));
        self.all()
            .iter()
            .for_each(|shared| shared.call_for_errands());
    }

    /// The document that all gateways of the store share.
    pub(crate) fn documents(&self) -> &Documents {
        &self.common.documents
    }

    /// Every known server that has a queue of its own.
    fn all(&self) -> Vec<Arc<Shared>> {
        match self.parts() {
            Some(parts) => parts
                .servers
                .iter()
                .map(|server| server.shared.clone())
                .collect(),
            None => vec![self.common.clone()],
        }
    }

    /// Waits until a connection is established; for a cluster, until every master was tried and one
    /// responds. The caller adds a timeout.
    pub(crate) async fn connected(&self) {
        let tried = || {
            let healths: Vec<Health> = self.all().iter().map(|shared| shared.health()).collect();
            healths.iter().any(|health| health.up)
                && healths
                    .iter()
                    .all(|health| health.up || !health.last_error.is_empty())
        };
        self.common.connected_once(tried).await;
    }

    /// The store's health: it is up while one of its servers is.
    pub(crate) fn health(&self) -> Health {
        let Some(parts) = self.parts().filter(|parts| !parts.servers.is_empty()) else {
            return self.common.health();
        };
        let all: Vec<_> = parts
            .servers
            .iter()
            .map(|server| (&server.shared, server.shared.health()))
            .collect();
        let down: Vec<String> = all
            .iter()
            .filter(|(_, health)| !health.up)
            .map(|(shared, health)| {
                format!(
                    "{}: {}",
                    shared.server().unwrap_or_default(),
                    health.last_error
                )
            })
            .collect();
        let last_error = match down.as_slice() {
            [] => all
                .into_iter()
                .map(|(_, health)| health.last_error)
                .find(|error| !error.is_empty())
                .unwrap_or_default(),
            down => down.join("; "),
        };
        Health {
            up: down.len() < parts.servers.len(),
            servers: parts.servers.len(),
            down: down.len(),
            last_error,
        }
    }

    /// How many gateways use the store, counted by heartbeats; zero: not known.
    pub(crate) fn replicas(&self) -> u32 {
        self.common.replicas.most()
    }

    /// Waits until a connection was established or has failed; for a cluster, to every master. The
    /// caller adds a timeout.
    pub(crate) async fn tried(&self) {
        let is_tried = |health: Health| health.up || !health.last_error.is_empty();
        let tried = || {
            let all = self.all();
            if all.is_empty() {
                is_tried(self.common.health())
            } else {
                all.iter().all(|one| is_tried(one.health()))
            }
        };
        self.common.connected_once(tried).await;
    }

    /// The most units that a bucket can have now, if known.
    pub(crate) fn at_most(&self, name: &Name, shape: &Arc<WireForm>) -> Option<u64> {
        self.common
            .bounds
            .at_most(name, shape, self.common.clock.now())
    }

    /// Sets the stand-in for servers that do not respond.
    pub(crate) fn substitute(&self, names: Arc<Names>, stand_in: Weak<dyn StandIn>, counted: bool) {
        self.common.substitute(names, stand_in, counted);
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.common.clock
    }

    /// The findings of the last audits.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.all()
            .iter()
            .flat_map(|shared| shared.findings())
            .collect()
    }

    /// Sets whether the store has limits of a day or longer, as of the next audit.
    pub(crate) fn mind_long_quotas(&self, long: bool) {
        self.common.mind_long_quotas(long);
        for shared in self.all() {
            shared.mind_long_quotas(long);
        }
    }

    /// Audits every server again that responds, or the first that does; the caller adds a timeout.
    pub(crate) async fn audit_again(&self) {
        let all = self.all();
        let up: Vec<_> = all.iter().filter(|shared| shared.health().up).collect();
        let asked = if up.is_empty() {
            all.iter().collect()
        } else {
            up
        };
        let mut audits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> =
            Vec::with_capacity(asked.len());
        for shared in asked {
            audits.push(Box::pin(shared.audit_again()));
        }
        if audits.is_empty() {
            return std::future::pending().await;
        }
        std::future::poll_fn(|context| {
            audits.retain_mut(|audit| audit.as_mut().poll(context).is_pending());
            if audits.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Counts unsent returns of leases as forfeited. Called after [`Servers::close`], when nothing
    /// is sent to the servers any more.
    pub(crate) fn forfeit_untold(&self) {
        if let Some(leases) = self.leases() {
            leases.forfeit_untold();
        }
    }

    /// Returns leases, and stops the lanes after the queued requests have their results.
    pub(crate) fn close(&self) {
        // (`Cluster::keep` closes the servers of a cluster.)
        self.common.close();
    }
}

/// Moves requests and corrections in `from` for buckets that are now on other servers to those
/// servers.
pub(crate) fn hand_over(from: &Shared, parts: &Parts, slot: fn(&Name) -> u16) {
    let (asks, corrections) = from.take_moved();
    for ask in asks {
        let server = ask
            .wants
            .first()
            .and_then(|wanted| parts.server(slot(&wanted.name)));
        match server {
            Some(server) => server.shared.take_over(ask),
            None => super::answer(ask, Err(from.unavailable())),
        }
    }
    for correction in corrections {
        match parts.server(slot(&correction.name)) {
            Some(server) => server.shared.correct(correction),
            None => from.correct(correction),
        }
    }
}
