//! Turns a server's response into the results of all requests, by replaying the pure core on the
//! states that the server used.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::assemble::Flight;
use super::flight::Sent;
use super::unanswered::refunds;
use super::{Answer, Ask, Batch, Group, LaneState, Reply, Trouble, Unanswered, answer};
use crate::StoreError;
use crate::bounds::Learned;
use crate::wire_form::StoredState;
use tollgate_limit::draw::{Part, draw_parts};
use tollgate_limit::{Draw, Timestamp};

const UNREADABLE: &str =
    "a bucket's row cannot be read, or is of a kind that this gateway does not know";

pub(super) fn deliver(
    shared: &LaneState,
    mut flight: Flight,
    answer_: Answer,
    sent: Sent,
) -> Result<(), Trouble> {
    let Answer {
        now,
        before: mut states,
        granted,
        leased,
        unreadable,
    } = answer_;
    if states.len() != flight.batch.buckets.len()
        || granted.len() != flight.batch.groups.len()
        || leased.len() != flight.batch.leases.len()
    {
        let odd = || "an answer of another length than the question".into();
        for ask in flight.take_asks() {
            fail(shared, ask, StoreError::Garbled(odd()));
        }
        return Err(Trouble::Corrupt(odd()));
    }
    let Flight {
        batch,
        members,
        peeks,
        pending,
        is_late,
        ..
    } = flight;
    let received = shared.clock.now();
    let mut answers: Vec<(Ask, Result<Draw, StoreError>)> =
        Vec::with_capacity(members.len() + peeks.len());
    for ((group, asks), &granted) in batch.groups.iter().zip(members).zip(&granted) {
        if group.needs_any(&unreadable) {
            let unreadable = |ask| (ask, Err(StoreError::Corrupt(UNREADABLE.into())));
            answers.extend(asks.into_iter().map(unreadable));
            continue;
        }
        let mut server_grants = granted;
        let mut core_grants = 0;
        for ask in asks {
            let draw = replay(&batch, group, &mut states, now);
            core_grants += u32::from(draw.granted);
            if draw.granted && server_grants == 0 {
                let odd = "the server refused what it could grant";
                answers.push((ask, Err(StoreError::Corrupt(odd.into()))));
                continue;
            }
            server_grants -= u32::from(draw.granted);
            answers.push((ask, Ok(draw)));
        }
        if core_grants != granted {
            shared.counters.diverged.fetch_add(1, Ordering::Relaxed);
        }
    }
    for (ask, buckets) in peeks {
        if buckets.iter().any(|bucket| unreadable.contains(bucket)) {
            answers.push((ask, Err(StoreError::Corrupt(UNREADABLE.into()))));
            continue;
        }
        let standings = buckets.iter().zip(&ask.wants).map(|(&bucket, wanted)| {
            let state = states[bucket as usize].as_ref();
            wanted.shape.standing(state, wanted.cost, now)
        });
        let draw = Draw {
            granted: false,
            standings: standings.collect(),
            at: now,
        };
        answers.push((ask, Ok(draw)));
    }
    if !unreadable.is_empty() {
        // Reported here and not counted against the server, because it serves all other requests.
        *shared.last_error.lock() = UNREADABLE.into();
    }
    // Before delivery: a caller that asks again at once must find the bounds from this call.
    let learned = Learned {
        server: now,
        sent: sent.clock,
        received,
        gateways: shared.leases.as_ref().map_or(0, |leases| leases.gateways()),
    };
    shared.bounds.learn(&batch, &granted, &states, learned);
    for ((pending, units), (bucket, _)) in pending.into_iter().zip(leased).zip(&batch.leases) {
        if unreadable.contains(bucket) {
            // The lease request failed, as it does when it is dropped.
            continue;
        }
        pending.answered(units, states[*bucket as usize].as_ref(), now, sent.boot);
    }
    for (ask, answer) in answers {
        match answer {
            Ok(mut draw) => {
                if !draw.granted {
                    shared.bounds.lengthen(&ask.wants, &mut draw, received);
                }
                grant(shared, ask, draw, is_late);
            }
            Err(error) => fail(shared, ask, error),
        }
    }
    Ok(())
}

/// Decides all groups as the specification does and advances `states`; returns how many of each
/// were granted. Groups that need an unreadable bucket get none.
pub(crate) fn decide(
    batch: &Batch,
    unreadable: &[u32],
    states: &mut [Option<StoredState>],
    now: Timestamp,
) -> Vec<u32> {
    let granted = |group: &Group| {
        let count = match group.needs_any(unreadable) {
            true => 0,
            false => group.count,
        };
        let draws = (0..count).map(|_| replay(batch, group, states, now));
        draws.map(|draw| u32::from(draw.granted)).sum()
    };
    batch.groups.iter().map(granted).collect()
}

impl Group {
    fn needs_any(&self, buckets: &[u32]) -> bool {
        !buckets.is_empty() && self.parts.iter().any(|part| buckets.contains(&part.bucket))
    }
}

/// Decides one request of `group`, and advances `states`.
fn replay(
    batch: &Batch,
    group: &Group,
    states: &mut [Option<StoredState>],
    now: Timestamp,
) -> Draw {
    let part = |part: &super::Part| {
        let bucket = part.bucket as usize;
        Part {
            algorithm: Cow::Borrowed(batch.buckets[bucket].1.algorithm()),
            bucket,
            cost: part.cost,
            enforced: part.enforced,
        }
    };
    let parts: SmallVec<[Part<'_>; 4]> = group.parts.iter().map(part).collect();
    draw_parts(&parts, states, now)
}

/// Delivers a decision. The places a request holds are recorded before it can give them back.
fn grant(shared: &LaneState, ask: Ask, draw: Draw, is_late: bool) {
    if !draw.granted {
        answer(ask, Ok(draw));
        return;
    }
    let Ask {
        wants,
        reply,
        unanswered,
        ..
    } = ask;
    // A heartbeat since the time of a late call has freed its places.
    if !is_late {
        shared.hold(&wants, &draw);
    }
    let Some(reply) = reply else {
        if !is_late {
            shared.give_places_back(&wants, &draw);
        }
        if let Some(unanswered) = unanswered {
            let refunds = unanswered.granted(refunds(&wants, &draw).collect());
            refunds
                .into_iter()
                .for_each(|refund| shared.correct(refund));
        }
        return;
    };
    let to_send = Reply {
        wants,
        ..Reply::from(Ok(draw))
    };
    if let Err(untaken) = reply.send(to_send) {
        shared.untaken(&untaken);
    }
}

pub(super) fn fail(shared: &LaneState, ask: Ask, error: StoreError) {
    let counter = match &error {
        StoreError::Timeout | StoreError::Overdue => &shared.counters.timeouts,
        StoreError::Unavailable(_)
        | StoreError::Lost(_)
        | StoreError::Corrupt(_)
        | StoreError::Garbled(_) => &shared.counters.unavailable,
    };
    let may_have_charged = error.may_have_charged() && !ask.peek;
    let Some(reply) = ask.reply else {
        // It was told before. Only now it is known that no answer comes.
        if may_have_charged && ask.unanswered.is_some_and(|draw| draw.lost()) {
            shared.count_unknown_draw();
        }
        return;
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let draw = may_have_charged.then(Arc::<Unanswered>::default);
    if let Some(draw) = &draw {
        draw.lost();
    }
    let to_send = Reply {
        unanswered: draw,
        ..Reply::from(Err(error))
    };
    if let Err(untaken) = reply.send(to_send) {
        shared.untaken(&untaken);
    }
}
