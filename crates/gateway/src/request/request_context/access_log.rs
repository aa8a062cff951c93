//! Writes the line of the access log.

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Version};
use smallvec::SmallVec;

use super::RequestContext;
use tollgate_admission::settle::{self, Used};
use tollgate_limit::{Role, Timestamp};
use tollgate_net::server::Unread;
use tollgate_policy::Charge;
use tollgate_policy::body::usage::TokenKind;
use tollgate_response::DecisionId;
use tollgate_telemetry::access;

/// Data that only the access log needs.
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) path: Option<PathAndQuery>,
    pub(crate) version: Version,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) user_agent: Option<HeaderValue>,
    pub(crate) referer: Option<HeaderValue>,
}

impl RequestContext {
    pub(crate) fn log(
        &self,
        writer: &access::AccessWriter,
        head: &Head,
        [received_bytes, sent_bytes]: [u64; 2],
        took: u64,
        used: Option<&[Used]>,
    ) {
        let (policy, outcomes) = (&self.snapshot.policy, self.account.judged.outcomes());
        let mut charges = SmallVec::<[access::Charge<'_>; 4]>::new();
        for (place, charge) in self.account.claims.charges().iter().enumerate() {
            charges.push(access::Charge {
                limit: &policy.limits[charge.limit].name,
                candidate: policy.limits[charge.limit].role == Role::Candidate,
                key: self.account.claims.key(charge),
                cost: charge.cost,
                settled: self.settled(place, charge),
                remaining: outcomes
                    .get(place)
                    .map_or(0, |outcome| outcome.standing.remaining()),
                outcome: self.account.judged.outcome(place),
            });
        }
        let id = self.id();
        writer.record(&access::Record {
            at_micros: self.side.wall.show(self.account.at).as_micros(),
            id: id.as_str(),
            trace: self.trace,
            method: head.method.as_str(),
            path: head.path.as_ref().map_or("", PathAndQuery::path),
            query: head
                .path
                .as_ref()
                .filter(|_| writer.wants_query())
                .and_then(PathAndQuery::query)
                .unwrap_or_default(),
            host: sent(&head.host),
            protocol: protocol(head.version),
            route: self
                .account
                .route
                .map_or("", |route| &policy.routes[route].name),
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
            tier: self
                .caller
                .as_ref()
                .and_then(|caller| caller.tier.as_deref())
                .unwrap_or_default(),
            charges: &charges,
            usage: usage(used.unwrap_or_default()),
            retry_after_micros: self.account.judged.retry_after().map(|wait| wait.0),
            upstream: self
                .upstream
                .map_or("", |upstream| &policy.upstreams[upstream as usize].name),
            over_limit: self.account.target as u64,
            user_agent: sent(&head.user_agent),
            referer: sent(&head.referer),
        });
    }

    /// The final cost of the claim at `place`, if its response can change it.
    fn settled(&self, place: usize, charge: &Charge) -> Option<u64> {
        let open = settle::is_open(&self.snapshot.policy.rules[charge.rule]);
        self.account
            .judged
            .permit()
            .filter(|_| open)
            .and_then(|permit| permit.charged_at(place))
    }
}

/// What the response states, and what it costs, by the first limits that know it.
fn usage(used: &[Used]) -> Option<access::Usage<'_>> {
    let tokens = used.iter().find_map(|one| one.tokens.as_ref())?;
    let money = used.iter().find(|one| one.currency.is_some());
    let kinds = TokenKind::ALL.map(TokenKind::words);
    let counts = kinds.into_iter().zip(tokens.counts);
    Some(access::Usage {
        model: &tokens.model,
        tokens: counts.filter(|(_, count)| *count > 0).collect(),
        cost: money.map(|one| one.units),
        currency: money
            .and_then(|one| one.currency.as_deref())
            .unwrap_or_default(),
    })
}

/// Logs a request that was refused before its head was parsed, as far as its first line can be read.
pub(crate) fn log_unread(
    writer: &access::AccessWriter,
    unread: Unread<'_>,
    at: Timestamp,
    id: u64,
) {
    let Some(status) = unread.status else { return };
    let id = DecisionId::of(id);
    let line = first_line(unread.head);
    let mut parts = line.splitn(3, ' ');
    let (method, target, protocol) = (parts.next(), parts.next(), parts.next());
    let method =
        method.filter(|method| target.is_some() && method.len() <= NAME_MAX && is_token(method));
    // A target in absolute form is not logged, because it may contain a user name.
    let target = target
        .filter(|target| target.starts_with('/'))
        .unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let plain = |text: &&str| {
        text.len() <= NAME_MAX
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"/.".contains(&byte))
    };
    writer.record(&access::Record {
        at_micros: at.as_micros(),
        id: id.as_str(),
        method: method.unwrap_or_default(),
        path,
        query: if writer.wants_query() { query } else { "" },
        protocol: protocol.filter(plain).unwrap_or_default(),
        status: status.as_u16(),
        refused: true,
        reason: unread.reason,
        client: unread.client,
        ..access::Record::default()
    });
}

/// The first line of a head without its line end, up to the first byte that is not text.
fn first_line(head: &[u8]) -> &str {
    let end = head
        .iter()
        .position(|byte| !(b' '..=b'~').contains(byte))
        .unwrap_or(head.len());
    std::str::from_utf8(&head[..end]).unwrap_or_default()
}

fn is_token(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

const NAME_MAX: usize = 32;

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
