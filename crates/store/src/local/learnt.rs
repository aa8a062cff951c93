//! What limits have learnt of their upstreams, in the snapshot: a count, then per limit its name, tier and role, what kind
//! it is, and its numbers.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tollgate_limit::learnt::{Places, Share};
use tollgate_limit::{Learnt, Limit, Micros, Timestamp};

use super::SnapshotError;
use super::snapshot::{Name, read_u8, read_u32, read_u64};

/// Writes what each of `limits` has learnt.
pub(super) fn write(limits: &[Arc<Limit>], out: &mut impl Write) -> io::Result<()> {
    let learnt = || {
        limits
            .iter()
            .filter_map(|limit| Some((limit, limit.algorithm.learnt()?)))
    };
    out.write_all(
        &u32::try_from(learnt().count())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    )?;
    for (limit, learnt) in learnt() {
        Name::write(limit, out)?;
        let (kind, numbers) = match learnt {
            Learnt::Places(Places { limit, unloaded }) => (PLACES, vec![limit, unloaded]),
            Learnt::Share(Share {
                factor,
                bound,
                opens,
            }) => (
                SHARE,
                vec![
                    factor.0,
                    factor.1.as_micros(),
                    bound.0,
                    bound.1.as_micros(),
                    opens.as_micros(),
                ],
            ),
        };
        out.write_all(&[kind])?;
        for number in numbers {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Tells `limits` what they had learnt, on a clock that is `behind` the one they learnt it by.
pub(super) fn read(
    limits: &[Arc<Limit>],
    input: &mut impl Read,
    behind: Micros,
    now: Timestamp,
) -> Result<(), SnapshotError> {
    for _ in 0..read_u32(input)? {
        let name = Name::read(input)?;
        let learnt = match read_u8(input)? {
            PLACES => Learnt::Places(Places {
                limit: read_u64(input)?,
                unloaded: read_u64(input)?,
            }),
            SHARE => Learnt::Share(Share {
                factor: (read_u64(input)?, moment(input)?),
                bound: (read_u64(input)?, moment(input)?),
                opens: moment(input)?,
            }),
            _ => return Err(SnapshotError::Corrupt("an unknown kind of knowledge")),
        };
        if let Some(limit) = limits.iter().find(|limit| name.is_of(limit)) {
            limit.algorithm.relearn(learnt.earlier(behind), now);
        }
    }
    Ok(())
}

fn moment(input: &mut impl Read) -> io::Result<Timestamp> {
    read_u64(input).map(Timestamp::from_micros)
}

const PLACES: u8 = 0;
const SHARE: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::local::tests::{limit, terms};
    use crate::local::{ColdStart, LocalStore};
    use tollgate_limit::in_flight::{FIRST, InFlight};
    use tollgate_limit::{Algorithm, Kind};

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const SECOND: Micros = Micros(1_000_000);

    /// An adaptive limit of at most `most`, and a rate that follows its upstream down to `least` a second of a hundred.
    fn limits(most: u64, least: u64) -> [Arc<Limit>; 2] {
        let places = Algorithm::InFlight(InFlight::adaptive(1, most).expect("two numbers"));
        let rate = terms(Kind::TokenBucket, 100, SECOND, 100);
        let share = Algorithm::new(&rate)
            .and_then(|rate| rate.following(least, SECOND))
            .expect("within the rate");
        let of = |index, name, algorithm| {
            Arc::new(Limit {
                algorithm,
                ..limit(index, name, &rate, 1 << 15)
            })
        };
        [
            of(0, "jobs", places),
            of(1, "gentle", share.obeying_quota()),
        ]
    }

    fn places(limits: &[Arc<Limit>]) -> u64 {
        match &limits[0].algorithm {
            Algorithm::InFlight(limit) => limit.places(),
            _ => panic!("it is a concurrency limit"),
        }
    }

    /// A store whose limits have learnt, and its snapshot.
    fn troubled() -> ([Arc<Limit>; 2], Vec<u8>) {
        let limits = limits(1_000, 10);
        let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Full);
        if let Algorithm::InFlight(limit) = &limits[0].algorithm {
            let ceiling = limit.ceiling().expect("adaptive");
            for second in 0..20 {
                ceiling.answered(
                    START.after(Micros(second * SECOND.0)),
                    Micros(10_000),
                    FIRST,
                    true,
                );
            }
        }
        let health = limits[1].algorithm.health().expect("it follows");
        health.troubled(START, None);
        health.bounded(START, 25, SECOND);
        health.held(START, Micros(2 * SECOND.0));
        let mut snapshot = Vec::new();
        store.save(&mut snapshot).expect("memory takes everything");
        (limits, snapshot)
    }

    fn restore(limits: &[Arc<Limit>], now: Timestamp, snapshot: &[u8]) {
        LocalStore::restored(limits, Clock::manual(now), std::io::Cursor::new(snapshot))
            .expect("sound");
    }

    #[test]
    fn what_was_learnt_of_an_upstream_outlives_a_clean_restart() {
        let (before, snapshot) = troubled();
        assert!(places(&before) < FIRST / 2);
        let after = limits(1_000, 10);
        restore(&after, START, &snapshot);
        assert_eq!(places(&after), places(&before));
        let of = |limits: &[Arc<Limit>; 2], at| {
            let health = limits[1].algorithm.health().expect("it follows");
            (health.factor(at), health.opens(at))
        };
        assert_eq!(
            of(&after, START),
            (256, Some(START.after(Micros(2 * SECOND.0))))
        );
        for seconds in [0, 1, 2, 5, 60] {
            let at = START.after(Micros(seconds * SECOND.0));
            assert_eq!(
                of(&after, at),
                of(&before, at),
                "it climbs as it would have"
            );
        }
    }

    #[test]
    fn other_numbers_bound_it_and_a_clock_that_steps_back_prolongs_nothing() {
        let (before, snapshot) = troubled();
        let narrower = limits(2, 90);
        restore(&narrower, START, &snapshot);
        assert_eq!(places(&narrower), 2);
        let health = narrower[1].algorithm.health().expect("it follows");
        assert_eq!(health.factor(START), 922, "its own least");
        let year = Micros(365 * 86_400 * SECOND.0);
        let earlier = Timestamp::from_micros(START.as_micros() - year.0);
        let after = limits(1_000, 10);
        restore(&after, earlier, &snapshot);
        let (old, new) = (before[1].algorithm.health(), after[1].algorithm.health());
        let (old, new) = (old.expect("it follows"), new.expect("it follows"));
        assert_eq!(
            new.factor(earlier.after(SECOND)),
            old.factor(START.after(SECOND))
        );
        assert_eq!(
            new.opens(earlier),
            Some(earlier.after(Micros(2 * SECOND.0)))
        );
    }

    #[test]
    fn another_kind_of_limit_learns_nothing_from_it() {
        let (_, snapshot) = troubled();
        let mut swapped = limits(1_000, 10);
        swapped.swap(0, 1);
        let names: Vec<_> = swapped
            .iter()
            .map(|limit| Arc::clone(&limit.name))
            .collect();
        let renamed: Vec<Arc<Limit>> = swapped
            .iter()
            .zip(names.iter().rev())
            .enumerate()
            .map(|(index, (limit, name))| {
                Arc::new(Limit {
                    index,
                    name: Arc::clone(name),
                    ..Limit::clone(limit)
                })
            })
            .collect();
        restore(&renamed, START, &snapshot);
        assert_eq!(
            renamed[0]
                .algorithm
                .health()
                .expect("it follows")
                .factor(START),
            1_024
        );
    }
}
