//! Names buckets by a keyed hash, so that nothing stores what a caller sent.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher128};

use tollgate_limit::{Limit, Role, key};

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(u64, u64);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// From a secret of any length, by hashing it under two fixed keys.
    pub fn new(secret: &[u8]) -> Self {
        let word = |key| {
            let mut hasher = SipHasher13::new_with_keys(key, !key);
            hasher.write(secret);
            hasher.finish()
        };
        Self(word(0x746f_6c6c_6761_7465), word(0x6b65_7920_7365_6372))
    }

    /// The hash of the bucket of `limit` that `identity` selects.
    pub fn bucket(&self, limit: &Limit, identity: &[u8]) -> u128 {
        self.bytes(&key::canonical(limit, identity))
    }

    /// Hashes the buckets of the limit with this name: what they share is hashed once.
    pub fn limit(&self, name: &str, role: Role) -> LimitHash {
        let mut hasher = SipHasher128::new_with_keys(self.0, self.1);
        hasher.write(&key::of_limit(name, role));
        LimitHash(hasher)
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher128::new_with_keys(self.0, self.1);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

/// Hashes the buckets of one limit.
#[derive(Clone)]
pub struct LimitHash(SipHasher128);

impl std::fmt::Debug for LimitHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LimitHash(..)")
    }
}

impl LimitHash {
    pub fn bucket(&self, identity: &[u8]) -> u128 {
        let mut hasher = self.0;
        hasher.write(identity);
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::fixtures;

    #[test]
    fn bucket_hash_of_a_limit_is_that_of_the_whole_key() {
        let key = HashKey::new(b"a secret");
        let limit = fixtures::per_minute("search", 10, 10);
        let of_limit = key.limit(&limit.name, limit.role);
        for length in [0, 1, 7, 8, 9, 47, 48, 300] {
            let identity = vec![b'x'; length];
            assert_eq!(of_limit.bucket(&identity), key.bucket(&limit, &identity));
        }
    }
}
