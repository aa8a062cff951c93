//! Determines the client's address. Forwarding headers are trusted only as far as trusted proxies
//! wrote them.
//!
//! The search goes from the connection outwards. While the current hop is trusted, the entry it
//! wrote (the rightmost one not yet read, over all lines of the header) is the next hop. The first
//! hop that is not trusted is the client. An entry that is not an address (`unknown`, `_hidden`,
//! garbage) ends the search at the last trusted hop, so that a client cannot choose its address. If
//! the file gives the number of proxies instead, the entry that the outermost proxy wrote is the
//! client. A header that has the client alone (`CF-Connecting-IP`) is that of the nearest hop: its one
//! entry is the client. IPv4 addresses mapped into IPv6 are converted to IPv4 first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::forwarded::{X_FORWARDED_FOR, forwarded_hops, listed_hops, only_hop};
use crate::routes::path::Malformed;
use tollgate_limit::KeyBytes;

pub use super::forwarded::{parse_forwarded, parse_hop};

/// How a client's address is determined: the only place that decides about trust.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    /// Forwarding headers are trusted only from these peers.
    pub trusted_proxies: NetSet,
    /// The number of proxies that every request passes, instead of their addresses; 0: not set.
    pub trusted_hops: u8,
    /// Whether forwarding headers are also trusted from a Unix socket: only local processes can
    /// connect to one.
    pub trust_unix: bool,
    pub header: ForwardingHeader,
    /// IPv6 clients are distinguished by this many leading bits.
    pub ipv6_prefix: u8,
    /// Clients with these addresses are never limited.
    pub exempt: NetSet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardingHeader {
    /// Whichever header is present. If both are present and name different clients, one of them was
    /// passed on unchecked from outside and it is unknown which: the request is refused, because
    /// every other choice would let a client choose its bucket.
    #[default]
    Either,
    XForwardedFor,
    Forwarded,
    XRealIp,
    CfConnectingIp,
    TrueClientIp,
    FlyClientIp,
}

impl ForwardingHeader {
    /// The name of a header that has the client alone.
    pub fn of_client(self) -> Option<HeaderName> {
        Some(HeaderName::from_static(match self {
            Self::Either | Self::XForwardedFor | Self::Forwarded => return None,
            Self::XRealIp => "x-real-ip",
            Self::CfConnectingIp => "cf-connecting-ip",
            Self::TrueClientIp => "true-client-ip",
            Self::FlyClientIp => "fly-client-ip",
        }))
    }

    pub fn names(self) -> impl Iterator<Item = HeaderName> {
        let listed = matches!(self, Self::Either | Self::XForwardedFor);
        let forwarded = matches!(self, Self::Either | Self::Forwarded);
        let listed = listed.then(|| HeaderName::from_static(X_FORWARDED_FOR));
        let lists = listed.into_iter().chain(forwarded.then_some(FORWARDED));
        lists.chain(self.of_client())
    }
}

impl AddressPolicy {
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            _ if self.trusted_hops > 0 => true,
            Some(address) => self.trusted_proxies.contains(address),
            None => self.trust_unix,
        }
    }

    /// The client's address; `None` on a Unix socket that is not trusted, or whose process names no
    /// address.
    /// It is an error if both forwarding headers are trusted and name different clients, or one that has the client alone
    /// names several.
    pub fn client(
        &self,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<Option<IpAddr>, Malformed> {
        let peer = peer.map(fold);
        if !self.trusts(peer) {
            return Ok(peer);
        }
        self.client_of(peer, headers)
    }

    /// The client's address as a trusted `peer` tells it by its forwarding headers; `peer` itself if
    /// they name none.
    pub fn client_of(
        &self,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<Option<IpAddr>, Malformed> {
        if let Some(name) = self.header.of_client() {
            let client = only_hop(headers, &name)?;
            return Ok(client.map(fold).or(peer));
        }
        Ok(match self.present(headers) {
            (false, false) => peer,
            (true, false) => self.walk(peer, listed_hops(headers)),
            (false, true) => self.walk(peer, forwarded_hops(headers)),
            (true, true) => {
                let client = self.walk(peer, listed_hops(headers));
                if client != self.walk(peer, forwarded_hops(headers)) {
                    return Err(Malformed::Client);
                }
                client
            }
        })
    }

    /// Whether a forwarding header is present that names the client.
    pub fn is_told(&self, headers: &HeaderMap) -> bool {
        self.header.names().any(|name| headers.contains_key(name))
    }

    /// Whether X-Forwarded-For and Forwarded are present, each only if it counts.
    fn present(&self, headers: &HeaderMap) -> (bool, bool) {
        let listed =
            self.header != ForwardingHeader::Forwarded && headers.contains_key(X_FORWARDED_FOR);
        let forwarded =
            self.header != ForwardingHeader::XForwardedFor && headers.contains_key(FORWARDED);
        (listed, forwarded)
    }

    /// Follows `hops`, nearest first, while each is trusted.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        if let Some(last) = usize::from(self.trusted_hops).checked_sub(1) {
            // Fewer entries than proxies: the request did not pass all of them.
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

    /// The bytes that distinguish this client: a whole IPv4 address, or the prefix of an IPv6
    /// address, with the rest zero.
    pub fn key(&self, client: IpAddr) -> KeyBytes {
        match network(client, self.ipv6_prefix) {
            IpAddr::V4(address) => KeyBytes::from_slice(&address.octets()),
            IpAddr::V6(address) => KeyBytes::from_slice(&address.octets()),
        }
    }

    /// The same in readable form: `192.0.2.7`, `2001:db8:1:2::/64`.
    pub fn words(&self, client: IpAddr) -> String {
        match network(client, self.ipv6_prefix) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("{address}/{}", self.ipv6_prefix.min(128)),
        }
    }
}

