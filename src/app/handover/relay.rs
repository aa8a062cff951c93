//! Draws of a process that has handed its buckets over, made by the one that has them.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::wire::Wire;
use tollgate_gateway::gateway::Snapshot;
use tollgate_limit::{
    Algorithm, Change, Claim, Draw, Limit, Micros, Placement, Role, Settlement, Standing,
    Timestamp, Verdict,
};
use tollgate_limiter::Successor;

/// A limit as both processes know it: by name, whatever its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    name: String,
    tier: Option<String>,
    candidate: bool,
}

impl Name {
    fn is_of(&self, limit: &Limit) -> bool {
        *self.name == *limit.name
            && self.tier.as_deref() == limit.tier.as_deref()
            && self.candidate == (limit.role == Role::Candidate)
    }
}

/// The limits whose buckets are in this process, to be told.
pub(super) fn names(limits: &[Arc<Limit>]) -> Value {
    let local = limits
        .iter()
        .filter(|limit| limit.placement == Placement::Local);
    local
        .map(|limit| {
            json!([
                &*limit.name,
                limit.tier.as_deref(),
                limit.role == Role::Candidate
            ])
        })
        .collect()
}

fn read_names(value: &Value) -> Vec<Name> {
    let one = |value: &Value| {
        let name = value[0].as_str()?.to_owned();
        Some(Name {
            name,
            tier: value[1].as_str().map(str::to_owned),
            candidate: value[2].as_bool()?,
        })
    };
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(one)
        .collect()
}

// --- the process that has handed over ---

/// The process that has the buckets, asked over the socket.
pub(super) struct Remote {
    limits: Vec<Name>,
    jobs: mpsc::Sender<Job>,
}

enum Job {
    Draw(Value, usize, oneshot::Sender<Option<Draw>>),
    Settle(Value),
}

impl Remote {
    /// `names` is what the other process said of its limits.
    pub(super) fn start(wire: Wire, names: &Value) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || ask(wire, &queue))?;
        Ok(Self {
            limits: read_names(names),
            jobs,
        })
    }

    fn index(&self, limit: &Limit) -> Option<usize> {
        self.limits.iter().position(|name| name.is_of(limit))
    }
}

impl Successor for Remote {
    fn has(&self, limit: &Limit) -> bool {
        self.index(limit).is_some()
    }

    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Option<Draw>> + Send + 'a>> {
        let asked = claims.iter().map(|claim| {
            json!([
                self.index(claim.limit),
                STANDARD_NO_PAD.encode(claim.key),
                claim.cost,
                claim.enforced
            ])
        });
        let (reply, answer) = oneshot::channel();
        let sent = self
            .jobs
            .send(Job::Draw(asked.collect(), claims.len(), reply));
        Box::pin(async move {
            sent.ok()?;
            answer.await.ok().flatten()
        })
    }

    fn settle(&self, settlement: &Settlement<'_>) {
        let (kind, units, full_at) = match settlement.change {
            Change::Charge { more } => ("charge", more, 0),
            Change::Refund { units } => ("refund", units, 0),
            Change::Withdraw { units, full_at } => ("withdraw", units, full_at.as_micros()),
            Change::Release { units } => ("release", units, 0),
        };
        let key = STANDARD_NO_PAD.encode(settlement.key);
        let job = json!([self.index(settlement.limit), key, kind, units, full_at]);
        // The other process is gone: its buckets with it.
        let _ = self.jobs.send(Job::Settle(job));
    }
}

/// Asks for one after another; the other process answers from memory.
fn ask(mut wire: Wire, queue: &mpsc::Receiver<Job>) {
    let mut gone = wire.patience(Some(ANSWER_WITHIN)).is_err();
    for job in queue {
        match job {
            Job::Draw(claims, count, reply) => {
                let answer = if gone {
                    None
                } else {
                    exchange(&mut wire, &claims, count)
                };
                gone |= answer.is_none();
                // Nobody waits: its caller has left.
                let _ = reply.send(answer);
            }
            Job::Settle(settlement) if !gone => gone = wire.send("settle", &settlement).is_err(),
            Job::Settle(_) => {}
        }
    }
}

fn exchange(wire: &mut Wire, claims: &Value, count: usize) -> Option<Draw> {
    wire.send("draw", claims).ok()?;
    let answer = wire.expect("drawn").ok()??;
    let standings = answer[1]
        .as_array()?
        .iter()
        .map(read_standing)
        .collect::<Option<_>>()?;
    let draw = Draw {
        granted: answer[0].as_bool()?,
        standings,
    };
    (draw.standings.len() == count).then_some(draw)
}

fn write_standing(standing: &Standing) -> Value {
    let (allowed, micros) = match standing.verdict {
        Verdict::Allow { wait } => (true, Some(wait.0)),
        Verdict::Deny { retry_after } => (false, retry_after.map(|after| after.0)),
    };
    json!([
        allowed,
        micros,
        standing.remaining,
        standing.reset.0,
        standing.effective.0
    ])
}

fn read_standing(value: &Value) -> Option<Standing> {
    let micros = value[1].as_u64().map(Micros);
    let verdict = match value[0].as_bool()? {
        true => Verdict::Allow { wait: micros? },
        false => Verdict::Deny {
            retry_after: micros,
        },
    };
    Some(Standing {
        verdict,
        remaining: value[2].as_u64()?,
        reset: Micros(value[3].as_u64()?),
        effective: Micros(value[4].as_u64()?),
    })
}

// --- the process that has taken over ---

