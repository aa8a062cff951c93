//! A log through one policy or two: what each limit would have done to it.

use std::collections::HashSet;
use std::path::PathBuf;

use http::StatusCode;
use http::header::HeaderName;

use crate::classes::{Class, Classes, Event, small};
use crate::log::{self, Options, ReadError, Record, Survey, is_recorded_refusal};
use crate::outcome::Outcome;
use crate::request::{Names, Request};
use crate::simulation::{Response, Simulation};
use crate::subject::{Charge, Side, Subject};
use tollgate_admission::settle::Owed;
use tollgate_limit::{Claim, Timestamp};
use tollgate_limiter::{Cause, Decision, Outcome as OfClaim};
use tollgate_policy::{Count, Policy, Settle, SettleFrom};

/// A log that has been read, and what its requests draw from under one policy or two.
#[derive(Debug)]
pub struct Traffic<'p> {
    pub survey: Survey,
    pub(crate) subjects: Vec<Subject<'p>>,
    pub(crate) names: Names,
    pub(crate) classes: Classes,
    pub(crate) events: Vec<Event>,
}

impl<'p> Traffic<'p> {
    /// Reads `files` for one policy, or for a candidate and the one it is compared with.
    pub fn read(
        files: &[PathBuf],
        options: &Options,
        policies: &[&'p Policy],
        progress: impl FnMut(u64),
    ) -> Result<Self, ReadError> {
        let mut gathered = Gathering::new(policies);
        let survey = log::read(files, options, progress, |record, at| {
            gathered.add(record, at)
        })?;
        Ok(gathered.finish(survey))
    }

    /// As [`Traffic::read`], of a text in memory.
    pub fn read_text(text: &[u8], options: &Options, policies: &[&'p Policy]) -> Self {
        let mut gathered = Gathering::new(policies);
        let survey = log::read_text(text, options, |record, at| gathered.add(record, at));
        gathered.finish(survey)
    }

    /// Puts the requests to the policies, in the order of time.
    pub fn replay(&mut self) -> Outcome {
        self.events.sort_by_key(|event| event.at);
        let start = Timestamp::from_micros(self.survey.from);
        let mut outcome = Outcome::new(self);
        let subjects = self.subjects.iter();
        let mut simulations: Vec<Simulation> = subjects
            .clone()
            .map(|subject| Simulation::new(subject.policy, start, usize::MAX))
            .collect();
        let judged = subjects.map(|subject| {
            let is_judged = |rule| subject.not_judged(rule, &self.survey).is_none();
            (0..subject.policy.rules.len()).map(is_judged).collect()
        });
        let judged: Vec<Vec<bool>> = judged.collect();
        for &event in &self.events {
            let Some(class) = self.classes.get_index(event.class as usize) else {
                continue;
            };
            let mut admitted = Vec::new();
            for (place, simulation) in simulations.iter_mut().enumerate() {
                let subject = &self.subjects[place];
                let verdict = one(simulation, subject, &judged[place], class, place, event);
                if place == 0 {
                    outcome.count(class, &verdict, event.at);
                }
                admitted.push(verdict.admitted);
            }
            outcome.compare(class, &admitted);
        }
        outcome.finish(self);
        outcome
    }
}

/// What the limits said of one request.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) admitted: bool,
    /// Whether the bucket of each charge could pay; `None`: it was not judged.
    pub(crate) paid: Vec<Option<bool>>,
}

fn one(
    simulation: &mut Simulation,
    subject: &Subject<'_>,
    judged: &[bool],
    class: &Class,
    place: usize,
    event: Event,
) -> Judgement {
    let Side { route, charges } = &class.sides[place];
    let is_judged = |charge: &Charge| judged[charge.rule as usize];
    let paid = |charge: &Charge| is_judged(charge).then_some(true);
    let mut verdict = Judgement {
        admitted: true,
        paid: charges.iter().map(paid).collect(),
    };
    let judged = || charges.iter().filter(|charge| is_judged(charge));
    if judged().next().is_none() {
        return verdict;
    }
    simulation.advance_to(event.at);
    let decision = {
        let claims: Vec<Claim<'_>> = judged()
            .map(|charge| {
                let key = subject.keys[charge.rule as usize].text(charge.key);
                let limit = simulation.limit(charge.limit as usize);
                Claim {
                    enforced: charge.enforced,
                    ..Claim::new(limit, key, charge.cost)
                }
            })
            .collect();
        simulation.check(&claims)
    };
    let mut pay = |outcomes: &[OfClaim]| {
        for (outcome, paid) in outcomes.iter().zip(verdict.paid.iter_mut().flatten()) {
            *paid = outcome.standing.verdict.is_allow();
        }
    };
    match decision {
        Some(Decision::Allow(permit)) => {
            pay(permit.outcomes());
            let limits = route.map_or(&[][..], |route| {
                &subject.policy.routes[route as usize].limits
            });
            let rules = || limits.iter().map(|limit| &subject.policy.rules[limit.rule]);
            let owed = Owed::new(rules());
            let mut response = class.response.unwrap_or(UNKNOWN);
            let mut settles = rules().filter_map(|rule| rule.settle.as_ref());
            if settles.any(is_told_by_response) {
                // No log holds what the response said: the estimate stays charged.
                response.sent = None;
            }
            simulation.hold(permit, owed, u64::from(event.lasting), response);
        }
        Some(Decision::Deny(denied)) => {
            pay(denied.outcomes());
            verdict.admitted = false;
        }
        Some(Decision::Unavailable(_)) | None => verdict.admitted = false,
    }
    verdict
}

struct Gathering<'p> {
    traffic: Traffic<'p>,
    wanted: HashSet<HeaderName>,
    /// Whether what comes of a request can change what it is charged.
    settles: bool,
}

