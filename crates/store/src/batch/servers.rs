//! The servers of one store: one with all buckets, or the masters of a cluster with a part each.
//!
//! Every server has its own queue, lane, circuit breaker and connections, so a server that is lost,
//! frozen or slow affects only its own buckets. The server of a bucket can change at any time:
//! requests that wait for the old one are handed over, and those in flight follow its redirection.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::counters::Health;
use super::{LaneState, Wants};
use crate::audit::Finding;
use crate::wire_form::{Name, Names};
use crate::{Deadline, StoreError};
use tollgate_limit::{Draw, Settlement};

/// No server has the slot.
const UNOWNED: u16 = u16::MAX;

#[derive(Debug)]
pub(crate) struct Servers {
    /// The only server, or the part that the servers of a cluster share.
    pub(crate) common: Arc<LaneState>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    One(Arc<LaneState>),
    Several(fn(&Name) -> u16, Arc<ArcSwap<Parts>>),
}

#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) servers: Vec<Arc<LaneState>>,
    /// The index of each slot's server; empty: not known yet.
    pub(crate) owners: Vec<u16>,
}

impl Parts {
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners
            .get(usize::from(slot))
            .filter(|owner| **owner != UNOWNED)
            .map(|owner| usize::from(*owner))
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.owners.is_empty() && !self.owners.contains(&UNOWNED)
    }

    fn server(&self, slot: u16) -> Option<&Arc<LaneState>> {
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
    pub(crate) fn one(shared: Arc<LaneState>) -> Self {
        Self {
            common: shared.clone(),
            kind: Kind::One(shared),
        }
    }

    /// A store on several servers; the caller keeps `parts` up to date.
    pub(crate) fn several(
        common: Arc<LaneState>,
        slot: fn(&Name) -> u16,
        parts: Arc<ArcSwap<Parts>>,
    ) -> Self {
        let kind = Kind::Several(slot, parts);
        Self { common, kind }
    }

    pub(crate) async fn ask(&self, wants: Wants, deadline: &Deadline) -> Result<Draw, StoreError> {
        let server = self.server_of(&wants)?;
        server.ask_by(wants, false, deadline).await
    }

    /// Looks at the buckets of `wants` without a draw.
    pub(crate) async fn look(&self, wants: Wants, deadline: &Deadline) -> Result<Draw, StoreError> {
        let server = self.server_of(&wants)?;
        server.ask_by(wants, true, deadline).await
    }

    /// The request of `deadline` was refused: what the store turns out to have charged is given back.
    pub(crate) fn forgo(&self, deadline: &Deadline) {
        if let Some(unanswered) = deadline.take_unanswered() {
            unanswered.forgo(&self.common, |refund| {
                self.corrected_at(&refund.name).correct(refund);
            });
        }
    }

    /// The server for `wants`. (If the buckets of a request are on several servers, the first is
    /// used, and reports the error.)
    fn server_of(&self, wants: &Wants) -> Result<Arc<LaneState>, StoreError> {
        match (&self.kind, wants.first()) {
            (_, Some(wanted)) => self.server(&wanted.name),
            (Kind::One(server), None) => Ok(server.clone()),
            // A request without claims: any server can respond.
            (Kind::Several(_, parts), None) => {
                let any = parts.load().servers.first().cloned();
                any.ok_or_else(|| self.common.unavailable())
            }
        }
    }

    fn server(&self, name: &Name) -> Result<Arc<LaneState>, StoreError> {
        let (slot, parts) = match &self.kind {
            Kind::One(server) => return Ok(server.clone()),
            Kind::Several(slot, parts) => (slot, parts.load()),
        };
        if let Some(server) = parts.server(slot(name)) {
            return Ok(server.clone());
        }
        if parts.servers.is_empty() {
            return Err(self.common.unavailable());
        }
        let why = "no master of the cluster has the slot of this bucket";
        Err(self.common.cannot_ask(why.into()))
    }

    /// Where the corrections of a bucket wait; `common`, while its slot has no server.
    fn corrected_at(&self, name: &Name) -> Arc<LaneState> {
        self.server(name).unwrap_or_else(|_| self.common.clone())
    }

    pub(crate) fn settle(&self, names: &Names, settlements: &[Settlement<'_>]) {
        for one in settlements {
            let (name, shape) = (names.name(one.limit, one.key), names.shape(one.limit));
            self.corrected_at(&name)
                .settle(name, shape, one.change, one.corrects);
        }
    }

    /// Schedules a call for messages about leases of this bucket.
    pub(crate) fn call_for_errands(&self, name: &Name) {
        // Without a server for the slot the messages wait.
        if let Ok(server) = self.server(name) {
            server.call_for_errands();
        }
    }

    pub(crate) fn check_up(&self, name: &Name) -> Result<(), StoreError> {
        self.server(name)?.check_up()
    }

    pub(crate) fn let_go(&self, hashes: &[u128]) {
        let Some(leases) = &self.common.leases else {
            return;
        };
        hashes.iter().for_each(|hash| leases.let_go(*hash));
        for server in self.all() {
            server.call_for_errands();
        }
    }

    fn all(&self) -> Vec<Arc<LaneState>> {
        match &self.kind {
            Kind::One(server) => vec![server.clone()],
            Kind::Several(_, parts) => parts.load().servers.clone(),
        }
    }

    fn healths(&self) -> Vec<Health> {
        let all = self.all().into_iter();
        all.map(|server| server.health()).collect()
    }

    /// Waits until a connection is established; for a cluster, until every master was tried and one
    /// responds. The caller adds a timeout.
    pub(crate) async fn connected(&self) {
        let connected = || {
            let healths = self.healths();
            healths.iter().any(|health| health.up) && healths.iter().all(Health::is_known)
        };
        self.common.connected_once(connected).await;
    }

    /// The store's health: it is up while one of its servers is.
    pub(crate) fn health(&self) -> Health {
        let all = self.all();
        if matches!(self.kind, Kind::One(_)) || all.is_empty() {
            return self.common.health();
        }
        let healths: Vec<_> = all.iter().map(|server| server.health()).collect();
        let words = |(server, health): (&Arc<LaneState>, &Health)| {
            let name = server.server().unwrap_or_default();
            format!("{name}: {}", health.last_error)
        };
        let down = all.iter().zip(&healths).filter(|(_, health)| !health.up);
        let down: Vec<String> = down.map(words).collect();
        let mut errors = healths.into_iter().map(|health| health.last_error);
        let last_error = match down.as_slice() {
            [] => errors.find(|error| !error.is_empty()).unwrap_or_default(),
            down => down.join("; "),
        };
        Health {
            up: down.len() < all.len(),
            servers: all.len(),
            down: down.len(),
            last_error,
        }
    }

    /// Waits until each server was connected or has failed. The caller adds a timeout.
    pub(crate) async fn tried(&self) {
        let tried = || match self.healths().as_slice() {
            [] => self.common.health().is_known(),
            healths => healths.iter().all(Health::is_known),
        };
        self.common.connected_once(tried).await;
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let all = self.all().into_iter();
        all.flat_map(|server| server.findings()).collect()
    }

    /// Sets whether the store has limits of a day or longer, as of the next audit.
    pub(crate) fn mind_long_quotas(&self, long: bool) {
        self.common.mind_long_quotas(long);
        for server in self.all() {
            server.mind_long_quotas(long);
        }
    }

    /// Audits every server again that responds, or the first that does; the caller adds a timeout.
    pub(crate) async fn audit_again(&self) {
        let all = self.all();
        let is_up = |server: &&Arc<LaneState>| server.health().up;
        let up: Vec<_> = all.iter().filter(is_up).collect();
        let asked = if up.is_empty() {
            all.iter().collect()
        } else {
            up
        };
        if asked.is_empty() {
            return std::future::pending().await;
        }
        let audits = asked.into_iter().map(|server| server.audit_again());
        super::each(audits, |()| {}).await;
    }
}

/// Moves what waits in `from` for buckets that are now on other servers to those servers.
pub(crate) fn hand_over(from: &LaneState, parts: &Parts, slot: fn(&Name) -> u16) {
    let (asks, corrections) = from.take_moved();
    for ask in asks {
        let first = ask.wants.first();
        match first.and_then(|wanted| parts.server(slot(&wanted.name))) {
            Some(server) => server.take_over(ask),
            None => super::answer(ask, Err(from.unavailable())),
        }
    }
    for correction in corrections {
        match parts.server(slot(&correction.name)) {
            Some(server) => server.correct(correction),
            None => from.correct(correction),
        }
    }
}
