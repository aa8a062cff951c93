//! Draws for requests with leased limits.

use std::sync::Arc;

use smallvec::SmallVec;

use super::held::{Held, Origin};
use super::{Leases, Ordering};
use crate::batch::{Adjust, Correction, Servers, Wants};
use crate::{Deadline, StoreError};
use tollgate_limit::{Change, Corrects, Draw, Standing, Timestamp};

/// Units taken from a lease for a request that another limit may still refuse. They are put back
/// unless it is granted.
struct Taken<'a> {
    servers: &'a Servers,
    leases: &'a Leases,
    held: Arc<Held>,
    origin: Origin,
    cost: u64,
    kept: bool,
}

impl Taken<'_> {
    /// Leaves the units charged, whatever becomes of the request; returns what refunds them.
    fn keep(&mut self, at: Timestamp) -> Correction {
        self.kept = true;
        let change = Change::Refund { units: self.cost };
        let adjust = Adjust::Change(change, Corrects::draw_of(at));
        Correction::of(self.held.name, Arc::clone(&self.held.shape), adjust)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let (origin, cost) = (self.origin, self.cost);
        if self.held.decided(origin, cost, self.kept, self.leases) {
            self.servers.call_for_errands(&self.held.name);
        }
    }
}

impl Servers {
    /// Draws every claim or none; leased claims use the units held here, if there are enough.
    pub(crate) async fn draw(&self, wants: Wants, deadline: &Deadline) -> Result<Draw, StoreError> {
        match &self.common.leases {
            Some(leases) if wants.iter().any(|wanted| wanted.shape.lease().is_some()) => {
                self.draw_leased(leases, wants, deadline).await
            }
            _ => self.ask(wants, deadline).await,
        }
    }

    async fn draw_leased(
        &self,
        leases: &Arc<Leases>,
        wants: Wants,
        deadline: &Deadline,
    ) -> Result<Draw, StoreError> {
        let apart = leases.apart
            && wants
                .iter()
                .any(|wanted| wanted.name.tag != wants[0].name.tag);
        let alone = wants.len() == 1;
        let mut taken: SmallVec<[Taken<'_>; 2]> = SmallVec::new();
        let mut own: SmallVec<[Option<Standing>; 4]> = SmallVec::new();
        let mut granted = true;
        // Not later than the draw of any claim.
        let mut at = Timestamp::from_micros(u64::MAX);
        for wanted in &wants {
            if wanted.shape.lease().is_none() {
                own.push(None);
                continue;
            }
            let Some(held) = leases.held(wanted) else {
                if apart {
                    return Err(StoreError::Unavailable(
                        "too many buckets are leased".into(),
                    ));
                }
                drop(taken);
                return self.ask(wants, deadline).await;
            };
            held.count(wanted.cost, leases.clock.boot());
            // Read before units are taken, which are of that moment or a later one.
            at = at.min(held.heard_of());
            // A single leased claim is granted here immediately.
            let is_granted = alone && held.take(wanted.cost, &leases.clock).is_some();
            let mut origin = if alone {
                None
            } else {
                held.take_in_hand(wanted.cost, &leases.clock)
            };
            let share = leases.share(&held.terms);
            if held.is_low(leases.clock.boot(), leases.least, share) && held.renew(leases) {
                self.call_for_errands(&held.name);
            }
            if !is_granted && origin.is_none() {
                if !apart {
                    // All claims in one call, as without leases.
                    drop(taken);
                    return self.ask(wants, deadline).await;
                }
                origin = self.wait_for(leases, &held, wanted.cost, deadline).await?;
            }
            let has_units = is_granted || origin.is_some();
            own.push(Some(held.standing(
                wanted.cost,
                has_units,
                leases.clock.boot(),
            )));
            granted &= has_units || !wanted.enforced;
            if let Some(origin) = origin {
                taken.push(Taken {
                    servers: self,
                    leases,
                    held,
                    origin,
                    cost: wanted.cost,
                    kept: false,
                });
            }
        }
        let rest: Wants = wants
            .into_iter()
            .filter(|wanted| wanted.shape.lease().is_none())
            .collect();
        if !granted {
            taken.clear();
        }
        let mut asked = match (rest.is_empty(), granted) {
            (true, _) => Draw {
                granted,
                at,
                ..Draw::default()
            },
            (false, true) => match self.ask(rest, deadline).await {
                Ok(asked) => asked,
                Err(error) => {
                    // If the store may have charged the rest, the whole request counts as charged:
                    // a share that grants it does not owe the leased units either. If it is refused,
                    // they are refunded.
                    if error.may_have_charged() {
                        deadline.keep_leased(taken.iter_mut().map(|one| one.keep(at)).collect());
                    }
                    return Err(error);
                }
            },
            // The other claims are reported too, and not charged.
            (false, false) => self
                .look(rest, deadline)
                .await
                .map_err(StoreError::of_a_look)?,
        };
        granted &= asked.granted;
        for one in &mut taken {
            one.kept = granted;
        }
        if granted {
            leases.counters.grants.fetch_add(1, Ordering::Relaxed);
        }
        let mut others = asked.standings.drain(..);
        let standings = own
            .into_iter()
            .filter_map(|own| own.or_else(|| others.next()))
            .collect();
        Ok(Draw {
            granted,
            standings,
            at: at.min(asked.at),
        })
    }

    /// Gets units of a bucket that cannot share a call with the request's other claims: waits until
    /// a lease has brought them. `None`: the bucket does not have that many units.
    async fn wait_for(
        &self,
        leases: &Arc<Leases>,
        held: &Arc<Held>,
        cost: u64,
        deadline: &Deadline,
    ) -> Result<Option<Origin>, StoreError> {
        let (now, within) = (self.common.clock.now(), self.common.answer_within);
        let left = deadline.of_visit(now, within).since(now);
        let waited = async {
            // Other requests may take the units first; each round serves as many requests as there
            // are units.
            loop {
                if held.is_known_empty(cost, leases.clock.boot()) {
                    return Ok(None);
                }
                self.check_up(&held.name)?;
                let answered = held.wait(cost, leases);
                self.call_for_errands(&held.name);
                if answered.await.is_err() {
                    return Err(StoreError::Unavailable("no lease could be had".into()));
                }
                let origin = held.take_in_hand(cost, &leases.clock);
                if !leases.is_current(held) {
                    leases.retire(held);
                    self.call_for_errands(&held.name);
                }
                if origin.is_some() {
                    return Ok(origin);
                }
            }
        };
        match tokio::time::timeout(left.into(), waited).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let counter = &self.common.counters.timeouts;
                counter.fetch_add(1, Ordering::Relaxed);
                // (The store was asked only for a lease.)
                Err(StoreError::Overdue)
            }
        }
    }
}
