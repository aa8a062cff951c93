//! What traffic says of a file: limits that nothing reaches, keys that requests do not have, headers nobody believes.

use tollgate_limit::words::span;
use tollgate_limit::{Algorithm, Mode};

use crate::outcome::Outcome;
use crate::replay::Traffic;
use tollgate_limit::Micros;

/// Adds what a replay shows of the file to its warnings.
pub(crate) fn lint(outcome: &mut Outcome, traffic: &Traffic<'_>) {
    let survey = &traffic.survey;
    let Some(subject) = traffic.subjects.first() else {
        return;
    };
    let policy = subject.policy;
    let mut warnings = Vec::new();
    if survey.requests == 0 {
        return;
    }
    let length = survey.to.saturating_sub(survey.from);
    for (rule, limit) in policy.rules.iter().zip(&outcome.limits) {
        let name = &limit.name;
        if limit.not_judged.is_some() || rule.live.mode == Mode::Off {
            continue;
        }
        let offered = limit.counts.admitted + limit.counts.refused;
        if offered == 0 {
            warnings.push(format!(
                "limit `{name}`: no request of the log draws from it"
            ));
            continue;
        }
        if let Some(fill) = fill_time(&rule.live.algorithm)
            && fill.0 > length
        {
            warnings.push(format!(
                "limit `{name}`: the log spans {}, and a bucket takes {} to fill: what a longer log would show is not seen",
                span(Micros(length)),
                span(fill)
            ));
        }
        let absent = survey.requests - offered.min(survey.requests);
        if rule.scope != tollgate_policy::Scope::Everyone
            && absent * 100 > survey.requests
            && limit.counts.refused + limit.counts.admitted < outcome.admitted + outcome.refused
        {
            let share = absent * 100 / survey.requests;
            warnings.push(format!(
                "limit `{name}`: {share} % of requests do not draw from it: another route, or no key"
            ));
        }
        if let Some(caveat) = rule_caveat(traffic, &rule.name) {
            warnings.push(format!("limit `{name}`: {caveat}"));
        }
    }
    if survey.forwarded > 0 && policy.address.trusted_proxies.is_empty() {
        warnings.push(format!(
            "{} requests name who forwarded them (X-Forwarded-For, Forwarded), and address.trusted_proxies is empty: all of them count for the proxy's address",
            survey.forwarded
        ));
    }
    outcome.warnings.extend(warnings);
}

fn rule_caveat(traffic: &Traffic<'_>, name: &str) -> Option<&'static str> {
    let subject = traffic.subjects.first()?;
    let place = subject
        .policy
        .rules
        .iter()
        .position(|rule| &*rule.name == name)?;
    subject.caveat(place, &traffic.survey)
}

/// How long an empty bucket takes to be full, or a window to be over.
fn fill_time(algorithm: &Algorithm) -> Option<Micros> {
    match algorithm {
        Algorithm::TokenBucket(bucket) => Some(bucket.quota().time_for(bucket.quota().burst)),
        Algorithm::WarmUp(warm_up) => {
            let quota = warm_up.bucket().quota();
            Some(quota.time_for(quota.burst))
        }
        Algorithm::Interval(stepped) | Algorithm::FixedWindow(stepped) => {
            Some(stepped.quota().period)
        }
        Algorithm::SlidingWindow(window) => Some(window.quota().period),
        Algorithm::SlidingLog(log) => Some(log.quota().period),
        Algorithm::InFlight(_) => None,
    }
}
