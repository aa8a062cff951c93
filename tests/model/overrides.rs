//! Overrides and resets of operators: while they are set, replaced, lifted and end, buckets are reset, gateways reload and
//! start again, and some learn late, no bucket grants a unit more than its numbers, nor fewer.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{Micros, Rate, Timestamp, Verdict};
use tollgate_limiter::Effect;

use crate::allowance::{Numbers, UNIT};
use crate::gateways::{BOTH, Gateway, KEY, Known, LOCAL, SHARED, World, limits, place};
use crate::random;

impl World {
    /// Requests of the traced key, until one is refused or there were `most`.
    fn ask(&mut self, gateway: usize, index: usize, most: u64) {
        let now = self.clock.now();
        let told = |world: &Self| format!("{:#?}", world.history);
        match self.in_force(gateway, index) {
            Some(known) if known.effect == Effect::Block => {
                let refused = self.check(gateway, index, KEY);
                assert_eq!(refused, Err(Some(known.until.since(now))), "{}", told(self));
                return;
            }
            Some(known) if known.effect == Effect::Unlimited => {
                let free = (0..30).all(|_| self.check(gateway, index, KEY).is_ok());
                assert!(free, "{}", told(self));
                return;
            }
            _ => {}
        }
        let (mut granted, mut wait) = (0, None);
        while granted < most {
            match self.check(gateway, index, KEY) {
                Ok(()) => granted += 1,
                Err(told) => {
                    wait = told;
                    break;
                }
            }
        }
        let applied = self.applied(gateway, index);
        let promised = self.traced[place(gateway, index)].due.take();
        let broken = promised.is_some_and(|due| due <= now && granted == 0 && most > 0);
        assert!(!broken, "{now:?}: refused after its wait\n{}", told(self));
        // Gateways that do not have the same numbers promise what they know.
        let known = |gateway: usize| {
            let one = &self.gateways[gateway];
            (one.known[SHARED], one.own[SHARED])
        };
        let alike = index == LOCAL || known(0) == known(1);
        // The end of an override changes what was promised.
        let ends = self.in_force(gateway, index).map(|known| known.until);
        let due = wait.filter(|_| alike).map(|wait| now.after(wait));
        let due = due.filter(|due| ends.is_none_or(|end| *due < end));
        self.traced[place(gateway, index)].due = due;
        self.history.push(format!(
            "{now:?} gateway {gateway} limit {index} {applied:?}: {granted}"
        ));
        let history = told(self);
        let traced = &mut self.traced[place(gateway, index)];
        if let Err(error) = traced.allowance.touch(now, &applied, granted) {
            panic!("{error}\n{history}");
        }
        let same = applied.iter().all(|one| *one == applied[0]);
        let refused = granted < most && same;
        if let Some((since, numbers)) = traced.empty.take()
            && refused
            && numbers == applied[0]
        {
            let due = (now.since(since).0 * numbers.rate / UNIT).min(numbers.burst);
            // A bucket that goes back to its table, or takes on other numbers, is rounded down.
            assert!(granted + 2 >= due, "{granted} of {due}\n{history}");
        }
        traced.empty = refused.then_some((now, applied[0]));
    }

    /// A request of a key without overrides, held against the definition.
    fn ask_for_other(&mut self, gateway: usize, index: usize) {
        let now = self.clock.now();
        let told = self.check(gateway, index, b"other");
        let expected = match self.other[place(gateway, index)].draw(1, now) {
            Verdict::Allow { .. } => Ok(()),
            Verdict::Deny { retry_after } => Err(retry_after),
        };
        assert_eq!(told, expected, "{:#?}", self.history);
    }

    fn ask_everywhere(&mut self) {
        for gateway in [0, 1] {
            for index in BOTH {
                self.ask(gateway, index, 80);
            }
        }
    }

    /// Time passes; `closely`: the caller asks just before each end of an override, and at it.
    fn pass(&mut self, span: Micros, closely: bool) {
        let (now, then) = (self.clock.now(), self.clock.now().after(span));
        if closely {
            let known = self.gateways.iter().flat_map(|one| one.known);
            let mut ends: Vec<Timestamp> = known
                .flatten()
                .map(|known| known.until)
                .filter(|until| now < *until && *until <= then)
                .collect();
            ends.sort_unstable();
            ends.dedup();
            for end in ends {
                let left = end.since(self.clock.now()).0;
                self.clock.advance(Micros(left - 1));
                self.ask_everywhere();
                self.clock.advance(Micros(1));
                self.ask_everywhere();
            }
        }
        self.clock.advance(then.since(self.clock.now()));
    }