impl<'p> Gathering<'p> {
    fn new(policies: &[&'p Policy]) -> Self {
        let subjects: Vec<Subject<'p>> =
            policies.iter().map(|policy| Subject::new(policy)).collect();
        let settles = |rule: &tollgate_policy::Rule| {
            rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty()
        };
        let wanted: HashSet<HeaderName> = subjects.iter().flat_map(Subject::wanted).collect();
        let settles = policies
            .iter()
            .any(|policy| policy.rules.iter().any(settles));
        Self {
            wanted,
            settles,
            traffic: Traffic {
                survey: Survey::default(),
                subjects,
                names: Names::default(),
                classes: Classes::default(),
                events: Vec::new(),
            },
        }
    }

    fn add(&mut self, record: &Record<'_>, at: u64) {
        let lasting = record.duration.unwrap_or_default();
        let event = Event {
            at,
            lasting: u32::try_from(lasting).unwrap_or(u32::MAX),
            class: self.class(record, at),
        };
        self.traffic.events.push(event);
    }

    /// The distinct request that this is one of.
    fn class(&mut self, record: &Record<'_>, at: u64) -> u32 {
        let traffic = &mut self.traffic;
        let request = Request::new(record, &self.wanted, &mut traffic.names);
        let subjects = traffic.subjects.iter_mut();
        let class = Class {
            sides: subjects
                .map(|subject| subject.side(request.as_ref(), record, at))
                .collect(),
            recorded: recorded(record),
            was_refused: is_recorded_refusal(record),
            response: self.settles.then(|| response(record)).flatten(),
        };
        small(traffic.classes.insert_full(class).0)
    }

    fn finish(mut self, mut survey: Survey) -> Traffic<'p> {
        let first = self.traffic.subjects.first();
        let unrouted = first.map_or(0, |subject| subject.unrouted);
        if unrouted > 0 {
            survey.warnings.push(format!(
                "{unrouted} of {} requests are taken by no route of the file: no limit sees them",
                survey.requests
            ));
        }
        self.traffic.survey = survey;
        self.traffic
    }
}

fn recorded(record: &Record<'_>) -> Option<bool> {
    let own = record.own.as_ref()?;
    let is_told = own.refused || !own.limits.is_empty();
    is_told.then(|| !is_recorded_refusal(record))
}

fn response(record: &Record<'_>) -> Option<Response> {
    let status = StatusCode::from_u16(record.status?).ok()?;
    let (cause, whole) = match &record.own {
        Some(own) if own.reason == "client_left" => (Cause::Client, false),
        // The gateway refuses some requests for the same reasons before it forwards them.
        Some(own) if own.refused && own.forwarded && CLIENT.contains(&own.reason.as_str()) => {
            (Cause::Client, true)
        }
        Some(own) if own.refused && !own.forwarded => (Cause::Gateway, true),
        Some(own) => (Cause::Upstream, own.reason.is_empty()),
        None if record.status == Some(499) => (Cause::Client, false),
        None => (Cause::Upstream, true),
    };
    Some(Response {
        status,
        cause,
        sent: record.sent,
        whole,
    })
}

fn is_told_by_response(settle: &Settle) -> bool {
    !matches!(settle.from, SettleFrom::Bytes { .. })
}

/// Of a log without statuses: what is charged stays charged.
const UNKNOWN: Response = Response {
    status: StatusCode::OK,
    cause: Cause::Upstream,
    sent: None,
    whole: true,
};

/// Reasons of Tollgate's own log for which a forwarded request has no response, and which a client
/// can bring about.
pub(crate) const CLIENT: [&str; 14] = [
    "client_gone",
    "client_malformed",
    "too_big",
    "client_idle",
    "client_slow",
    "client_deadline",
    "slow_upload",
    "upload_timeout",
    "answer",
    "closed",
    "answer_coding",
    "refused_stream",
    "going_away",
    "upgrade",
];
