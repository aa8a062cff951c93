//! Hashes keys to 64-bit tags under a seed of the process.

use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// Hashes keys with a seed that is unknown outside the process, so that no client can choose a key
/// that collides with another.
///
/// Two keys with one tag share a bucket. This never over-grants; among ten million keys the
/// probability is 3 in a million.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    raw: u64,
    // Also derived from the seed: with foldhash's published constants a client could create keys
    // that collide under every seed.
    shared: SharedSeed,
}

impl Seed {
    pub(crate) fn random() -> Self {
        // Without randomness, the address of a local variable still differs between processes.
        let here = 0_u8;
        Self::from_raw(getrandom::u64().unwrap_or((&raw const here).addr() as u64))
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        let shared = SharedSeed::from_u64(raw);
        Self { raw, shared }
    }

    pub(crate) fn raw(&self) -> u64 {
        self.raw
    }

    pub(crate) fn tag(&self, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.raw, &self.shared);
        hasher.write(key);
        // 0 is the tag of a place that was never used.
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Keys that differ little: one repeated byte in every length, and each single bit of a key in
    /// every length.
    fn alike() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (0..=80).map(|length| vec![b'a'; length]).collect();
        for length in 1..=48 {
            for bit in 0..length * 8 {
                let mut key = vec![b'a'; length];
                key[bit / 8] ^= 1 << (bit % 8);
                keys.push(key);
            }
        }
        keys
    }

    #[test]
    fn keys_that_differ_little_have_tags_that_differ_everywhere() {
        // (A seed of a single bit is no random one: rotated, it equals a difference of two keys.)
        for raw in [
            0x9e37_79b9_7f4a_7c15,
            0x0123_4567_89ab_cdef,
            0xf0e1_d2c3_b4a5_9687,
        ] {
            let seed = Seed::from_raw(raw);
            let keys = alike();
            let tags: HashSet<u64> = keys.iter().map(|key| seed.tag(key)).collect();
            assert_eq!(tags.len(), keys.len());
            for bit in 0..64 {
                let set = tags.iter().filter(|tag| *tag >> bit & 1 == 1).count();
                let share = set * 100 / tags.len();
                assert!(
                    (45..=55).contains(&share),
                    "bit {bit} is set in {share} % of tags"
                );
            }
        }
    }

    #[test]
    fn each_bit_of_a_key_changes_half_the_tag() {
        let seed = Seed::from_raw(7);
        for length in [1, 8, 15, 16, 17, 24, 31, 32, 33, 64] {
            let key: Vec<u8> = (0..length).map(|place| b'a' + place).collect();
            let flipped = |bit: usize| {
                let mut other = key.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                (seed.tag(&key) ^ seed.tag(&other)).count_ones() as usize
            };
            let bits = key.len() * 8;
            let changed = (0..bits).map(flipped).sum::<usize>();
            assert!(
                (28..=36).contains(&(changed / bits)),
                "{length} bytes: {} of 64 on average",
                changed / bits
            );
        }
    }

    #[test]
    fn another_seed_gives_other_tags() {
        let (one, two) = (Seed::from_raw(1), Seed::from_raw(2));
        assert!(alike().iter().all(|key| one.tag(key) != two.tag(key)));
    }
}
