//! Sends the requests of a test one after the other, each at its time, and counts what becomes of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};

use tollgate_admission::denial;
use tollgate_admission::settle::Owed;
use tollgate_config::settings::{Sent, TestCase};
use tollgate_limit::{Claim, Micros};
use tollgate_limiter::{Cause, Decision, Denied};
use tollgate_policy::claims::body_length;
use tollgate_policy::route::Target;
use tollgate_policy::{BodyFacts, Claims, Identified, Peer, Policy, sent as sent_body};
use tollgate_replay::{Response, Simulation};

/// Memory for a test's few callers.
const MEMORY: usize = 4 << 20;

/// The results of a test's requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) over_limit: u64,
    /// The requests that were neither admitted nor refused by a limit, by their status: no route, no
    /// key, a body that cannot be read.
    pub(super) turned_away: BTreeMap<u16, u64>,
    pub(super) retry_after: Option<Micros>,
    pub(super) status: Option<u16>,
    pub(super) limit: Option<String>,
}

/// Plays all requests of a test; an error says why that is not possible.
pub(super) fn play(policy: &Policy, test: &TestCase) -> Result<Tally, String> {
    let mut simulation = Simulation::new(policy, test.start, MEMORY);
    let mut tally = Tally::default();
    for (moment, sent) in in_order(&test.sent) {
        simulation.advance_to(test.start.after(moment).as_micros());
        one(policy, &mut simulation, test, sent, &mut tally)?;
    }
    Ok(tally)
}

/// Sends one request.
fn one(
    policy: &Policy,
    simulation: &mut Simulation,
    test: &TestCase,
    sent: &Sent,
    tally: &mut Tally,
) -> Result<(), String> {
    let headers = headers(test, sent)?;
    let from = sent.from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let peer = Peer {
        address: Some(from),
        port: 0,
        tls: false,
        unnamed: false,
    };
    let Ok(described) = policy.describe(None, &sent.method, &sent.uri, &headers, peer, None) else {
        tally.turn_away(400);
        return Ok(());
    };
    let facts = match &test.body {
        Some(body) => match policy.read_body(&described, body.as_bytes()) {
            Ok(facts) => Some(facts),
            Err(flaw) => {
                tally.turn_away(flaw.status());
                return Ok(());
            }
        },
        // A length stands for a body of which nothing is known.
        None => (body_length(&headers) == Some(0)).then(|| BodyFacts::none(&policy.wanted)),
    };
    described.body.set(facts.as_ref());
    let body = sent_body(&described, body_length(&headers));
    let Some(matched) = policy.route(&described) else {
        let other_methods = !policy.other_methods(&described).is_empty();
        tally.turn_away(match (policy.is_unlisted(&described), other_methods) {
            (true, _) => 421,
            (false, true) => 405,
            (false, false) => 404,
        });
        return Ok(());
    };
    let seconds = simulation.now().as_micros() / 1_000_000;
    let identified = match &sent.caller {
        Some(caller) => {
            policy.identify_as(&matched, &described, seconds, (caller.index, &caller.name))
        }
        None => policy.identify(&matched, &described, seconds),
    };
    let mut who = Identified::default();
    let mut unidentified = None;
    match identified {
        Ok(known) if policy.preflight(&described).is_none() => who = known,
        Ok(_) => policy.place_into(&mut who, &matched, &described, seconds),
        Err(refusal) => {
            policy.place_into(&mut who, &matched, &described, seconds);
            let status = if refusal.reason.is_malformed() {
                StatusCode::BAD_REQUEST
            } else {
                StatusCode::UNAUTHORIZED
            };
            unidentified = Some(status).filter(|_| policy.preflight(&described).is_none());
        }
    }
    let mut claims = policy.claims(&matched, &who, &headers, body);
    if claims.refuses_model() {
        unidentified = unidentified.or(Some(StatusCode::BAD_REQUEST));
    }
    if let Some(status) = unidentified {
        claims.retain_counting(policy, status);
    }
    let route = &policy.routes[matched.route];
    let mut target = 0;
    let mut soonest: Option<(Claims, Denied)> = None;
    let mut permit = loop {
        let denied = match draw(simulation, &claims) {
            Some(Decision::Allow(permit)) => break permit,
            Some(Decision::Deny(denied)) => denied,
            Some(Decision::Unavailable(_)) | None => {
                return Err("a limit of this test cannot be decided in the process".into());
            }
        };
        let next = route.over_limit.get(target);
        let passed_on = next
            .filter(|over| unidentified.is_none() && denial::passes_on(&denied, &claims, over))
            .map(|_| policy.claims_of_target(target + 1, &matched, &who, &headers, body))
            .filter(|claims| !claims.refuses_model());
        let known = soonest.as_ref();
        if known.is_none_or(|(_, known)| denial::ends_before(&denied, known)) {
            soonest = Some((claims.clone(), denied));
        }
        let Some(passed_on) = passed_on else {
            if let Some((claims, denied)) = soonest {
                tally.refuse(policy, &claims, &denied);
            }
            return Ok(());
        };
        target += 1;
        claims = passed_on;
    };
    if let Some(status) = unidentified {
        // The charge stays.
        permit.forwarded();
        tally.turn_away(status.as_u16());
        return Ok(());
    }
    tally.allowed += 1;
    tally.over_limit += u64::from(target > 0);
    tally.status = None;
    let fixed = match &route.target {
        Target::Fixed { status, .. } | Target::Redirect { status, .. } => {
            StatusCode::from_u16(*status).ok()
        }
        Target::Upstream(_) | Target::Echo | Target::Service => None,
    };
    let limits = route.limits_of(target).iter();
    let owed = Owed::new(limits.map(|limit| &policy.rules[limit.rule]));
    let response = Response {
        status: fixed.unwrap_or(sent.answered),
        cause: Cause::Upstream,
        sent: None,
        whole: true,
    };
    simulation.hold(permit, owed, sent.lasting.0, response);
    Ok(())
}