/// Answers the process before this one for as long as it lives.
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
        told: &Value,
    ) -> io::Result<Self> {
        wire.patience(None)?;
        let names = read_names(told);
        let ended = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                let mut places = Places::default();
                while let Ok(Some((kind, value))) = wire.receive() {
                    match kind.as_str() {
                        "draw" => {
                            let answer = draw(&value, &names, &current.load(), &mut places);
                            if answer.is_none_or(|answer| wire.send("drawn", &answer).is_err()) {
                                break;
                            }
                        }
                        "settle" => {
                            settle(&value, &names, &current.load(), &mut places);
                        }
                        _ => break,
                    }
                }
                places.release(&names, &current.load());
                done.store(true, Ordering::Release);
                tracing::info!("the gateway before this one has ended");
            })?;
        Ok(Self {
            ended,
            _thread: thread,
        })
    }

    /// Whether the process before this one is gone.
    pub(in crate::app) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Places in concurrency limits that the other process holds here: it may end without giving them back.
#[derive(Default)]
struct Places(HashMap<(usize, Vec<u8>), u64>);

impl Places {
    fn release(self, names: &[Name], snapshot: &Snapshot) {
        for ((index, key), units) in self.0 {
            if let Some(limit) = find(names, index, snapshot) {
                let change = Change::Release { units };
                snapshot.limiter.settle_for(Settlement {
                    limit,
                    key: &key,
                    change,
                });
            }
        }
    }
}

/// The limit of this number as it is now: a reload may have changed it, or taken it away.
fn find<'s>(names: &[Name], index: usize, snapshot: &'s Snapshot) -> Option<&'s Arc<Limit>> {
    let name = names.get(index)?;
    let is = |limit: &&Arc<Limit>| limit.placement == Placement::Local && name.is_of(limit);
    snapshot.limiter.limits().iter().find(is)
}

/// `None`: it makes no sense.
fn draw(value: &Value, names: &[Name], snapshot: &Snapshot, places: &mut Places) -> Option<Value> {
    let mut asked = Vec::new();
    for one in value.as_array()? {
        let index = usize::try_from(one[0].as_u64()?).ok()?;
        let key = STANDARD_NO_PAD.decode(one[1].as_str()?).ok()?;
        asked.push((index, key, one[2].as_u64()?, one[3].as_bool()?));
    }
    let limits: Vec<Option<&Arc<Limit>>> = asked
        .iter()
        .map(|(index, ..)| find(names, *index, snapshot))
        .collect();
    let claims: Vec<Claim<'_>> = asked
        .iter()
        .zip(&limits)
        .filter_map(|((_, key, cost, enforced), limit)| {
            limit.map(|limit| Claim {
                limit,
                key,
                cost: *cost,
                enforced: *enforced,
            })
        })
        .collect();
    let draw = snapshot.limiter.draw_for(&claims);
    let mut standings = draw.standings.iter();
    let mut answers = Vec::with_capacity(asked.len());
    for ((index, key, cost, _), limit) in asked.into_iter().zip(limits) {
        // A limit that a reload has taken away limits nobody.
        let none = Standing {
            verdict: Verdict::Allow { wait: Micros::ZERO },
            remaining: 0,
            reset: Micros::ZERO,
            effective: Micros::ZERO,
        };
        let standing = if limit.is_some() {
            standings.next().copied().unwrap_or(none)
        } else {
            none
        };
        let holds = limit.is_some_and(|limit| matches!(limit.algorithm, Algorithm::InFlight(_)));
        if draw.granted && holds && matches!(standing.verdict, Verdict::Allow { .. }) && cost > 0 {
            *places.0.entry((index, key)).or_default() += cost;
        }
        answers.push(write_standing(&standing));
    }
    Some(json!([draw.granted, answers]))
}

fn settle(value: &Value, names: &[Name], snapshot: &Snapshot, places: &mut Places) -> Option<()> {
    let index = usize::try_from(value[0].as_u64()?).ok()?;
    let key = STANDARD_NO_PAD.decode(value[1].as_str()?).ok()?;
    let mut units = value[3].as_u64()?;
    let change = match value[2].as_str()? {
        "charge" => Change::Charge { more: units },
        "refund" => Change::Refund { units },
        "withdraw" => Change::Withdraw {
            units,
            full_at: Timestamp::from_micros(value[4].as_u64()?),
        },
        "release" => {
            // A place that was taken before the buckets came here was never counted here.
            let held = places.0.get_mut(&(index, key.clone()))?;
            units = units.min(*held);
            *held -= units;
            if *held == 0 {
                places.0.remove(&(index, key.clone()));
            }
            Change::Release { units }
        }
        _ => return None,
    };
    snapshot.limiter.settle_for(Settlement {
        limit: find(names, index, snapshot)?,
        key: &key,
        change,
    });
    Some(())
}

/// The other process answers from memory: this is for one that is stopped or dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::{read_standing, write_standing};
    use tollgate_limit::{Micros, Standing, Verdict};

    #[test]
    fn a_standing_survives_the_way() {
        for verdict in [
            Verdict::Allow { wait: Micros(7) },
            Verdict::Deny {
                retry_after: Some(Micros(u64::MAX)),
            },
            Verdict::Deny { retry_after: None },
        ] {
            let standing = Standing {
                verdict,
                remaining: u64::MAX,
                reset: Micros(3),
                effective: Micros(4),
            };
            assert_eq!(read_standing(&write_standing(&standing)), Some(standing));
        }
    }
}
