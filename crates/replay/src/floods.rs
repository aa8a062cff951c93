//! Which keys are floods: far busier than what the others need, and busy at all.
//!
//! The rule compares a key with the 90th percentile of all others (of three others that is the busiest), so that it
//! works with four keys as with a million. A key is a flood when its busiest second has at least 100 requests and five
//! times as many as theirs, or its busiest minute at least 300 and ten times as many.

use crate::keys::KeyFacts;
use crate::report::grouped;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flood {
    pub(crate) key: usize,
    pub(crate) why: String,
}

pub(crate) const RULE: &str = "a key whose busiest second has at least 100 requests and 5 times as many as the busiest \
                               second of 90 % of the other keys, or whose busiest minute has at least 300 and 10 times as many";

pub(crate) fn floods(keys: &[KeyFacts]) -> Vec<Flood> {
    let sorted = |units: fn(&KeyFacts) -> u64| {
        let busy = keys.iter().filter(|key| key.requests > 0);
        let mut sorted: Vec<u64> = busy.map(units).collect();
        sorted.sort_unstable();
        sorted
    };
    let (seconds, minutes) = (sorted(|key| key.per_second), sorted(|key| key.per_minute));
    if seconds.len() < 2 {
        // There is nothing to compare it with.
        return Vec::new();
    }
    let mut floods = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        if key.per_second < SECOND_LEAST && key.per_minute < MINUTE_LEAST {
            continue;
        }
        let second = of_others(&seconds, key.per_second);
        let minute = of_others(&minutes, key.per_minute);
        let in_second =
            key.per_second >= SECOND_LEAST && key.per_second >= second.saturating_mul(5);
        let in_minute =
            key.per_minute >= MINUTE_LEAST && key.per_minute >= minute.saturating_mul(10);
        if in_second || in_minute {
            floods.push(Flood {
                key: place,
                why: format!(
                    "{} requests, {} in its busiest second and {} in its busiest minute; 90 % of the other keys have at most {} and {}",
                    grouped(key.requests),
                    grouped(key.per_second),
                    grouped(key.per_minute),
                    grouped(second),
                    grouped(minute)
                ),
            });
        }
    }
    floods.sort_by_key(|flood| (u64::MAX - keys[flood.key].per_minute, flood.key));
    floods
}

/// The 90th percentile of `sorted` without one element of this value (nearest rank).
fn of_others(sorted: &[u64], own: u64) -> u64 {
    let others = sorted.len() - 1;
    let rank = (others * 9).div_ceil(10).max(1) - 1;
    let own = sorted.partition_point(|value| *value < own);
    // Above its own place the others stand one further.
    let place = if rank >= own { rank + 1 } else { rank };
    sorted.get(place).copied().unwrap_or_default()
}

const SECOND_LEAST: u64 = 100;
const MINUTE_LEAST: u64 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(per_second: u64, per_minute: u64) -> KeyFacts {
        KeyFacts {
            requests: per_minute,
            per_second,
            per_minute,
        }
    }

    fn found(keys: &[KeyFacts]) -> Vec<usize> {
        floods(keys).iter().map(|flood| flood.key).collect()
    }

    #[test]
    fn flood_among_four_keys_is_found_and_a_page_of_images_is_none() {
        let scan = key(282, 5_505);
        assert_eq!(
            found(&[key(20, 40), scan.clone(), key(3, 9), key(21, 60)]),
            [1]
        );
        assert!(found(&[key(1, 1), key(1, 2), key(20, 20), key(1, 1)]).is_empty());
        // Two busy callers among four are the traffic, and no floods.
        assert!(found(&[key(280, 5_000), scan.clone(), key(290, 5_100), key(1, 1)]).is_empty());
        assert!(found(&[scan]).is_empty());
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn flood_among_many_keys_is_compared_with_the_others() {
        let mut keys: Vec<KeyFacts> = (0..1_000).map(|n| key(1 + n % 5, 1 + n % 30)).collect();
        keys.push(key(12, 299));
        keys.push(key(12, 301));
        assert_eq!(found(&keys), [1_001]);
        assert_eq!(of_others(&[1, 2, 3, 4], 4), 3);
        assert_eq!(of_others(&[1, 2, 3, 4], 1), 4);
        assert_eq!(of_others(&[5, 5], 5), 5);
    }
}
