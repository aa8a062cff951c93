//! Notices a proxy whose forwarding headers are not believed because the file trusts none: all clients
//! behind it then have its address, and share its buckets.

use std::net::IpAddr;
use std::sync::OnceLock;

use tollgate_policy::identity::address::{AddressPolicy, fold};

#[derive(Debug, Default)]
pub struct UntrustedProxy {
    /// Its address; `None`: it is connected to a Unix socket.
    peer: OnceLock<Option<IpAddr>>,
}

impl UntrustedProxy {
    /// Takes note of the peer of a request with a forwarding header, and logs the first one. A
    /// client on the internet may write such a header itself, a peer in a private network is
    /// probably a proxy.
    pub(crate) fn note(&self, peer: Option<IpAddr>, policy: &AddressPolicy) {
        if self.peer.get().is_some() || is_told(policy, peer) || !peer.is_none_or(is_private) {
            return;
        }
        if self.peer.set(peer).is_ok() {
            tracing::warn!("{}", words(peer));
        }
    }

    /// What is wrong, if it was noticed and the policy in force has not mended it.
    pub fn words(&self, policy: &AddressPolicy) -> Option<String> {
        let peer = *self.peer.get()?;
        (!is_told(policy, peer)).then(|| words(peer))
    }
}

/// Whether the file says which peers are proxies.
fn is_told(policy: &AddressPolicy, peer: Option<IpAddr>) -> bool {
    !policy.trusted_proxies.is_empty() || policy.trusts(peer)
}

fn words(peer: Option<IpAddr>) -> String {
    let (peer, key) = match peer {
        Some(peer) => {
            let peer = fold(peer);
            (peer.to_string(), format!("trusted_proxies = [\"{peer}\"]"))
        }
        None => ("a Unix socket".to_owned(), "trust_unix = true".to_owned()),
    };
    format!(
        "requests from {peer} name other clients in a forwarding header, which is not believed: all of them count as one client; \
         if that is a proxy of yours: [address] {key}, with the networks of all your proxies (trusted_proxies is empty)"
    )
}

/// Whether an address is one of a network that is not reached from the internet.
fn is_private(address: IpAddr) -> bool {
    match fold(address) {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let shared = first == 100 && second & 0xc0 == 64;
            v4.is_private() || v4.is_loopback() || v4.is_link_local() || shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_proxy_is_noticed_once_and_until_the_file_names_it() {
        let nobody = AddressPolicy::default();
        let noticed = |peer: &str| {
            let proxy = UntrustedProxy::default();
            proxy.note(peer.parse().ok(), &nobody);
            proxy.words(&nobody).is_some()
        };
        for private in [
            "10.0.0.5",
            "127.0.0.1",
            "100.64.0.1",
            "::ffff:192.168.0.1",
            "fd00::1",
            "::1",
            "unix",
        ] {
            assert!(noticed(private), "{private}");
        }
        for public in ["198.51.100.1", "100.128.0.1", "2001:db8::1"] {
            assert!(
                !noticed(public),
                "{public} may be a client that writes the header itself"
            );
        }

        let proxy = UntrustedProxy::default();
        let peer = "10.0.0.5".parse().ok();
        let trusting = AddressPolicy {
            trusted_proxies: "10.0.0.0/8".parse().into_iter().collect(),
            ..AddressPolicy::default()
        };
        let counting = AddressPolicy {
            trusted_hops: 1,
            ..AddressPolicy::default()
        };
        for policy in [&trusting, &counting] {
            proxy.note(peer, policy);
            assert_eq!(proxy.words(&nobody), None, "the file says who is believed");
        }
        proxy.note(peer, &nobody);
        proxy.note("10.0.0.6".parse().ok(), &nobody);
        let words = proxy.words(&nobody).expect("noticed");
        assert!(
            words.contains("trusted_proxies = [\"10.0.0.5\"]"),
            "{words}"
        );
        for policy in [&trusting, &counting] {
            assert_eq!(proxy.words(policy), None, "the file names it now");
        }
    }
}
