//! Leases of one gateway, with a clock that only the tests move.

mod buckets;
mod ends;
mod hands;
mod requests;
mod slot;

use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    held.take(cost, clock).is_some()
}

/// The place for leases of one bucket.
fn place_of(limit: Limit, clock: &Clock, is_cluster: bool) -> (Arc<Leases>, Arc<Held>) {
    let leases = Arc::new(Leases::new(clock.clone(), is_cluster));
    let held = leases.held(&wanted(&Names::new(b"secret"), &limit));
    (leases, held.expect("leased"))
}

/// A place for leases of a thousand units at a hundred a second, which live a second, and what gives it one that was asked for
/// just now.
fn place(clock: &Clock) -> (Arc<Leases>, Arc<Held>, impl Fn(u64, Option<u64>)) {
    let (leases, held) = place_of(leased(100, 1000), clock, false);
    let (of, by, clock) = (held.clone(), leases.clone(), clock.clone());
    let answer = move |units, level: Option<u64>| {
        let (pending, _) = of.depart(&by);
        let state = level.map(|units| {
            State::Level(Level {
                level: of.shape.scaled(units),
                at: clock.now(),
            })
        });
        pending.answered(units, state.as_ref(), clock.now(), clock.boot());
    };
    (leases, held, answer)
}

/// Whether the next lease is to be asked for now, with as little demand as this.
fn is_low(leases: &Leases, held: &Held, least: u64) -> bool {
    held.is_low(leases.clock.boot(), least, leases.share(&held.terms))
}

/// What goes back: of which units, and what was left of them.
fn returned(leases: &Leases) -> Vec<(u64, u64)> {
    let tasks = leases.tasks_of(usize::MAX, |_| true).into_iter();
    tasks
        .filter_map(|errand| {
            if let Errand::Return(one) = errand {
                Some((one.back.units, one.back.left))
            } else {
                None
            }
        })
        .collect()
}
