//! Bounds the number of open connections, in total and per address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{ServerState, Settings};
use tollgate_policy::identity::address::network;

/// Open connections, counted over all workers.
#[derive(Debug, Default)]
pub struct Bounds {
    open: AtomicUsize,
    /// Only addresses with open connections, so never more entries than connections.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

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
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// The slot of an open connection, released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    shared: Arc<ServerState>,
    address: Option<IpAddr>,
}

impl ConnectionSlot {
    pub(super) fn take(shared: &Arc<ServerState>, most: usize) -> Result<Self, Full> {
        let open = shared.bounds.open.fetch_add(1, Ordering::Relaxed);
        let place = Self {
            shared: Arc::clone(shared),
            address: None,
        };
        if open >= most {
            Err(Full::Total)
        } else {
            Ok(place)
        }
    }

    pub(super) fn shared(&self) -> &ServerState {
        &self.shared
    }

    pub(super) fn from(&mut self, address: IpAddr, settings: &Settings) -> Result<(), Full> {
        let address = address.to_canonical();
        if settings.trusts(address) {
            return Ok(()); // a proxy carries many callers
        }
        let most = settings.connections_per_address.unwrap_or(usize::MAX);
        // An address may not take more than is left for the others (dynamic thresholds, Choudhury
        // and Hahne 1998): one address fills at most half of the room, and many addresses always
        // leave some for new ones. Programs on the same machine are exempt.
        let left = settings
            .connections
            .saturating_sub(self.shared.bounds.open());
        let share = if address.is_loopback() {
            usize::MAX
        } else {
            left.max(SHARE_LEAST)
        };
        let address = network(address, settings.ipv6_prefix);
        let mut by_address = self.shared.bounds.by_address.lock();
        match by_address.entry(address) {
            Entry::Occupied(open) if *open.get() >= most.min(share) => return Err(Full::Address),
            Entry::Occupied(mut open) => *open.get_mut() += 1,
            Entry::Vacant(_) if most.min(share) == 0 => return Err(Full::Address),
            Entry::Vacant(none) => _ = none.insert(1),
        }
        self.address = Some(address);
        Ok(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.bounds.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.address {
            let mut by_address = self.shared.bounds.by_address.lock();
            if let Entry::Occupied(mut open) = by_address.entry(address) {
                *open.get_mut() -= 1;
                if *open.get() == 0 {
                    open.remove();
                }
            }
        }
    }
}

/// The number of connections that an address may always have, however little room is left.
const SHARE_LEAST: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ServerState, Settings};
    use super::{ConnectionSlot, Full, network};

    #[test]
    fn no_connection_takes_more_than_is_left_for_the_others() {
        let settings = Settings::default();
        let shared = Arc::new(ServerState::new(settings.clone()));
        let mut crowd = Vec::new();
        let mut taken_by = |address: std::net::IpAddr| {
            let before = crowd.len();
            while let Ok(mut place) = ConnectionSlot::take(&shared, settings.connections) {
                if place.from(address, &settings).is_err() {
                    break;
                }
                crowd.push(place);
            }
            crowd.len() - before
        };
        assert_eq!(settings.connections, 10_000);
        assert_eq!(taken_by([192, 0, 2, 1].into()), 5000);
        assert_eq!(taken_by([192, 0, 2, 2].into()), 2500, "half of the rest");
        assert_eq!(taken_by([192, 0, 2, 1].into()), 0);
        assert_eq!(taken_by([192, 0, 2, 3].into()), 1250);
        assert_eq!(
            taken_by([127, 0, 0, 1].into()),
            1250,
            "the machine's own programs take what they need"
        );
    }

    #[test]
    fn bounds_ipv6_network_counts_as_one_and_a_mapped_address_as_ipv4() {
        let settings = Settings {
            connections_per_address: Some(1),
            ..Settings::default()
        };
        let shared = Arc::new(ServerState::new(settings.clone()));
        let from = |text: &str| {
            let mut place = ConnectionSlot::take(&shared, 100).expect("room");
            place
                .from(text.parse().expect("an address"), &settings)
                .map(|()| place)
        };
        let _one = from("2001:db8::1").expect("the first of its network");
        assert_eq!(
            from("2001:db8::2").err(),
            Some(Full::Address),
            "of the same /64"
        );
        let _other = from("2001:db8:0:1::1").expect("another network");
        let _mapped = from("::ffff:192.0.2.1").expect("an IPv4 address");
        let _beside = from("::ffff:192.0.2.2").expect("another");
        assert_eq!(
            from("192.0.2.1").err(),
            Some(Full::Address),
            "the same address"
        );
        assert_eq!(
            network("2001:db8::1".parse().expect("one"), 0),
            "::".parse::<std::net::IpAddr>().expect("one")
        );
    }

    #[test]
    fn trusted_proxies_are_not_bounded_by_their_address() {
        let settings = Settings {
            connections_per_address: Some(1),
            trusted_proxies: ["192.0.2.0/24".parse().expect("a network")]
                .into_iter()
                .collect(),
            ..Settings::default()
        };
        let shared = Arc::new(ServerState::new(settings.clone()));
        let mut places = [(); 3].map(|()| ConnectionSlot::take(&shared, 9).expect("room"));
        for place in &mut places {
            assert_eq!(place.from([192, 0, 2, 1].into(), &settings), Ok(()));
        }
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let settings = Settings {
            connections_per_address: Some(1),
            ..Settings::default()
        };
        let shared = Arc::new(ServerState::new(settings.clone()));
        let (a, b) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());

        let mut first = ConnectionSlot::take(&shared, 2).expect("room");
        first.from(a, &settings).expect("the first from there");
        let mut second = ConnectionSlot::take(&shared, 2).expect("room");
        assert_eq!(second.from(a, &settings), Err(Full::Address));
        second.from(b, &settings).expect("the first from there");
        assert_eq!(ConnectionSlot::take(&shared, 2).err(), Some(Full::Total));
        assert_eq!(shared.bounds.open(), 2);

        drop(first);
        let mut third = ConnectionSlot::take(&shared, 2).expect("the first is gone");
        third.from(a, &settings).expect("the first is gone");
        drop((second, third));
        assert_eq!(shared.bounds.open(), 0);
        assert!(shared.bounds.by_address.lock().is_empty());
    }
}
