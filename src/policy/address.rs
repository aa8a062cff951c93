//! The caller's address: believed from forwarding headers only as far as trusted proxies vouch for it.
//!
//! The walk goes from the connection outwards: while the hop we stand at is trusted, the entry it wrote (the
//! rightmost not yet read, over all lines of the field) is the next hop; the first hop that is not trusted is the
//! caller. An entry that is no address (`unknown`, `_hidden`, garbage) ends the walk at the last trusted hop, so
//! that nothing a caller writes can choose its address. IPv4 addresses mapped into IPv6 are folded first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderMap;
use http::header::FORWARDED;
use ipnet::IpNet;

/// How a caller's address is known: the one place for trust.
#[derive(Clone, Debug)]
pub struct AddressPolicy {
    /// Forwarding headers are believed only from these.
    pub trusted_proxies: NetSet,
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
        let listed = self.header != ForwardingHeader::Forwarded && headers.contains_key(X_FORWARDED_FOR);
        let forwarded = self.header != ForwardingHeader::XForwardedFor && headers.contains_key(FORWARDED);
        match (listed, forwarded) {
            (false, false) => peer,
            (true, false) => self.walk(peer, listed_hops(headers)),
            (false, true) => self.walk(peer, forwarded_hops(headers)),
            (true, true) => {
                let client = self.walk(peer, listed_hops(headers));
                if client == self.walk(peer, forwarded_hops(headers)) { client } else { peer }
            }
        }
    }

    /// Follows `hops`, nearest first, while each is trusted.
    fn walk(&self, peer: Option<IpAddr>, hops: impl Iterator<Item = Option<IpAddr>>) -> Option<IpAddr> {
        let mut client = peer;
        for hop in hops {
            let Some(address) = hop.map(fold) else { return client };
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
            IpAddr::V6(address) => format!("{}/{}", masked(address, self.ipv6_prefix), self.ipv6_prefix.min(128)),
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

/// A set of networks as sorted, disjoint ranges: a look-up is one binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetSet {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl NetSet {
    /// Whether one of the networks holds `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        match fold(address) {
            IpAddr::V4(address) => holds(&self.v4, address.to_bits()),
            IpAddr::V6(address) => holds(&self.v6, address.to_bits()),
        }
    }

    /// Whether no network is in it.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl FromIterator<IpNet> for NetSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let mut set = Self::default();
        for net in nets {
            match net {
                IpNet::V4(net) => set.v4.push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => {
                    let (from, to) = (net.network().to_bits(), net.broadcast().to_bits());
                    set.v6.push((from, to));
                    // What a mapped network means once addresses are folded: the part of it inside ::ffff:0:0/96.
                    let (low, high) = (from.max(MAPPED_FIRST), to.min(MAPPED_LAST));
                    if low <= high {
                        set.v4.push((low_half(low), low_half(high)));
                    }
                }
            }
        }
        set.v4 = merged(set.v4);
        set.v6 = merged(set.v6);
        set
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are the IPv4 address")]
fn low_half(bits: u128) -> u32 {
    bits as u32
}

fn holds<T: Ord + Copy>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|(from, _)| *from <= value);
    after > 0 && ranges[after - 1].1 >= value
}

fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// The entries of X-Forwarded-For over all its lines, nearest (rightmost) first; `None` for what is no address.
/// Empty elements are skipped (RFC 9110 section 5.6.1).
fn listed_hops(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers.get_all(X_FORWARDED_FOR).iter().rev().flat_map(|line| {
        line.as_bytes()
            .rsplit(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|entry| !entry.is_empty())
            .map(parse_hop)
    })
}

/// The same for `Forwarded`. Elements are separated outside quotes, so a line is read from its start; one that is
/// not well formed is a single entry that is no address.
fn forwarded_hops(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers
        .get_all(FORWARDED)
        .iter()
        .rev()
        .flat_map(|line| parse_forwarded(line.as_bytes()).unwrap_or_else(|| vec![None]).into_iter().rev())
}

/// The `for` of each element of one Forwarded line (RFC 7239 section 4), in its order; `None` when the line does not
/// parse. Never panics, whatever the bytes.
pub fn parse_forwarded(line: &[u8]) -> Option<Vec<Option<IpAddr>>> {
    let mut hops = Vec::new();
    let mut element = ForwardedElement::default();
    let mut rest = line.trim_ascii_start();
    loop {
        // A pair, or nothing before a separator.
        if let Some((&first, _)) = rest.split_first()
            && first != b','
            && first != b';'
        {
            let name_end = rest.iter().position(|&byte| !is_token(byte))?;
            let (name, after) = rest.split_at(name_end);
            let after = after.strip_prefix(b"=")?;
            let (value, after) = parse_value(after)?;
            if name.is_empty() {
                return None;
            }
            element.add(name, &value);
            rest = after.trim_ascii_start();
        }
        match rest.split_first() {
            None => {
                hops.extend(element.finish());
                return Some(hops);
            }
            Some((b',', after)) => {
                hops.extend(std::mem::take(&mut element).finish());
                rest = after.trim_ascii_start();
            }
            Some((b';', after)) => rest = after.trim_ascii_start(),
            Some(_) => return None,
        }
    }
}

