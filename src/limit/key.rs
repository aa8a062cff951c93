//! The bytes that select one bucket.
//!
//! A bucket is its limit's *name*, its role and the caller's identity, never the numbers: state outlives
//! configuration. The identity part is encoded once per request and shared by every limit that is split the same way.

use smallvec::SmallVec;

/// The encoded identity of a caller under one scope: each part length-prefixed, so that no two lists of parts
/// share bytes. Empty for a limit that everyone shares.
pub type KeyBytes = SmallVec<[u8; 48]>;
