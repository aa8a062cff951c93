//! Remembers which buckets the functions on the server leave to a transaction.

use std::cell::RefCell;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::wire_form::Name;
use tollgate_limit::{Micros, Timestamp};

/// How long a bucket that the functions left to the transaction is decided there directly: calling
/// the functions first would be wasted, and the server would roll it back.
const ELSEWHERE_FOR: Micros = Micros(250_000);
/// The most buckets for which that is remembered.
const ELSEWHERE_MAX: usize = 4096;

/// Buckets that the functions leave to the transaction, because they have leases or cannot be read,
/// and until when this is assumed.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere(RefCell<HashMap<u128, Timestamp, RandomState>>);

impl Elsewhere {
    /// Whether the functions are known to leave a bucket to the transaction.
    pub(crate) fn has(&self, name: &Name, now: Timestamp) -> bool {
        let known = self.0.borrow();
        !known.is_empty() && known.get(&name.hash).is_some_and(|until| now < *until)
    }

    /// Records whether the transaction must decide a bucket.
    pub(crate) fn remember(&self, name: &Name, is_elsewhere: bool, now: Timestamp) {
        let mut known = self.0.borrow_mut();
        if !is_elsewhere {
            known.remove(&name.hash);
            return;
        }
        if known.len() >= ELSEWHERE_MAX {
            known.retain(|_, until| now < *until);
        }
        if known.len() < ELSEWHERE_MAX {
            known.insert(name.hash, now.after(ELSEWHERE_FOR));
        }
    }
}
