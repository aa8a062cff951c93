//! The uses of zones become limits, with how they differ, and the locations routes.

use super::directive::Directive;
use crate::draft::{Counting, Draft, Limit, Target, clients, distinct, name};

use super::others::others;
use super::{Amount, Applied, Kind, Walk, numbers};

/// Whether each directive of this name, wherever it is, says 429.
fn all_429(block: &Directive, name: &str) -> bool {
    let says = |one: &Directive| one.name != name || one.arg(0) == "429";
    let mut inner = block.block.iter();
    inner.all(|one| says(one) && all_429(one, name))
}

/// The name of the limit that a use became. Further uses of it are said to compare as the first does.
fn name_of(one: &Applied, shared: &[Shared], draft: &mut Draft) -> Option<String> {
    let shared = shared.iter().find(|other| other.of.shares_with(one))?;
    let name = shared.limit.as_ref()?;
    one.used.said.set(true);
    if shared.of.used.place != one.used.place {
        let mut findings = draft.findings.iter();
        let first = findings.find(|finding| finding.limit.as_ref() == Some(name));
        if let Some(outcome) = first.map(|finding| finding.outcome.clone()) {
            draft.imported(&one.used.place, &one.used.words, name, outcome);
        }
    }
    Some(name.clone())
}

/// A limit to be made, which uses with the same numbers share.
struct Shared {
    of: Applied,
    /// Whether some route has limits of both kinds.
    both: bool,
    limit: Option<String>,
}

impl Walk {
    /// Makes the limits, now that all uses of each zone are known, and then the routes.
    pub(super) fn finish(mut self, root: &Directive, draft: &mut Draft) {
        let mut shared = self.shared();
        let used = self.zones.values().filter(|zone| zone.is_used);
        for network in used.flat_map(|zone| zone.key.iter().flat_map(|key| &key.exempt)) {
            draft.leave_out(network);
        }
        for index in 0..shared.len() {
            shared[index].limit = self.limit(&shared[index], &shared, draft);
        }
        for (mut route, applied) in std::mem::take(&mut self.planned) {
            for one in &applied {
                route.limits.extend(name_of(one, &shared, draft));
            }
            route.limits = distinct(route.limits);
            draft.route(route);
        }
        others(root, false, &mut self.zones, draft);
        for zone in self.zones.values().filter(|zone| !zone.is_used) {
            let why = "no `limit_req` or `limit_conn` uses this zone";
            draft.nothing(&zone.place, &zone.words, why);
        }
        self.close(root, draft);
    }

    fn shared(&self) -> Vec<Shared> {
        let mut shared: Vec<Shared> = Vec::new();
        for (_, applied) in &self.planned {
            let has = |kind: Kind| applied.iter().any(|one| one.used.zone.0 == kind);
            let both = Kind::ALL.into_iter().all(has);
            for one in applied {
                if let Some(known) = shared.iter_mut().find(|known| known.of.shares_with(one)) {
                    known.both |= both;
                } else if shared.len() < 2_000 {
                    shared.push(Shared {
                        of: one.clone(),
                        both,
                        limit: None,
                    });
                }
            }
        }
        shared
    }

    fn limit(&self, one: &Shared, all: &[Shared], draft: &mut Draft) -> Option<String> {
        let used = &one.of.used;
        let zone = self.zones.get(&used.zone)?;
        let key = zone.key.as_ref().ok()?;
        let (mut limit, mut differences) = match used.amount {
            Amount::Requests { burst, delay } => numbers::limit(zone.rate?, burst, delay),
            Amount::Connections(most) => (Limit::new(Counting::InFlight, most, 0), Vec::new()),
        };
        limit.per.clone_from(&key.per);
        limit.when_missing = key.when_missing;
        limit.shadow = one.of.shadow;
        differences.extend(key.differences.iter().cloned());
        if one.both {
            differences.push(clients(
                "a request that `limit_conn` refuses has spent its `limit_req` in NGINX; here it is charged on neither",
            ));
        }
        let is_apart =
            |other: &Shared| other.of.counts_with(&one.of) && !other.of.shares_with(&one.of);
        if all.iter().any(is_apart) {
            differences.push(clients(format!(
                "NGINX counts all uses of zone `{}` together; here those with other numbers have buckets of their own",
                used.zone.1
            )));
        }
        if key.exempt.len() < draft.exempt.len() {
            differences.push(clients(
                "`exempt` is in force for every limit here, also for this one",
            ));
        }
        let server = one.of.server.as_deref().filter(|server| !server.is_empty());
        let wanted = match server {
            Some(server) => format!("{}_{}", used.zone.1, name(server, "server")),
            None => used.zone.1.clone(),
        };
        let words = format!("{} (zone {}: {})", used.words, zone.place, zone.words);
        used.said.set(true);
        draft.limit(&wanted, &used.place, &words, limit, differences)
    }

    fn refuses_with_429(&self, root: &Directive) -> bool {
        let mut blocks: Vec<&Directive> = root.all("http").collect();
        blocks.push(root);
        let used = self.zones.iter().filter(|(_, zone)| zone.is_used);
        let mut statuses = used.map(|((kind, _), _)| format!("{}_status", kind.name()));
        statuses.all(|name| {
            let everywhere = blocks.iter().any(|block| block.has(&name));
            everywhere && all_429(root, &name)
        })
    }

    fn close(&self, root: &Directive, draft: &mut Draft) {
        if draft
            .limits
            .iter()
            .any(|named| named.limit.counting == Counting::TokenBucket)
        {
            draft.note(
                "time: NGINX counts whole milliseconds, Tollgate microseconds: a live request within a millisecond of \
                 its turn can be judged otherwise, one of a log cannot",
            );
        }
        if !draft.limits.is_empty() && !self.refuses_with_429(root) {
            draft.note(
                "status: NGINX refuses with 503 unless limit_req_status and limit_conn_status say otherwise, Tollgate \
                 with 429 and Retry-After",
            );
        }
        if draft
            .routes
            .iter()
            .any(|route| matches!(route.target, Target::Upstream(_)) && route.limits.is_empty())
        {
            draft.note("routes without limits are those of locations that NGINX does not limit");
        }
    }
}