/// What distinguishes a client: its IPv4 address, also where a network has put it into an IPv6
/// address, or the first address with the same `prefix` bits.
pub fn network(client: IpAddr, prefix: u8) -> IpAddr {
    match fold(client) {
        IpAddr::V6(address) => match within(address) {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(masked(address, prefix)),
        },
        address => address,
    }
}

/// The IPv4 address within an address that translates it (NAT64, RFC 6052) or is compatible with it
/// (RFC 4291). Trust is never decided by it.
fn within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [prefix @ .., high, low] = address.segments();
    let is_translated = prefix == [0x64, 0xff9b, 0, 0, 0, 0];
    // `::` and `::1` are addresses of IPv6.
    let is_compatible = prefix == [0; 6] && high != 0;
    let bits = u32::from(high) << 16 | u32::from(low);
    (is_translated || is_compatible).then(|| Ipv4Addr::from_bits(bits))
}

/// Converts IPv4 mapped into IPv6 (`::ffff:192.0.2.1`, as dual-stack sockets report it) back to IPv4.
pub fn fold(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn masked(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let bits = u32::from(prefix.min(128));
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

/// A set of networks, sorted and disjoint: a look-up is one binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetSet(Vec<IpNet>);

impl NetSet {
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = fold(address);
        let after = self.0.partition_point(|net| net.network() <= address);
        after > 0 && self.0[after - 1].contains(&address)
    }

    /// Whether it contains a sixteenth of all IPv4 addresses, or of all IPv6 addresses, or more: no
    /// networks of one owner do.
    pub fn is_most(&self) -> bool {
        // A whole family of addresses has 2^120 parts; the smallest networks count as one.
        let share = |is_v4: bool| -> u128 {
            let family = self.0.iter().filter(|net| net.addr().is_ipv4() == is_v4);
            family
                .map(|net| 1 << (120 - net.prefix_len().min(120)))
                .sum()
        };
        share(true).max(share(false)) >= 1 << 116
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        // Of two networks that overlap, one contains the other.
        let contains_one = |set: &Self, nets: &Self| {
            let mut nets = nets.0.iter();
            nets.any(|net| set.contains(net.network()))
        };
        contains_one(self, other) || contains_one(other, self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpNet> for NetSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let mut all: Vec<IpNet> = nets.into_iter().collect();
        all.extend(all.clone().into_iter().filter_map(folded));
        Self(IpNet::aggregate(&all))
    }
}

/// The IPv4 network that a network of IPv6 contains: its part inside `::ffff:0:0/96`, whose addresses
/// are converted to IPv4 before they are looked up.
fn folded(net: IpNet) -> Option<IpNet> {
    const MAPPED: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0));
    match (net, net.prefix_len().checked_sub(96)) {
        (IpNet::V6(_), Some(prefix)) => match fold(net.network()) {
            IpAddr::V4(within) => IpNet::new(within.into(), prefix).ok(),
            IpAddr::V6(_) => None,
        },
        _ => net.contains(&MAPPED).then(IpNet::default),
    }
}

/// `[v6]` of a host, in its canonical form with brackets.
pub(crate) fn parse_host_address(text: &str) -> Option<String> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    inside
        .parse::<Ipv6Addr>()
        .ok()
        .map(|address| format!("[{address}]"))
}

#[cfg(test)]
mod tests;
