//! Keys become 64-bit tags under a seed of the process.

use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// Hashes keys with a seed nobody outside the process knows, so that no caller can choose whom to collide with.
///
/// Two keys with one tag share a bucket: never an over-grant, and among ten million keys a chance of 3 in a million.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    raw: u64,
    // Derived from the seed too: with foldhash's published constants a caller could make keys that collide under
    // every seed.
    shared: SharedSeed,
}

impl Seed {
    /// A seed from the system's randomness.
    pub(crate) fn random() -> Self {
        // Where there is no randomness the address of a local still differs between processes.
        let here = 0_u8;
        Self::from_raw(getrandom::u64().unwrap_or((&raw const here).addr() as u64))
    }

    /// The seed a snapshot kept.
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self { raw, shared: SharedSeed::from_u64(raw) }
    }

    /// What a snapshot keeps.
    pub(crate) fn raw(&self) -> u64 {
        self.raw
    }

    /// The tag of `key`.
    #[inline]
    pub(crate) fn tag(&self, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.raw, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}
