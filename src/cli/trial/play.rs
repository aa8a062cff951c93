//! Sends the requests of a test one after the other, each at its time, and counts what becomes of them.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};

use tollgate_admission::{Account, Admission, Judged, Refusal, RequestView, Step};
use tollgate_config::settings::{Sent, TestCase};
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::claims::body_length;
use tollgate_policy::routes::Target;
use tollgate_policy::{BodyFacts, Peer, Policy};
use tollgate_replay::{Response, Simulation};

const MEMORY: usize = 4 << 20;

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
    let facts = OnceCell::new();
    let described = policy.describe(None, &sent.method, &sent.uri, &headers, peer, None);
    let Ok(mut described) = described else {
        tally.turn_away(400);
        return Ok(());
    };
    let caller = sent.caller.as_ref();
    described.assumed = caller.map(|caller| (caller.index, &*caller.name));
    let length = body_length(&headers);
    let seconds = simulation.now().as_micros() / 1_000_000;
    let mut request = RequestView::new(policy, &described, length, seconds);
    request.passes_on = true;
    let (mut admission, mut account) = (Admission::default(), Account::new(simulation.now()));
    let limiter = simulation.limiter().clone();
    loop {
        match admission.step(&mut account, &request, &limiter, simulation.now()) {
            Step::Read(_) => {
                let read = match &test.body {
                    Some(body) => policy.read_body(&described, body.as_bytes()).map(Some),
                    // A length stands for a body of which nothing is known.
                    None => Ok((length == Some(0)).then(|| BodyFacts::none(&policy.wanted))),
                };
                match read {
                    Ok(read) => request.read(read.map(|read| facts.get_or_init(|| read))),
                    Err(flaw) => request.turned_away = StatusCode::from_u16(flaw.status()).ok(),
                }
            }
            Step::Look => at_once(admission.look(&mut account, &limiter))?,
            Step::Draw => {
                if admission.draw(&mut account, &limiter).is_some() {
                    return Err(NOT_HERE.into());
                }
            }
            Step::Wait | Step::Hold(_) => {}
            Step::Admit => break,
            Step::Refuse(refusal) => {
                tally.refuse(policy, &request, &account, &refusal);
                return Ok(());
            }
        }
    }
    tally.allowed += 1;
    tally.over_limit += u64::from(account.target > 0);
    tally.status = None;
    let fixed = account
        .route
        .and_then(|at| match &policy.routes[at].target {
            Target::Fixed { status, .. } | Target::Redirect { status, .. } => {
                StatusCode::from_u16(*status).ok()
            }
            Target::Upstream(_) | Target::Echo | Target::Service => None,
        });
    let response = Response {
        status: fixed.unwrap_or(sent.answered),
        cause: Cause::Upstream,
        sent: None,
        whole: true,
    };
    if let Judged::Permitted(permit) = account.judged {
        simulation.hold(permit, account.owed, sent.lasting.0, response);
    }
    Ok(())
}

/// Carries out what waits for nothing in a process of its own.
fn at_once(work: impl Future<Output = ()>) -> Result<(), String> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(work).poll(&mut context) {
        Poll::Ready(()) => Ok(()),
        Poll::Pending => Err(NOT_HERE.into()),
    }
}

impl Tally {
    /// Counts a request that no limit refused, and that is not admitted.
    fn turn_away(&mut self, status: u16) {
        self.status = Some(status);
        *self.turned_away.entry(status).or_default() += 1;
    }

    fn refuse(
        &mut self,
        policy: &Policy,
        request: &RequestView<'_, '_>,
        account: &Account,
        refusal: &Refusal,
    ) {
        match refusal {
            Refusal::NoRoute => {
                let described = request.described;
                let other_methods = !policy.other_methods(described).is_empty();
                self.turn_away(match (policy.is_unlisted(described), other_methods) {
                    (true, _) => 421,
                    (false, true) => 405,
                    (false, false) => 404,
                });
            }
            Refusal::TurnedAway => {
                let status = request.turned_away.unwrap_or(StatusCode::BAD_REQUEST);
                self.turn_away(status.as_u16());
            }
            Refusal::Unidentified(refusal) => self.turn_away(refusal.status().as_u16()),
            Refusal::Unavailable(_) => self.turn_away(503),
            Refusal::Denied => {
                self.refused += 1;
                let refused = account.refused(policy, None, account.at);
                self.status = Some(
                    refused
                        .as_ref()
                        .map_or(503, |refused| refused.problem().status.as_u16()),
                );
                let denied = account.judged.denied();
                self.retry_after = account.judged.retry_after();
                let first = denied.and_then(|denied| denied.refused().next());
                let charge = first.map(|place| &account.claims.charges()[place]);
                self.limit = charge.map(|charge| policy.limits[charge.limit].name.to_string());
            }
        }
    }
}

/// Why a request of a test is not decided.
const NOT_HERE: &str = "a limit of this test cannot be decided in the process";

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

/// Every request with its time, in the order of time; requests of the same time in the order of the file.
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
