//! Leases of one gateway, with a clock that only the tests move.

mod buckets;
mod ends;
mod hands;
mod slot;
mod wishes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::held::Had;
use super::*;
use crate::batch::Wanted;
use crate::clock::Clock;
use crate::wire_form::Names;
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::fixtures::limit;
use tollgate_limit::{Align, Kind, Limit, Terms, Timestamp};

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

fn leased(amount: u64, burst: u64) -> Limit {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount,
        period: Micros::from_secs(1),
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    };
    Limit {
        lease: true,
        ..limit("total", &terms)
    }
}

fn wanted(names: &Names, limit: &Limit) -> Wanted {
    Wanted {
        name: names.name(limit, b"k"),
        shape: names.shape(limit),
        cost: 1,
        enforced: true,
    }
}

/// A request on this limit alone.
fn ask(held: &Held, cost: u64, clock: &Clock) -> bool {
    held.count(cost, clock.boot());
    held.take(cost, clock)
}

/// The place for leases of one bucket.
fn place_of(limit: Limit, clock: &Clock, is_cluster: bool) -> (Arc<Leases>, Arc<Held>) {
    let leases = Arc::new(Leases::new(clock.clone(), is_cluster));
    let held = leases.held(&wanted(&Names::new(b"secret"), &limit));
    (leases, held.expect("leased"))
}

/// A place for leases of a thousand units at a hundred a second, and what gives it one that was asked for just now.
fn place(clock: &Clock) -> (Arc<Leases>, Arc<Held>, impl Fn(u64, Option<u64>) -> u64) {
    let (leases, held) = place_of(leased(100, 1000), clock, false);
    let (of, by, clock) = (held.clone(), leases.clone(), clock.clone());
    let answer = move |units, level: Option<u64>| {
        let (wishing, _) = of.depart(&by);
        let id = wishing.wish().id;
        let state = level.map(|units| {
            State::Level(Level {
                level: of.shape().scaled(units),
                at: clock.now(),
            })
        });
        wishing.answered(units, state.as_ref(), clock.now(), clock.boot());
        id
    };
    (leases, held, answer)
}

/// What goes back: which leases, and what was left of them.
fn returned(leases: &Leases) -> Vec<(u64, u64)> {
    let tasks = leases.tasks(usize::MAX).into_iter();
    tasks
        .filter_map(|errand| {
            if let Errand::Return(one) = errand {
                Some((one.id, one.units()))
            } else {
                None
            }
        })
        .collect()
}