#[derive(Default)]
struct ForwardedElement {
    pairs: usize,
    fors: usize,
    hop: Option<IpAddr>,
}

impl ForwardedElement {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.pairs += 1;
        if name.eq_ignore_ascii_case(b"for") {
            self.fors += 1;
            self.hop = parse_hop(value);
        }
    }

    /// Its entry: nothing for an empty element, no address for one without `for` or with two.
    fn finish(self) -> Option<Option<IpAddr>> {
        match (self.pairs, self.fors) {
            (0, _) => None,
            (_, 1) => Some(self.hop),
            _ => Some(None),
        }
    }
}

/// A token or a quoted string, unquoted, and what follows it.
fn parse_value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|&byte| !is_token(byte)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_vec(), &text[end..]));
    };
    let mut value = Vec::new();
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((value, rest)),
            b'\\' => {
                let (&escaped, after) = rest.split_first()?;
                value.push(escaped);
                rest = after;
            }
            _ => value.push(byte),
        }
    }
}

/// A token character (RFC 9110 section 5.6.2), and `:` `[` `]`, which senders leave unquoted.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:[]".contains(&byte)
}

/// An entry of a forwarding header: an address, with or without a port, IPv6 with or without brackets; `None` for
/// `unknown`, an obfuscated identifier, a zone or anything else.
pub fn parse_hop(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim_ascii();
    if let Some(inside) = text.strip_prefix('[') {
        let (address, port) = inside.split_once(']')?;
        let port_is_right = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return if port_is_right { address.parse::<Ipv6Addr>().ok().map(IpAddr::V6) } else { None };
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => {
            if is_port(port) {
                address.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
            } else {
                None
            }
        }
        _ => text.parse().ok(),
    }
}

/// Digits, or an obfuscated port (`_x`), which some senders add.
fn is_port(text: &str) -> bool {
    let obfuscated = text.strip_prefix('_');
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    digits || obfuscated.is_some_and(|name| !name.is_empty() && name.bytes().all(is_token))
}

/// `[v6]` of a host, in its canonical form with brackets.
pub(super) fn parse_host_address(text: &str) -> Option<String> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    inside.parse::<Ipv6Addr>().ok().map(|address| format!("[{address}]"))
}

