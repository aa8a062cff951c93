//! Exports the limiter's counters as metrics.

use tollgate_gateway::refusals::Latest;
use tollgate_limit::Role;
use tollgate_limiter::Snapshot;
use tollgate_telemetry::metrics::Samples;

/// Adds the limits' counters to a scrape.
/// `latest`: refusals that are examples of them.
pub fn samples(limits: &[Snapshot], latest: &Latest, to: &mut Samples) {
    for (reason, exemplar) in latest.by_reason() {
        to.rejection(reason, exemplar);
    }
    for snapshot in limits {
        let limit = &*snapshot.limit;
        let mut labels = vec![("limit", &*limit.name)];
        if let Some(tier) = &limit.tier {
            labels.push(("tier", tier));
        }
        if limit.role == Role::Candidate {
            let agreement = snapshot.agreement;
            for (word, count) in [
                ("both_allow", agreement.both_allow),
                ("both_refuse", agreement.both_refuse),
                ("only_live_refuses", agreement.only_live_refuses),
                ("only_candidate_refuses", agreement.only_candidate_refuses),
            ] {
                let labels = [&labels[..], &[("agreement", word)]].concat();
                to.counter(
                    "limit_candidate",
                    "Verdicts of a limit and its candidate on the same requests",
                    &labels,
                    count,
                );
            }
            continue;
        }
        let mut gauge = |name, help, value| to.gauge(name, help, &labels, value);
        if let Some(factor) = snapshot.factor {
            let help = "The share of a limit's rate that is granted while it follows the upstream's health";
            gauge("limit_rate_factor", help, f64::from(factor) / WHOLE);
        }
        if let Some(held) = snapshot.held {
            let help = "Time for which a limit grants nothing, as its upstream's Retry-After or RateLimit headers demand";
            let held = std::time::Duration::from(held).as_secs_f64();
            gauge("limit_held_seconds", help, held);
        }
        if let Some(places) = snapshot.places {
            let help = "Concurrent requests that an adaptive limit admits now";
            gauge("limit_adaptive_places", help, f64::from(places));
        }
        let count = snapshot.count;
        for (outcome, count) in [
            ("allow", count.allowed),
            ("deny", count.refused),
            ("shadow_deny", count.shadow_refused),
        ] {
            let example = if outcome == "deny" {
                latest.of_limit(limit)
            } else {
                None
            };
            let labels = [&labels[..], &[("outcome", outcome)]].concat();
            to.counter_like(
                "limit_decisions",
                "Verdicts of limits, one for each request and limit",
                &labels,
                count,
                example,
            );
        }
        for (outcome, units) in [
            ("allow", count.units.charged),
            ("give_back", count.units.given_back),
            ("deny", count.units.refused),
            ("shadow_deny", count.units.shadow_refused),
        ] {
            let labels = [&labels[..], &[("outcome", outcome)]].concat();
            let help = "Units of limits: charged to admitted requests, given back, and asked for by refused requests";
            to.counter("limit_units", help, &labels, units);
        }
        let table = snapshot.table;
        let mut counter = |name, help, count| to.counter(name, help, &labels, count);
        let help = "Decisions made without the shared store, because it did not respond";
        counter("limit_ungoverned", help, count.ungoverned);
        let help = "Responses that stated the cost that `settle` reads";
        counter("limit_settled", help, count.settled);
        let help = "Units that responses stated as the cost that `settle` reads";
        counter("limit_settled_units", help, count.settled_units);
        let help = "Responses (2xx) that did not state the cost that `settle` reads; the estimate or the reservation stayed charged";
        counter("limit_unsettled", help, count.unsettled);
        let help = "Units that responses cost above what `settle` had reserved for them";
        counter("limit_over_reserved_units", help, count.over_reserved);
        let help = "Buckets evicted while they had a debt; the debt was kept";
        counter("limit_key_evictions", help, table.evictions);
        let help = "Refusals of keys that stood at an inherited debt";
        counter("limit_inherited_refusals", help, table.inherited_refusals);
    }
}

const WHOLE: f64 = 1_024.0;
