use super::*;
use http::HeaderValue;
use ipnet::IpNet;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn nets(list: &[&str]) -> NetSet {
    list.iter()
        .map(|net| net.parse::<IpNet>().expect("a network"))
        .collect()
}

fn policy() -> AddressPolicy {
    AddressPolicy {
        trusted_proxies: nets(&["10.0.0.0/8", "fd00::/8"]),
        ipv6_prefix: 64,
        ..AddressPolicy::default()
    }
}

fn client(policy: &AddressPolicy, peer: &str, headers: &[(&'static str, &str)]) -> String {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).expect("a value"));
    }
    match policy.client(peer.parse().ok(), &map) {
        Ok(client) => client.map_or("none".into(), |address| address.to_string()),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn an_untrusted_peer_is_the_caller_whatever_it_writes() {
    assert_eq!(
        client(&policy(), "192.0.2.1", &[("x-forwarded-for", "1.2.3.4")]),
        "192.0.2.1"
    );
    assert_eq!(
        client(
            &policy(),
            "::ffff:192.0.2.1",
            &[("forwarded", "for=1.2.3.4")]
        ),
        "192.0.2.1"
    );
    assert_eq!(
        client(&policy(), "unix", &[("x-forwarded-for", "1.2.3.4")]),
        "none"
    );
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
        let headers: Vec<_> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        assert_eq!(client(&policy, "10.0.0.1", &headers), expected, "{lines:?}");
    }
}

#[test]
fn forwarded_is_read_as_its_rfc_says() {
    let policy = policy();
    for (line, expected) in [
        (
            "for=6.6.6.6, for=1.2.3.4;proto=http;by=10.0.0.1, For=\"10.0.0.2:80\"",
            "1.2.3.4",
        ),
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
        assert_eq!(
            client(&policy, "10.0.0.1", &[("forwarded", line)]),
            expected,
            "{line}"
        );
    }
}

#[test]
fn address_headers_that_disagree_are_refused() {
    let both = |other| [("x-forwarded-for", "1.2.3.4"), ("forwarded", other)];
    assert_eq!(
        client(&policy(), "10.0.0.1", &both("for=1.2.3.4")),
        "1.2.3.4"
    );
    assert_eq!(
        client(&policy(), "10.0.0.1", &both("for=6.6.6.6")),
        "Client"
    );
    // An entry that is no address names the proxy: another client than the other header names.
    assert_eq!(client(&policy(), "10.0.0.1", &both(";;;")), "Client");
    // What a peer that is not trusted writes names no client.
    assert_eq!(
        client(&policy(), "192.0.2.1", &both("for=6.6.6.6")),
        "192.0.2.1"
    );
    let only = AddressPolicy {
        header: ForwardingHeader::XForwardedFor,
        ..policy()
    };
    assert_eq!(client(&only, "10.0.0.1", &both("for=6.6.6.6")), "1.2.3.4");
}

#[test]
fn a_trusted_unix_socket_may_name_the_caller() {
    let trusting = AddressPolicy {
        trust_unix: true,
        ..policy()
    };
    assert_eq!(
        client(&trusting, "unix", &[("x-forwarded-for", "1.2.3.4")]),
        "1.2.3.4"
    );
    assert_eq!(
        client(&trusting, "unix", &[("x-forwarded-for", "junk")]),
        "none"
    );
}

#[test]
fn ipv6_callers_share_their_prefix() {
    let policy = policy();
    let key = |text: &str| policy.key(text.parse().expect("an address"));
    assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
    assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    assert_eq!(key("::ffff:1.2.3.4"), key("1.2.3.4"));
    assert_ne!(key("1.2.3.4"), key("1.2.3.5"));
    assert_eq!(
        policy.words("2001:db8:1:2::1".parse().expect("an address")),
        "2001:db8:1:2::/64"
    );
    for (prefix, expected) in [(0, "::"), (128, "2001:db8::1")] {
        assert_eq!(
            masked("2001:db8::1".parse().expect("an address"), prefix).to_string(),
            expected
        );
    }
}

#[test]
fn ipv4_client_within_an_ipv6_address_is_counted_by_its_ipv4_address() {
    let policy = policy();
    let key = |text: &str| policy.key(text.parse().expect("an address"));
    let of_v4 = key("198.51.100.7");
    for text in [
        "64:ff9b::c633:6407",
        "64:ff9b::198.51.100.7",
        "::ffff:198.51.100.7",
        "::198.51.100.7",
    ] {
        assert_eq!(key(text), of_v4, "{text}");
        let words = policy.words(text.parse().expect("an address"));
        assert_eq!(words, "198.51.100.7", "{text}");
    }
    for text in [
        "::1",
        "::",
        "64:ff9b:1::c633:6407",
        "64:ff9b:0:0:1::c633:6407",
    ] {
        assert_eq!(key(text).len(), 16, "{text}");
    }
    // Trust and exemption are of the address itself: a client could write such a one.
    let trusted = client(
        &policy,
        "64:ff9b::10.0.0.1",
        &[("x-forwarded-for", "1.2.3.4")],
    );
    assert_eq!(trusted, "64:ff9b::a00:1");
    assert_eq!(
        client(
            &policy,
            "10.0.0.1",
            &[("x-forwarded-for", "1.2.3.4, 64:ff9b::10.0.0.1")]
        ),
        "64:ff9b::a00:1"
    );
}

#[test]
fn address_header_with_the_client_alone_is_believed_from_trusted_proxies() {
    let policy = AddressPolicy {
        header: ForwardingHeader::CfConnectingIp,
        ..policy()
    };
    let name = "cf-connecting-ip";
    for (peer, headers, expected) in [
        (
            "10.0.0.1",
            vec![(name, "2001:db8:1:2::9")],
            "2001:db8:1:2::9",
        ),
        ("10.0.0.1", vec![(name, " 1.2.3.4 ")], "1.2.3.4"),
        ("10.0.0.1", vec![(name, "10.9.9.9")], "10.9.9.9"),
        (
            "10.0.0.1",
            vec![
                (name, "1.2.3.4"),
                ("x-forwarded-for", "6.6.6.6"),
                ("forwarded", "for=7.7.7.7"),
            ],
            "1.2.3.4",
        ),
        ("192.0.2.1", vec![(name, "1.2.3.4")], "192.0.2.1"),
        ("10.0.0.1", vec![("x-real-ip", "1.2.3.4")], "10.0.0.1"),
        ("10.0.0.1", vec![(name, "1.2.3.4, 5.6.7.8")], "10.0.0.1"),
        ("10.0.0.1", vec![(name, "")], "10.0.0.1"),
        (
            "10.0.0.1",
            vec![(name, "1.2.3.4"), (name, "1.2.3.4")],
            "1.2.3.4",
        ),
        (
            "10.0.0.1",
            vec![(name, "1.2.3.4"), (name, "6.6.6.6")],
            "Client",
        ),
    ] {
        assert_eq!(
            client(&policy, peer, &headers),
            expected,
            "{peer} {headers:?}"
        );
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

#[test]
fn trusted_hops_count_proxies_from_the_connection_outwards() {
    let policy = |trusted_hops| AddressPolicy {
        trusted_hops,
        ipv6_prefix: 64,
        ..AddressPolicy::default()
    };
    let list = [("x-forwarded-for", "203.0.113.9, 192.0.2.7, 10.0.0.1")];
    for (hops, address) in [(1, "10.0.0.1"), (2, "192.0.2.7"), (3, "203.0.113.9")] {
        assert_eq!(client(&policy(hops), "198.51.100.1", &list), address);
    }
    // It did not come through so many proxies: nothing of the list is believed.
    assert_eq!(client(&policy(4), "198.51.100.1", &list), "198.51.100.1");
    let hidden = [("x-forwarded-for", "192.0.2.7, unknown")];
    assert_eq!(client(&policy(1), "198.51.100.1", &hidden), "198.51.100.1");
    assert_eq!(client(&policy(2), "198.51.100.1", &hidden), "192.0.2.7");
    assert_eq!(client(&policy(0), "198.51.100.1", &list), "198.51.100.1");
}
