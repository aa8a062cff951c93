//! A cache of verified tokens. Does not verify tokens itself.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::VerifiedClaims;

/// Verified tokens, in sets of [`WAYS`], found by their digest. Bounded; failures are never cached.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) sets: Box<[Mutex<Set>]>,
}

#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) tokens: SmallVec<[Token; 1]>,
    next: usize,
}

#[derive(Debug)]
pub(super) struct Token {
    digest: [u8; 32],
    until: u64,
    claims: Arc<VerifiedClaims>,
}

impl Default for Verified {
    fn default() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Verified {
    fn set(&self, digest: &[u8; 32]) -> &Mutex<Set> {
        &self.sets[usize::from(u16::from_be_bytes([digest[0], digest[1]])) % SETS]
    }

    pub(super) fn find(&self, digest: &[u8; 32], now: u64) -> Option<Arc<VerifiedClaims>> {
        let set = self.set(digest).lock();
        let token = set
            .tokens
            .iter()
            .find(|token| token.digest == *digest && token.until > now)?;
        Some(Arc::clone(&token.claims))
    }

    pub(super) fn insert(
        &self,
        digest: [u8; 32],
        until: u64,
        claims: Arc<VerifiedClaims>,
        now: u64,
    ) {
        let token = Token {
            digest,
            until,
            claims,
        };
        let mut set = self.set(&digest).lock();
        let place = set
            .tokens
            .iter()
            .position(|old| old.until <= now || old.digest == digest);
        match place {
            Some(place) => set.tokens[place] = token,
            None if set.tokens.len() < WAYS => set.tokens.push(token),
            None => {
                let place = set.next % WAYS;
                set.next = place + 1;
                set.tokens[place] = token;
            }
        }
    }
}

/// The number of sets: with [`WAYS`], 4,096 tokens.
pub(super) const SETS: usize = 512;
pub(super) const WAYS: usize = 8;
