//! The line of the access log.

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Version};
use smallvec::SmallVec;

use super::Journal;
use tollgate_telemetry::access;

/// What only the access log wants.
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) path: Option<PathAndQuery>,
    pub(super) version: Version,
    pub(super) host: Option<HeaderValue>,
    pub(super) user_agent: Option<HeaderValue>,
    pub(super) referer: Option<HeaderValue>,
}

impl Journal {
    pub(super) fn log(
        &self,
        writer: &access::AccessWriter,
        head: &Head,
        [received_bytes, sent_bytes]: [u64; 2],
        took: u64,
    ) {
        let (names, standings) = (&self.snapshot.names, self.judged.standings());
        let mut charges = SmallVec::<[access::Charge<'_>; 4]>::new();
        for (place, charge) in self.claims.charges().iter().enumerate() {
            charges.push(access::Charge {
                limit: &names.limits[charge.limit],
                key: self.claims.key(charge),
                cost: charge.cost,
                remaining: standings.get(place).map_or(0, |standing| standing.remaining),
                outcome: self.judged.outcome(place, charge),
            });
        }
        let id = self.id();
        writer.record(&access::Record {
            at_micros: self.at.as_micros(),
            id: id.as_str(),
            method: head.method.as_str(),
            path: head.path.as_ref().map_or("", PathAndQuery::path),
            host: sent(&head.host),
            protocol: protocol(head.version),
            route: self.route.map(|route| &names.routes[route]).unwrap_or_default(),
            status: self.status,
            refused: self.turned_away,
            reason: self.reason,
            received_bytes,
            sent_bytes,
            duration_micros: took,
            upstream_micros: self.upstream_micros,
            store_micros: self.store_micros,
            client: self.client,
            caller: self.caller.as_ref().map_or("", |caller| &caller.name),
            tier: self.caller.as_ref().and_then(|caller| caller.tier.as_deref()).unwrap_or_default(),
            charges: &charges,
            retry_after_micros: self.judged.retry_after().map(|wait| wait.0),
            upstream: self.upstream.map(|upstream| &names.upstreams[upstream]).unwrap_or_default(),
            user_agent: sent(&head.user_agent),
            referer: sent(&head.referer),
        });
    }
}

/// A field's value as it was sent, empty where there is none.
fn sent(value: &Option<HeaderValue>) -> &[u8] {
    value.as_ref().map_or(&[][..], HeaderValue::as_bytes)
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}