/// The list of hops that no RFC names and every proxy writes.
const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// `::ffff:0.0.0.0`.
const MAPPED_FIRST: u128 = 0xffff_0000_0000;
/// `::ffff:255.255.255.255`.
const MAPPED_LAST: u128 = 0xffff_ffff_ffff;

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn nets(list: &[&str]) -> NetSet {
        list.iter().map(|net| net.parse::<IpNet>().expect("a network")).collect()
    }

    fn policy() -> AddressPolicy {
        AddressPolicy { trusted_proxies: nets(&["10.0.0.0/8", "fd00::/8"]), ..AddressPolicy::default() }
    }

    fn client(policy: &AddressPolicy, peer: &str, headers: &[(&'static str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        policy.client(peer.parse().ok(), &map).map_or("none".into(), |address| address.to_string())
    }

    #[test]
    fn an_untrusted_peer_is_the_caller_whatever_it_writes() {
        assert_eq!(client(&policy(), "192.0.2.1", &[("x-forwarded-for", "1.2.3.4")]), "192.0.2.1");
        assert_eq!(client(&policy(), "::ffff:192.0.2.1", &[("forwarded", "for=1.2.3.4")]), "192.0.2.1");
        assert_eq!(client(&policy(), "unix", &[("x-forwarded-for", "1.2.3.4")]), "none");
    }

    #[test]
    fn the_rightmost_untrusted_entry_over_all_lines_is_the_caller() {
        let policy = policy();
        for (lines, expected) in [
            (vec!["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
            (vec!["6.6.6.6", "1.2.3.4", "10.0.0.2, 10.0.0.3"], "1.2.3.4"),
            (vec!["1.2.3.4:5678"], "1.2.3.4"),
            (vec!["[2001:db8::1]:80"], "2001:db8::1"),
            (vec!["2001:db8::1"], "2001:db8::1"),
            (vec!["::ffff:1.2.3.4"], "1.2.3.4"),
            (vec!["1.2.3.4,, ,"], "1.2.3.4"),
            (vec!["10.0.0.9, 10.0.0.8"], "10.0.0.9"),
            (vec![""], "10.0.0.1"),
            (vec!["1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2"),
            (vec!["1.2.3.4, junk"], "10.0.0.1"),
            (vec!["1.2.3.4, fe80::1%eth0"], "10.0.0.1"),
            (vec!["1.2.3.4:x"], "10.0.0.1"),
            (vec!["[::1"], "10.0.0.1"),
        ] {
            let headers: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            assert_eq!(client(&policy, "10.0.0.1", &headers), expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_is_read_as_its_rfc_says() {
        let policy = policy();
        for (line, expected) in [
            ("for=6.6.6.6, for=1.2.3.4;proto=http;by=10.0.0.1, For=\"10.0.0.2:80\"", "1.2.3.4"),
            ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=1.2.3.4; host=\"a,b;for=9.9.9.9\"", "1.2.3.4"),
            ("for=1.2.3.4, for=unknown", "10.0.0.1"),
            ("for=1.2.3.4, for=_hidden", "10.0.0.1"),
            ("for=1.2.3.4, proto=https", "10.0.0.1"),
            ("for=1.2.3.4, for=1.1.1.1;for=2.2.2.2", "10.0.0.1"),
            ("for=1.2.3.4, host=\"unclosed", "10.0.0.1"),
            ("for=1.2.3.4,,", "1.2.3.4"),
            ("for=\"1.2.3\\.4\"", "1.2.3.4"),
            ("for = 1.2.3.4", "10.0.0.1"),
        ] {
            assert_eq!(client(&policy, "10.0.0.1", &[("forwarded", line)]), expected, "{line}");
        }
    }

    #[test]
    fn two_headers_that_disagree_are_not_believed() {
        let both = |other| [("x-forwarded-for", "1.2.3.4"), ("forwarded", other)];
        assert_eq!(client(&policy(), "10.0.0.1", &both("for=1.2.3.4")), "1.2.3.4");
        assert_eq!(client(&policy(), "10.0.0.1", &both("for=6.6.6.6")), "10.0.0.1");
        let only = AddressPolicy { header: ForwardingHeader::XForwardedFor, ..policy() };
        assert_eq!(client(&only, "10.0.0.1", &both("for=6.6.6.6")), "1.2.3.4");
    }

    #[test]
    fn a_trusted_unix_socket_may_name_the_caller() {
        let trusting = AddressPolicy { trust_unix: true, ..policy() };
        assert_eq!(client(&trusting, "unix", &[("x-forwarded-for", "1.2.3.4")]), "1.2.3.4");
        assert_eq!(client(&trusting, "unix", &[("x-forwarded-for", "junk")]), "none");
    }

    #[test]
    fn ipv6_callers_share_their_prefix() {
        let policy = policy();
        let key = |text: &str| policy.key(text.parse().expect("an address"));
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_eq!(key("::ffff:1.2.3.4"), key("1.2.3.4"));
        assert_ne!(key("1.2.3.4"), key("1.2.3.5"));
        assert_eq!(policy.words("2001:db8:1:2::1".parse().expect("an address")), "2001:db8:1:2::/64");
        for (prefix, expected) in [(0, "::"), (128, "2001:db8::1")] {
            assert_eq!(masked("2001:db8::1".parse().expect("an address"), prefix).to_string(), expected);
        }
    }

    #[test]
    fn a_mapped_network_holds_the_ipv4_addresses_it_means() {
        assert!(nets(&["::ffff:10.0.0.0/104"]).contains("10.1.2.3".parse().expect("an address")));
        assert!(!nets(&["::ffff:10.0.0.0/104"]).contains("11.1.2.3".parse().expect("an address")));
        assert!(nets(&["::/0"]).contains("1.2.3.4".parse().expect("an address")));
    }

    proptest! {
        #[test]
        fn a_set_holds_what_any_of_its_networks_holds(
            list in prop::collection::vec((any::<u32>(), 0u8..=32), 0..12), probes in prop::collection::vec(any::<u32>(), 8),
        ) {
            let list: Vec<IpNet> = list.iter()
                .filter_map(|(bits, prefix)| IpNet::new(Ipv4Addr::from_bits(*bits).into(), *prefix).ok()).collect();
            let set: NetSet = list.iter().copied().collect();
            let edges = list.iter().flat_map(|net| [net.network(), net.broadcast()]);
            for address in probes.iter().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(*bits))).chain(edges) {
                prop_assert_eq!(set.contains(address), list.iter().any(|net| net.contains(&address)));
            }
        }

        #[test]
        fn no_bytes_upset_the_parsers(line in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_forwarded(&line);
            let _ = parse_hop(&line);
        }

        #[test]
        fn nothing_a_caller_prepends_changes_who_it_is(junk in "[ -~]{0,40}") {
            let line = format!("{junk}, 1.2.3.4, 10.0.0.2");
            prop_assert_eq!(client(&policy(), "10.0.0.1", &[("x-forwarded-for", &line)]), "1.2.3.4");
        }
    }
}
