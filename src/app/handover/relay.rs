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
use super::peer::{Other, Peer, Unanswered};
use super::places::Places;
use super::wire::Wire;
use tollgate_gateway::gateway::Snapshot;
use tollgate_limit::{
    Change, Claim, Draw, Limit, Micros, Placement, Settlement, Standing, Timestamp, Verdict,
};
use tollgate_limiter::{Successor, Undrawn, reversal};

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
#[derive(Clone)]
pub(super) struct Remote {
    limits: Arc<[LimitName]>,
    peer: Peer,
}

impl Remote {
    /// `limits` are those whose buckets the other process has.
    pub(super) fn start(wire: Wire, limits: Vec<LimitName>) -> io::Result<Self> {
        let peer = Peer::start(Other::New, wire)?;
        let limits = limits.into();
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
        let owned = |claim: &Claim<'_>| (claim.limit.clone(), claim.key.to_vec(), claim.cost);
        let of: Vec<_> = claims.iter().map(owned).collect();
        let there = self.clone();
        let read = move |response| match response {
            Message::Drawn(drawn) if drawn.standings.len() == of.len() => Some(Untaken {
                draw: Some(Draw {
                    granted: drawn.granted,
                    standings: drawn.standings.into_iter().map(Standing::from).collect(),
                }),
                of,
                there,
            }),
            _ => None,
        };
        let drawn = asked.map(|asked| self.peer.ask(Message::Draw(asked), read));
        Box::pin(async move {
            // Only claims on buckets that the other process has are asked for.
            let mut drawn = drawn.ok_or(Undrawn::Silent)?.await?;
            drawn.draw.take().ok_or(Undrawn::Silent)
        })
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

impl From<Unanswered> for Undrawn {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Silent => Self::Silent,
            Unanswered::Ended => Self::Ended,
        }
    }
}

/// A draw that the other process has made. Its caller may leave before it takes the draw; then the
/// draw is given back there.
struct Untaken {
    draw: Option<Draw>,
    /// The limit, the key and the cost of each claim.
    of: Vec<(Limit, Vec<u8>, u64)>,
    there: Remote,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        let Some(draw) = self.draw.take().filter(|draw| draw.granted) else {
            return;
        };
        for ((limit, key, cost), standing) in self.of.iter().zip(&draw.standings) {
            if let Some(change) = reversal(&Claim::new(limit, key, *cost), standing) {
                self.there.settle(&Settlement::new(limit, key, change));
            }
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use tollgate_limit::{Kind, fixtures};

    /// A caller that leaves before the other process has responded, and one that leaves before it has
    /// read the response.
    #[tokio::test]
    async fn handover_draw_of_a_caller_that_left_is_given_back_to_the_process_that_made_it() {
        let terms = fixtures::terms(Kind::TokenBucket, 5, Micros::from_secs(60));
        let limit = fixtures::limit("each", &terms);
        let claims = [Claim::new(&limit, b"k", 3)];
        let drawn = || {
            let standing = Standing {
                verdict: Verdict::Allow { wait: Micros::ZERO },
                remaining: 2,
                reset: Micros::ZERO,
                effective: Micros::ZERO,
                window_end: Timestamp::default(),
            };
            Message::Drawn(Drawn {
                granted: true,
                standings: vec![SentStanding::from(&standing)],
            })
        };
        let settled = |units| {
            Message::Settle(AskedSettlement {
                limit: 0,
                key: STANDARD_NO_PAD.encode(b"k"),
                change: Change::Refund { units },
            })
        };
        for responds_first in [false, true] {
            let (here, there) = UnixStream::pair().expect("a pair");
            let mut other = Wire::new(there);
            let deadline = std::time::Duration::from_secs(20);
            other.patience(Some(deadline)).expect("a deadline");
            let names = vec![LimitName::of(&limit)];
            let remote = Remote::start(Wire::new(here), names).expect("a thread");
            let next = |other: &mut Wire| other.receive().expect("read");
            let asked = remote.draw(&claims);
            assert!(matches!(next(&mut other), Some(Message::Draw(_))));
            if responds_first {
                other.send(&drawn()).expect("sent");
                // It is sent after the response was received.
                remote.settle(&Settlement::new(&limit, b"k", Change::Refund { units: 1 }));
                assert_eq!(next(&mut other), Some(settled(1)));
                drop(asked);
            } else {
                drop(asked);
                other.send(&drawn()).expect("sent");
            }
            assert_eq!(next(&mut other), Some(settled(3)), "{responds_first}");
            // A draw that its caller has taken stays.
            let asked = remote.draw(&claims);
            assert!(matches!(next(&mut other), Some(Message::Draw(_))));
            other.send(&drawn()).expect("sent");
            assert!(asked.await.expect("a draw").granted);
            drop(remote);
            assert_eq!(next(&mut other), None, "{responds_first}");
        }
    }
}