    /// One thing that an operator, a file or a store does.
    fn act(&mut self, rng: &mut Rng, renumbers: bool) {
        let (gateway, index) = (rng.usize(..2), rng.usize(..2));
        let now = self.clock.now();
        match rng.u8(..8) {
            0..3 => {
                let known = Known {
                    effect: effect(rng),
                    since: now,
                    until: now.after(Micros(random::pick(rng, &[1, 5, 20, 100]) * UNIT)),
                };
                self.history
                    .push(format!("{now:?} {gateway} {index} set {known:?}"));
                self.set(gateway, index, Some(known));
            }
            3 => {
                let known = match index {
                    SHARED => self.set,
                    _ => self.gateways[gateway].known[index],
                };
                let lifted = known.map(|known| Known {
                    until: known.until.min(now),
                    ..known
                });
                self.history
                    .push(format!("{now:?} {gateway} {index} lifted"));
                self.set(gateway, index, lifted);
            }
            4 => {
                self.history
                    .push(format!("{now:?} {gateway} {index} reset"));
                self.changed(gateway, index);
                self.traced[place(gateway, index)].allowance.fill();
                let Gateway {
                    limiter, limits, ..
                } = &self.gateways[gateway];
                assert!(limiter.reset(&limits[index], KEY));
            }
            5 => {
                let own = if renumbers {
                    BOTH.map(|_| numbers(rng))
                } else {
                    self.gateways[gateway].own
                };
                self.history
                    .push(format!("{now:?} {gateway} reload {own:?}"));
                let new = limits(own, random::pick(rng, &[1 << 12, 1 << 16]));
                let one = &mut self.gateways[gateway];
                one.limiter = one.limiter.next(&new, Arc::clone(&self.server)).0;
                (one.limits, one.own) = (new, own);
                BOTH.into_iter()
                    .for_each(|index| self.changed(gateway, index));
            }
            6 => self.restart(gateway),
            _ => {}
        }
        // The other gateway learns at once, or with a later change.
        let other = 1 - gateway;
        if rng.bool() && self.gateways[other].known[SHARED] != self.set {
            self.history.push(format!("{now:?} {other} learns"));
            self.learn(other, SHARED, self.set);
        }
    }
}

/// One random trace. `closely`: the traced caller asks before and after each change; `renumbers`: reloads change the limits'
/// own numbers.
fn trace(rng: &mut Rng, closely: bool, renumbers: bool) {
    let mut world = World::new();
    for _ in 0..60 {
        if rng.u8(..4) == 0 {
            if closely {
                world.ask_everywhere();
            }
            world.act(rng, renumbers);
            if closely {
                world.ask_everywhere();
            }
        } else {
            let (gateway, index) = (rng.usize(..2), rng.usize(..2));
            world.ask(gateway, index, random::pick(rng, &[1, 3, 80]));
            if !renumbers {
                world.ask_for_other(gateway, index);
            }
        }
        let pause = random::pick(rng, &[0, 100_000, UNIT, 3 * UNIT, 20 * UNIT]);
        world.pass(Micros(pause), closely);
    }
    // At rest each gateway has the limits' own numbers again, and nothing is missing.
    world.pass(Micros::from_secs(3_600), closely);
    for (gateway, index) in [(0, SHARED), (0, LOCAL), (1, LOCAL)] {
        let burst = world.gateways[gateway].own[index].burst;
        for key in [KEY, b"other"] {
            let granted = (0..80).filter(|_| world.check(gateway, index, key).is_ok());
            assert_eq!(granted.count() as u64, burst, "{:#?}", world.history);
        }
    }
}

#[test]
fn overrides_and_resets_of_two_gateways_grant_burst_and_rate_and_not_a_unit_more() {
    random::seeds(200, |rng| trace(rng, false, false));
    random::seeds(200, |rng| trace(rng, true, false));
}

#[test]
fn overrides_over_reloads_with_other_numbers_grant_burst_and_rate_and_not_a_unit_more() {
    random::seeds(200, |rng| trace(rng, false, true));
    random::seeds(200, |rng| trace(rng, true, true));
}

fn numbers(rng: &mut Rng) -> Numbers {
    Numbers {
        rate: rng.u64(1..=5),
        burst: random::pick(rng, &[1, 10, 50]),
    }
}

fn effect(rng: &mut Rng) -> Effect {
    let Numbers { rate, burst } = numbers(rng);
    let rate = Some(Rate::new(rate, Micros(UNIT)));
    match rng.u8(..8) {
        0 => Effect::Unlimited,
        1 => Effect::Block,
        2 => Effect::Numbers { rate, burst: None },
        3 => Effect::Numbers {
            rate: None,
            burst: Some(burst),
        },
        _ => Effect::Numbers {
            rate,
            burst: Some(burst),
        },
    }
}
