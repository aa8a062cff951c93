//! The caller's address: believed from forwarding headers only as far as trusted proxies vouch for it.
//!
//! The walk goes from the connection outwards: while the hop we stand at is trusted, the entry it wrote (the
//! rightmost not yet read, over all lines of the field) is the next hop; the first hop that is not trusted is the
//! caller. An entry that is no address (`unknown`, `_hidden`, garbage) ends the walk at the last trusted hop, so
//! that nothing a caller writes can choose its address. Where the file counts the proxies instead, the entry that the
//! outermost of them wrote is the caller. IPv4 addresses mapped into IPv6 are folded first.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::FORWARDED;

use super::forwarded::{X_FORWARDED_FOR, forwarded_hops, listed_hops};

pub use super::forwarded::{parse_forwarded, parse_hop};
pub use super::netset::NetSet;

/// How a caller's address is known: the one place for trust.
#[derive(Clone, Debug)]
pub struct AddressPolicy {
    /// Forwarding headers are believed only from these.
    pub trusted_proxies: NetSet,
    /// How many proxies every request comes through, in place of their addresses; 0: it is not said.
    pub trusted_hops: u8,
    /// Whether they are believed from a Unix socket, too: only local processes can connect to one.
    pub trust_unix: bool,
    /// Which forwarding header is believed.
    pub header: ForwardingHeader,
    /// IPv6 callers are told apart by this many leading bits.
    pub ipv6_prefix: u8,
    /// These callers are never limited.
    pub exempt: NetSet,
}

impl Default for AddressPolicy {
    fn default() -> Self {
        Self {
            trusted_proxies: NetSet::default(),
            trusted_hops: 0,
            trust_unix: false,
            header: ForwardingHeader::default(),
            ipv6_prefix: 64,
            exempt: NetSet::default(),
        }
    }
}

/// Which forwarding header is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardingHeader {
    /// Whichever is there. When both are and name different callers, one of them was passed on unread from the
    /// outside, and nobody knows which: the last trusted hop is taken instead.
    #[default]
    Either,
    /// `X-Forwarded-For` only.
    XForwardedFor,
    /// `Forwarded` (RFC 7239) only.
    Forwarded,
}

impl AddressPolicy {
    /// Whether a connection's other end may say who the caller is.
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            _ if self.trusted_hops > 0 => true,
            Some(address) => self.trusted_proxies.contains(address),
            None => self.trust_unix,
        }
    }

    /// The caller's address; `None` on a Unix socket that is not trusted, or whose process names no address.
    pub fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.map(fold);
        if !self.trusts(peer) {
            return peer;
        }
        let listed =
            self.header != ForwardingHeader::Forwarded && headers.contains_key(X_FORWARDED_FOR);
        let forwarded =
            self.header != ForwardingHeader::XForwardedFor && headers.contains_key(FORWARDED);
        match (listed, forwarded) {
            (false, false) => peer,
            (true, false) => self.walk(peer, listed_hops(headers)),
            (false, true) => self.walk(peer, forwarded_hops(headers)),
            (true, true) => {
                let client = self.walk(peer, listed_hops(headers));
                if client == self.walk(peer, forwarded_hops(headers)) {
                    client
                } else {
                    peer
                }
            }
        }
    }

    /// Follows `hops`, nearest first, while each is trusted.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        if let Some(last) = usize::from(self.trusted_hops).checked_sub(1) {
            // Fewer entries than proxies: it did not come through all of them.
            return hops.map(|hop| hop.map(fold)).nth(last).flatten().or(peer);
        }
        let mut client = peer;
        for hop in hops {
            let Some(address) = hop.map(fold) else {
                return client;
            };
            client = Some(address);
            if !self.trusted_proxies.contains(address) {
                break;
            }
        }
        client
    }

    /// The bytes that tell this caller from others: an IPv4 address whole, an IPv6 address by its prefix.
    pub fn key(&self, client: IpAddr) -> AddressKey {
        match fold(client) {
            IpAddr::V4(address) => AddressKey::V4(address.octets()),
            IpAddr::V6(address) => AddressKey::V6(masked(address, self.ipv6_prefix).octets()),
        }
    }

    /// The same for people: `192.0.2.7`, `2001:db8:1:2::/64`.
    pub fn words(&self, client: IpAddr) -> String {
        match fold(client) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!(
                "{}/{}",
                masked(address, self.ipv6_prefix),
                self.ipv6_prefix.min(128)
            ),
        }
    }
}

/// The bytes of an address that tell callers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKey {
    /// An IPv4 address.
    V4([u8; 4]),
    /// The prefix of an IPv6 address, the rest zero.
    V6([u8; 16]),
}

impl AddressKey {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// An address with IPv4 mapped into IPv6 (`::ffff:192.0.2.1`, as dual-stack sockets report it) folded back.
pub fn fold(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn masked(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let bits = u32::from(prefix.min(128));
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

/// `[v6]` of a host, in its canonical form with brackets.
pub(super) fn parse_host_address(text: &str) -> Option<String> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    inside
        .parse::<Ipv6Addr>()
        .ok()
        .map(|address| format!("[{address}]"))
}

#[cfg(test)]
mod tests;
