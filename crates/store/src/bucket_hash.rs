//! Names buckets by a keyed hash, so that nothing stores what a caller sent.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher128};

use tollgate_limit::{Limit, key};

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

    pub(crate) fn bytes(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher128::new_with_keys(self.0, self.1);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}
