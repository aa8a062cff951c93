//! The arithmetic of load balancing: weighted round robin, fair shares of the requests in progress,
//! weighted rendezvous hashing. It uses only integers, so that every gateway computes the same
//! result, and does not consider the health of servers.

use siphasher::sip::SipHasher13;

/// Indices repeated by weight and smoothly interleaved (nginx's smooth weighted round robin).
/// Weights are divided by their greatest common divisor, and bounded.
pub(super) fn turns(weights: &[u32]) -> Vec<usize> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let mut scaled: Vec<i64> = weights
        .iter()
        .map(|weight| i64::from(weight / divisor))
        .collect();
    let sum: i64 = scaled.iter().sum();
    if sum > TURNS_MAX {
        for weight in &mut scaled {
            *weight = (*weight * TURNS_MAX / sum).max(i64::from(*weight > 0));
        }
    }
    let sum: i64 = scaled.iter().sum();
    let mut current = vec![0_i64; scaled.len()];
    let mut order = Vec::new();
    for _ in 0..sum {
        for (level, weight) in current.iter_mut().zip(&scaled) {
            *level += weight;
        }
        let Some(best) = (0..current.len()).rev().max_by_key(|&index| current[index]) else {
            break;
        };
        current[best] -= sum;
        order.push(best);
    }
    order
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whether a server with `weight` and `load` requests in progress is below its share, if servers
/// with a total weight of `weights` have `loads` requests in progress and one more arrives. This is
/// true for at least one server.
pub(super) fn is_below_share(load: usize, weight: u32, loads: usize, weights: u64) -> bool {
    load as u128 * u128::from(weights) < (loads as u128 + 1) * u128::from(weight)
}

/// The hash of a server's name for [`distance`]; the same on every gateway.
pub(super) fn name_hash(name: &str) -> u64 {
    SipHasher13::new().hash(name.as_bytes())
}

/// The distance of the caller `hash` from the server `name`: the smallest `distance / weight` wins
/// ([`Reach::is_closer`]). This is weighted rendezvous hashing (Schindelhauer and Schomaker 2005): the
/// distance is `-log2` of a number that the pair draws from the unit interval. A server therefore
/// gets callers in proportion to its weight, a removed server moves only its own callers, and a
/// server whose weight grows only takes callers from others.
pub(super) fn distance(hash: u64, name: u64) -> u64 {
    minus_log2(mix(hash ^ mix(name)))
}

/// How far a caller is from a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) distance: u64,
    pub(super) weight: u32,
}

impl Reach {
    /// Whether this server gets the caller, rather than `other`.
    pub(super) fn is_closer(self, other: Self) -> bool {
        u128::from(self.distance) * u128::from(other.weight)
            < u128::from(other.distance) * u128::from(self.weight)
    }
}

/// `-log2((x + 1) / 2^64)` in units of `2^-32`, rounded up: each squaring of the mantissa gives one
/// more binary digit.
fn minus_log2(x: u64) -> u64 {
    let Some(x) = x.checked_add(1) else { return 0 };
    let zeros = x.leading_zeros();
    let mut mantissa = x << zeros;
    let mut digits = 0_u64;
    for _ in 0..32 {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let carried = square >> 127 == 1;
        digits = (digits << 1) | u64::from(carried);
        mantissa =
            u64::try_from(if carried { square >> 64 } else { square >> 63 }).unwrap_or(u64::MAX);
    }
    ((u64::from(zeros) + 1) << 32) - digits
}

const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const TURNS_MAX: i64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(hash: u64, servers: &[(&'static str, u32)]) -> &'static str {
        let reach = |server: &(&str, u32)| Reach {
            distance: distance(hash, name_hash(server.0)),
            weight: server.1,
        };
        let closer = |best, next| {
            let wins = reach(next).is_closer(reach(best));
            if wins { next } else { best }
        };
        servers.iter().reduce(closer).expect("there are servers").0
    }

    #[test]
    fn turns_follow_the_weights_and_interleave() {
        assert_eq!(turns(&[1, 1]), [0, 1]);
        assert_eq!(turns(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns(&[0, 3]), [1]);
        assert!(turns(&[u32::MAX, 1]).len() <= 4100);
    }

    #[test]
    fn rendezvous_logarithm_is_exact_at_powers_of_two_and_falls_monotonically() {
        for shift in 0..64 {
            assert_eq!(
                minus_log2((1 << shift) - 1),
                (64 - shift) << 32,
                "2^{shift}"
            );
        }
        assert_eq!(minus_log2(u64::MAX), 0);
        // log2(3/4) = -0.4150374992...
        assert_eq!(minus_log2((3 << 62) - 1) >> 12, 1_782_572_487 >> 12);
        let mut last = u64::MAX;
        for x in (0..1000).map(|step| step * (u64::MAX / 1000)) {
            let next = minus_log2(x);
            assert!(next < last, "{x}");
            last = next;
        }
    }

    #[test]
    fn rendezvous_server_removed_moves_only_its_own_callers() {
        let all = [("a", 1), ("b", 3), ("c", 7)];
        for hash in (0..2000_u64).map(mix) {
            let before = pick(hash, &all);
            assert_eq!(
                pick(hash, &[all[2], all[0], all[1]]),
                before,
                "the order is nothing"
            );
            if before != "c" {
                assert_eq!(pick(hash, &all[..2]), before);
            }
            let heavier = pick(hash, &[all[0], ("b", 9), all[2]]);
            assert!(heavier == before || heavier == "b");
        }
    }

    #[test]
    fn rendezvous_weights_are_shares_of_the_callers() {
        let servers = [("a", 1), ("b", 2), ("c", 997)];
        let of = |name: &str| {
            (0..100_000_u64)
                .filter(|&hash| pick(mix(hash), &servers) == name)
                .count()
        };
        let (a, b) = (of("a"), of("b"));
        assert!((70..140).contains(&a) && (150..260).contains(&b), "{a} {b}");
    }

    #[test]
    fn rendezvous_places_are_pinned_for_gateways_of_other_versions() {
        let servers = [
            ("10.0.0.1:80", 1),
            ("10.0.0.2:80", 2),
            ("https://app.example:443/v1", 3),
        ];
        let places: Vec<usize> = (0..12_u64)
            .map(|hash| {
                servers
                    .iter()
                    .position(|server| server.0 == pick(hash, &servers))
                    .expect("one of them")
            })
            .collect();
        assert_eq!(places, [2, 2, 2, 1, 2, 1, 2, 2, 2, 2, 2, 0]);
    }

    #[test]
    fn fair_share_some_server_is_always_below_it() {
        for loads in [[0, 0, 0], [9, 0, 0], [1, 2, 5], [3, 3, 3], [100, 1, 7]] {
            let (sum, weights) = (loads.iter().sum(), [1_u32, 2, 5]);
            let below = (0..3)
                .filter(|&index| is_below_share(loads[index], weights[index], sum, 8))
                .count();
            assert!(below > 0, "{loads:?}");
        }
    }
}
