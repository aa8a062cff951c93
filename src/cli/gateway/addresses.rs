//! The addresses that the look-up of a gateway's name has found. A command that asks several
//! questions asks them of one process: a resolver gives several addresses in any order.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Attempt, Place};

/// The addresses of one gateway, or why it has none.
#[derive(Default)]
pub(in crate::cli) struct Addresses(Mutex<Option<Outcome>>);

struct Outcome {
    places: Result<Vec<Place>, String>,
    at: Instant,
}

impl Addresses {
    /// The addresses, one after the other, as long as there is time until `until`. They are looked
    /// up again if the last ones took no connection.
    ///
    /// # Errors
    /// Why there is none.
    pub(in crate::cli) fn attempts(
        &self,
        patience: Duration,
        until: Instant,
        look_up: impl FnOnce() -> Result<Vec<Place>, String>,
    ) -> Result<Attempts<'_>, String> {
        let places = self.places(look_up)?;
        Ok(Attempts {
            addresses: self,
            all: places.len(),
            places: places.into_iter(),
            patience,
            until,
            connected: Rc::default(),
        })
    }

    fn places(
        &self,
        look_up: impl FnOnce() -> Result<Vec<Place>, String>,
    ) -> Result<Vec<Place>, String> {
        let mut known = self.0.lock();
        if let Some(outcome) = &*known
            && (outcome.places.is_ok() || outcome.at.elapsed() < FAILED_FOR)
        {
            return outcome.places.clone();
        }
        let places = look_up();
        *known = Some(Outcome {
            places: places.clone(),
            at: Instant::now(),
        });
        places
    }
}

/// The attempts at the addresses of a gateway.
pub(in crate::cli) struct Attempts<'f> {
    addresses: &'f Addresses,
    places: std::vec::IntoIter<Place>,
    all: usize,
    patience: Duration,
    until: Instant,
    /// Whether one of the addresses took a connection.
    connected: Rc<Cell<bool>>,
}

impl Iterator for Attempts<'_> {
    type Item = (Place, Attempt);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.places.len();
        let has_time = left == self.all || Instant::now() < self.until;
        let place = self.places.next().filter(|_| has_time)?;
        let connected = Rc::clone(&self.connected);
        let attempt = Attempt::new(self.patience, self.until, left, self.all);
        Some((place, attempt.noting(connected)))
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if !self.connected.get() {
            *self.addresses.0.lock() = None;
        }
    }
}

/// How long a look-up that failed is not made again: a resolver that is silent takes the whole time
/// of a gateway, and a thread.
const FAILED_FOR: Duration = Duration::from_secs(5);
