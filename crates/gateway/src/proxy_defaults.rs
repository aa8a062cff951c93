//! Settings that apply to requests of every route: limits on bodies and upgrades, the gateway's
//! name, its direction.

use http::header::VIA;
use http::{HeaderMap, HeaderValue, Version};

use tollgate_http1::tokens;
use tollgate_limit::Micros;

#[derive(Clone, Debug)]
pub struct ProxyDefaults {
    /// The largest request body if a route sets none, in bytes; `None`: unlimited.
    pub body_max: Option<u64>,
    /// How long a client may send nothing of its body.
    pub body_idle: Micros,
    /// The minimum rate of a body in bytes a second; 0: no such limit.
    pub body_rate: u64,
    /// A body that was awaited for less than this in total may arrive at any rate.
    pub body_grace: Micros,
    /// The number of concurrent requests; `None`: no limit of its own.
    pub requests: Option<usize>,
    pub held_bodies: usize,
    /// Protocols to which a connection may be upgraded, in lower case.
    pub upgrades: Vec<String>,
    pub upgrade_idle: Micros,
    /// The gateway's name; `None`: it is not sent.
    pub via: Option<Via>,
    /// Whether upstreams are external services, which receive no information about callers.
    pub egress: bool,
}

pub const BODY_GRACE: Micros = Micros::from_secs(10);

/// Settings for tests: those of a file that says nothing (a test of the program compares them).
impl Default for ProxyDefaults {
    fn default() -> Self {
        Self {
            body_max: None,
            body_idle: Micros::from_secs(30),
            body_rate: 100,
            body_grace: BODY_GRACE,
            requests: None,
            held_bodies: 256 << 20,
            upgrades: vec!["websocket".to_owned()],
            upgrade_idle: Micros::from_secs(300),
            via: Some(Via::new("tollgate")),
            egress: false,
        }
    }
}

impl ProxyDefaults {
    pub fn upgrades_to(&self, named: &HeaderValue) -> bool {
        let name = protocol_name(named);
        self.upgrades.iter().any(|known| {
            known
                .as_bytes()
                .eq_ignore_ascii_case(named.as_bytes().trim_ascii())
                || known.as_bytes().eq_ignore_ascii_case(name)
        })
    }
}

/// The name in `name["/"version]`, by which protocols are compared here.
pub fn protocol_name(named: &HeaderValue) -> &[u8] {
    named
        .as_bytes()
        .split(|byte| *byte == b'/')
        .next()
        .unwrap_or_default()
        .trim_ascii()
}

/// The gateway's entries in `Via` (RFC 9110 section 7.6.3), built once.
///
/// Entries of requests carry a random mark in their comment: a request that comes back with it is
/// in a loop. The name alone is not enough, because gateways of the same name may be chained.
#[derive(Clone, Debug)]
pub struct Via {
    requests: [HeaderValue; 3],
    responses: [HeaderValue; 3],
    own: String,
}

impl Via {
    /// The entries of a gateway called `name`, a token.
    ///
    /// # Panics
    /// If `name` is not allowed in a header.
    pub fn new(name: &str) -> Self {
        let own = format!("{name} ({:08x})", fastrand::u32(..));
        let entry = |by: &str| {
            ["1.0", "1.1", "2.0"].map(|version| {
                HeaderValue::from_maybe_shared(bytes::Bytes::from(format!("{version} {by}")))
                    .expect("a token and digits are visible ASCII")
            })
        };
        Self {
            requests: entry(&own),
            responses: entry(name),
            own,
        }
    }

    pub fn of_request(&self, version: Version) -> HeaderValue {
        self.requests[place(version)].clone()
    }

    pub fn of_response(&self, version: Version) -> HeaderValue {
        self.responses[place(version)].clone()
    }

    /// Whether a request has already passed through this gateway.
    pub fn has_passed(&self, headers: &HeaderMap) -> bool {
        let mut entries = headers
            .get_all(VIA)
            .iter()
            .flat_map(|line| tokens(line.as_bytes()));
        entries.any(|entry| entry.ends_with(self.own.as_bytes()))
    }
}

fn place(version: Version) -> usize {
    match version {
        Version::HTTP_2 => 2,
        Version::HTTP_11 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_again_by_the_mark_and_not_by_the_name() {
        let via = Via::new("edge");
        let mut headers = HeaderMap::new();
        headers.append(VIA, HeaderValue::from_static("1.1 edge, 1.0 edge (00)"));
        assert!(!via.has_passed(&headers), "another gateway of that name");
        headers.append(VIA, via.of_request(Version::HTTP_2));
        assert!(via.has_passed(&headers));
        let joined = headers
            .get_all(VIA)
            .iter()
            .map(|line| line.to_str().expect("text"))
            .collect::<Vec<_>>()
            .join(", ");
        assert!(
            joined.starts_with("1.1 edge, 1.0 edge (00), 2.0 edge ("),
            "{joined}"
        );
        let mut through_another = HeaderMap::new();
        through_another.insert(
            VIA,
            HeaderValue::from_str(&format!("{joined} , 1.1 other")).expect("text"),
        );
        assert!(via.has_passed(&through_another));
        assert_eq!(via.of_response(Version::HTTP_11), "1.1 edge");
    }

    #[test]
    fn an_upgrade_is_allowed_by_its_name() {
        let defaults = ProxyDefaults {
            upgrades: vec!["websocket".to_owned(), "tls/1.0".to_owned()],
            ..ProxyDefaults::default()
        };
        for (named, allowed) in [
            ("WebSocket", true),
            ("websocket/13", true),
            ("TLS/1.0", true),
            ("tls", false),
            ("h2c", false),
        ] {
            assert_eq!(
                defaults.upgrades_to(&HeaderValue::from_static(named)),
                allowed,
                "{named}"
            );
        }
    }
}