/// The decision about these claims.
fn draw(simulation: &Simulation, claims: &Claims) -> Option<Decision> {
    let list: Vec<Claim<'_>> = claims
        .charges()
        .iter()
        .map(|charge| Claim {
            enforced: charge.enforced,
            ..Claim::new(
                simulation.limit(charge.limit),
                claims.key(charge),
                charge.cost,
            )
        })
        .collect();
    simulation.check(&list)
}

impl Tally {
    /// Counts a request that no limit refused, and that is not admitted.
    fn turn_away(&mut self, status: u16) {
        self.status = Some(status);
        *self.turned_away.entry(status).or_default() += 1;
    }

    fn refuse(&mut self, policy: &Policy, claims: &Claims, denied: &Denied) {
        self.refused += 1;
        let refused = denial::contents(denied, claims, policy);
        self.status = Some(if denial::sheds_load(denied, claims, &policy.limits) {
            503
        } else {
            refused.problem().status.as_u16()
        });
        self.retry_after = refused.retry_after;
        self.limit = refused.violated.first().map(ToString::to_string);
    }
}

fn headers(test: &TestCase, sent: &Sent) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let host = sent.host.as_deref().unwrap_or("localhost");
    headers.insert(
        HOST,
        HeaderValue::from_str(host).map_err(|_| format!("`{host}` is no host"))?,
    );
    for (name, value) in &test.headers {
        headers.append(name, value.clone());
    }
    if let Some(body) = &test.body {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        let json = HeaderValue::from_static("application/json");
        headers.entry(CONTENT_TYPE).or_insert(json);
    }
    Ok(headers)
}

/// Every request with its time, in the order of time; requests of the same time in the order of the
/// file.
fn in_order(all_sent: &[Sent]) -> Vec<(Micros, &Sent)> {
    let mut all = Vec::new();
    for sent in all_sent {
        for nth in 0..sent.count {
            all.push((
                Micros(sent.at.0.saturating_add(sent.every.0.saturating_mul(nth))),
                sent,
            ));
        }
    }
    all.sort_by_key(|(moment, _)| *moment);
    all
}
