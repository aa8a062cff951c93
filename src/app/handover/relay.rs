//! Relays the draws of a process that has handed its buckets over to the process that has them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::message::{AskedClaim, AskedSettlement, Drawn, LimitName, Message, SentStanding};
use super::peer::{Other, Peer};
use super::places::Places;
use super::wire::Wire;
use tollgate_gateway::gateway::Snapshot;
use tollgate_limit::{
    Change, Claim, Draw, Limit, Micros, Placement, Settlement, Standing, Timestamp, Verdict,
};
use tollgate_limiter::{Successor, Undrawn};

/// The limits whose buckets are in this process.
pub(super) fn names(limits: &[Arc<Limit>]) -> Vec<LimitName> {
    limits
        .iter()
        .filter(|limit| limit.placement == Placement::Local)
        .map(|limit| LimitName::of(limit))
        .collect()
}

// --- the process that has handed over ---

/// The process that has the buckets.
pub(super) struct Remote {
    limits: Vec<LimitName>,
    peer: Peer,
}

impl Remote {
    /// `limits` are those whose buckets the other process has.
    pub(super) fn start(wire: Wire, limits: Vec<LimitName>) -> io::Result<Self> {
        let peer = Peer::start(Other::New, wire)?;
        Ok(Self { limits, peer })
    }

    fn index(&self, limit: &Limit) -> Option<usize> {
        self.limits.iter().position(|name| name.names(limit))
    }
}

impl Successor for Remote {
    fn has(&self, limit: &Limit) -> bool {
        self.index(limit).is_some()
    }

    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>> {
        let asked: Option<Vec<AskedClaim>> = claims
            .iter()
            .map(|claim| {
                Some(AskedClaim {
                    limit: self.index(claim.limit)?,
                    key: STANDARD_NO_PAD.encode(claim.key),
                    cost: claim.cost,
                    enforced: claim.enforced,
                })
            })
            .collect();
        let count = claims.len();
        let read = move |response| match response {
            Message::Drawn(drawn) if drawn.standings.len() == count => Some(Draw {
                granted: drawn.granted,
                standings: drawn.standings.into_iter().map(Standing::from).collect(),
            }),
            _ => None,
        };
        let drawn = asked.map(|asked| self.peer.ask(Message::Draw(asked), read));
        Box::pin(async move { drawn.ok_or(Undrawn::Silent)?.await })
    }

    fn settle(&self, settlement: &Settlement<'_>) {
        if let Some(limit) = self.index(settlement.limit) {
            self.peer.tell(Message::Settle(AskedSettlement {
                limit,
                key: STANDARD_NO_PAD.encode(settlement.key),
                change: settlement.change,
            }));
        }
    }
}

// --- the process that has taken over ---

/// Serves the draws of the previous process while it lives.
#[derive(Debug)]
pub(in crate::app) struct Relay {
    ended: Arc<AtomicBool>,
    // Ends with the other process, or with this one.
    _thread: JoinHandle<()>,
}

impl Relay {
    pub(super) fn start(
        mut wire: Wire,
        current: Arc<ArcSwap<Snapshot>>,
        names: Vec<LimitName>,
    ) -> io::Result<Self> {
        wire.patience(None)?;
        let mut places = Places::of(&current.load());
        let ended = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                while let Ok(Some(message)) = wire.receive() {
                    match message {
                        Message::Draw(claims) => {
                            let drawn = draw(claims, &names, &current.load(), &mut places);
                            let sent = drawn.map(|drawn| wire.send(&Message::Drawn(drawn)));
                            if !matches!(sent, Some(Ok(()))) {
                                break;
                            }
                        }
                        Message::Settle(settlement) => {
                            settle(settlement, &names, &current.load(), &mut places);
                        }
                        _ => break,
                    }
                }
                // After an invalid message, too, the socket stays open: its end would tell the
                // other process that it has the buckets again, and its requests hold their places.
                wire.wait_for_end();
                places.release(&current.load());
                done.store(true, Ordering::Release);
                tracing::info!("the gateway before this one has ended");
            })?;
        Ok(Self {
            ended,
            _thread: thread,
        })
    }

    /// Whether the previous process has ended.
    pub(in crate::app) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// The present limit with this index: a reload may have changed or removed it.
fn find<'s>(names: &[LimitName], index: usize, snapshot: &'s Snapshot) -> Option<&'s Arc<Limit>> {
    let name = names.get(index)?;
    let limits = snapshot.limiter.limits();
    limits.iter().find(|limit| name.names(limit))
}

/// `None`: the message is invalid.
fn draw(
    claims: Vec<AskedClaim>,
    names: &[LimitName],
    snapshot: &Snapshot,
    places: &mut Places,
) -> Option<Drawn> {
    let decoded = |claim: AskedClaim| {
        let key = STANDARD_NO_PAD.decode(claim.key).ok()?;
        Some((claim.limit, key, claim.cost, claim.enforced))
    };
    let asked: Vec<_> = claims.into_iter().map(decoded).collect::<Option<_>>()?;
    let limits: Vec<Option<&Arc<Limit>>> = asked
        .iter()
        .map(|(index, ..)| find(names, *index, snapshot))
        .collect();
    let claims: Vec<Claim<'_>> = asked
        .iter()
        .zip(&limits)
        .filter_map(|((_, key, cost, enforced), limit)| {
            limit.map(|limit| Claim {
                enforced: *enforced,
                ..Claim::new(limit, key, *cost)
            })
        })
        .collect();
    let draw = snapshot.limiter.draw_for(&claims);
    let mut standings = draw.standings.iter();
    let mut sent = Vec::with_capacity(asked.len());
    for ((_, key, cost, _), limit) in asked.into_iter().zip(limits) {
        // A limit that a reload removed allows everything.
        let none = Standing {
            verdict: Verdict::Allow { wait: Micros::ZERO },
            remaining: 0,
            reset: Micros::ZERO,
            effective: Micros::ZERO,
            window_end: Timestamp::default(),
        };
        let standing = limit.and_then(|_| standings.next().copied());
        let standing = standing.unwrap_or(none);
        if let Some(limit) = limit.filter(|limit| limit.algorithm.holds_places())
            && draw.granted
            && matches!(standing.verdict, Verdict::Allow { .. })
            && cost > 0
        {
            places.take(limit, snapshot.limiter.local().tag(&key), cost);
        }
        sent.push(SentStanding::from(&standing));
    }
    Some(Drawn {
        granted: draw.granted,
        standings: sent,
    })
}

fn settle(
    settlement: AskedSettlement,
    names: &[LimitName],
    snapshot: &Snapshot,
    places: &mut Places,
) -> Option<()> {
    let index = settlement.limit;
    let key = STANDARD_NO_PAD.decode(settlement.key).ok()?;
    let limit = find(names, index, snapshot)?;
    let mut change = settlement.change;
    if let Change::Release { units } = &mut change {
        let tag = snapshot.limiter.local().tag(&key);
        *units = places.free(limit, tag, *units);
    }
    snapshot
        .limiter
        .settle_for(Settlement::new(limit, &key, change));
    Some(())
}
