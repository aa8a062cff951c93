//! How many connections are open, in all and per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Settings, Shared};

/// Open connections, counted over all workers.
#[derive(Debug, Default)]
pub struct Bounds {
    open: AtomicUsize,
    /// Only addresses with open connections, so never more entries than connections.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Why a connection was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    Total,
    Address,
}

impl Full {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Total => "connections",
            Self::Address => "connections_per_address",
        }
    }
}

impl Bounds {
    /// Open connections.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A place among the open connections, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    address: Option<IpAddr>,
}

impl Place {
    pub(super) fn take(shared: &Arc<Shared>, most: usize) -> Result<Self, Full> {
        let open = shared.bounds.open.fetch_add(1, Ordering::Relaxed);
        let place = Self { shared: Arc::clone(shared), address: None };
        if open >= most { Err(Full::Total) } else { Ok(place) }
    }

    /// What the workers share.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Counts the connection to the address it came from too.
    pub(super) fn from(&mut self, address: IpAddr, settings: &Settings) -> Result<(), Full> {
        let Some(most) = settings.connections_per_address else {
            return Ok(());
        };
        if settings.trusts(address) {
            return Ok(()); // a proxy carries many callers
        }
        let mut by_address = self.shared.bounds.by_address.lock();
        let open = by_address.entry(address).or_insert(0);
        if *open >= most {
            return Err(Full::Address);
        }
        *open += 1;
        self.address = Some(address);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.bounds.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.address {
            let mut by_address = self.shared.bounds.by_address.lock();
            if let Some(open) = by_address.get_mut(&address) {
                *open -= 1;
                if *open == 0 {
                    by_address.remove(&address);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Settings, Shared};
    use super::{Full, Place};

    #[test]
    fn places_are_bounded_and_given_back() {
        let settings = Settings { connections_per_address: Some(1), ..Settings::default() };
        let shared = Arc::new(Shared::new(settings.clone()));
        let (a, b) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());

        let mut first = Place::take(&shared, 2).expect("room");
        first.from(a, &settings).expect("the first from there");
        let mut second = Place::take(&shared, 2).expect("room");
        assert_eq!(second.from(a, &settings), Err(Full::Address));
        second.from(b, &settings).expect("the first from there");
        assert_eq!(Place::take(&shared, 2).err(), Some(Full::Total));
        assert_eq!(shared.bounds.open(), 2);

        drop(first);
        let mut third = Place::take(&shared, 2).expect("the first is gone");
        third.from(a, &settings).expect("the first is gone");
        drop((second, third));
        assert_eq!(shared.bounds.open(), 0);
        assert!(shared.bounds.by_address.lock().is_empty());
    }
}
