//! The uses of zones become limits, with how they differ, and the locations routes.

use crate::draft::{Counting, Draft, Limit, Target, clients, name};

use crate::words::plain;

use super::tree::Directive;
use super::{Amount, Applied, Walk, Zone, numbers};

/// Whether each directive of this name, wherever it is, says 429.
fn all_429(block: &Directive, name: &str) -> bool {
    block
        .children()
        .iter()
        .all(|one| (one.name != name || one.arg(0) == "429") && all_429(one, name))
}

impl Walk {
    /// Makes the limits, now that all uses of each zone are known, and then the routes.
    pub(super) fn finish(mut self, root: &Directive, draft: &mut Draft) {
        let mut made: Vec<(Applied, bool)> = Vec::new();
        for (_, applied) in &self.planned {
            let kinds = |wanted: bool| {
                applied
                    .iter()
                    .any(|one| one.used.amount.is_connections() == wanted)
            };
            let both = kinds(true) && kinds(false);
            for one in applied {
                match made.iter().position(|(other, _)| other.shares_with(one)) {
                    Some(index) => made[index].1 |= both,
                    None if made.len() < 2_000 => made.push((one.clone(), both)),
                    None => {}
                }
            }
        }
        let exempt = |zone: &Zone| {
            zone.key
                .as_ref()
                .map(|key| key.exempt.clone())
                .unwrap_or_default()
        };
        for zone in self.zones.values().filter(|zone| zone.is_used) {
            for network in exempt(zone) {
                if !draft.exempt.contains(&network) {
                    draft.exempt.push(network);
                }
            }
        }
        for index in 0..made.len() {
            let (one, both) = made[index].clone();
            let Some(zone) = self
                .zones
                .get(&(one.used.amount.is_connections(), one.used.zone.clone()))
            else {
                continue;
            };
            let Ok(key) = &zone.key else { continue };
            let (mut limit, mut differences) = match (one.used.amount, zone.rate) {
                (Amount::Requests { burst, delay }, Some(rate)) => {
                    numbers::limit(rate, burst, delay)
                }
                (Amount::Connections(most), _) => {
                    (Limit::new(Counting::InFlight, most, 0), Vec::new())
                }
                (Amount::Requests { .. }, None) => continue,
            };
            limit.per.clone_from(&key.per);
            limit.when_missing = key.when_missing;
            limit.shadow = one.shadow;
            differences.extend(key.differences.iter().cloned());
            if both {
                differences.push(clients(
                    "a request that `limit_conn` refuses has spent its `limit_req` in NGINX; here it is charged on neither",
                ));
            }
            if made
                .iter()
                .any(|(other, _)| other.counts_with(&one) && !other.shares_with(&one))
            {
                differences.push(clients(format!(
                    "NGINX counts all uses of zone `{}` together; here those with other numbers have buckets of their own",
                    one.used.zone
                )));
            }
            if exempt(zone).len() < draft.exempt.len() {
                differences.push(clients(
                    "`exempt` is in force for every limit here, also for this one",
                ));
            }
            let server = one.server.as_deref().filter(|server| !server.is_empty());
            let wanted = match server {
                Some(server) => format!("{}_{}", one.used.zone, name(server, "server")),
                None => one.used.zone.clone(),
            };
            let words = format!("{} (zone {}: {})", one.used.words, zone.place, zone.words);
            made[index].0.limit = draft.limit(&wanted, &one.used.place, &words, limit, differences);
        }
        for (mut route, applied) in std::mem::take(&mut self.planned) {
            for one in applied {
                let Some((limit, _)) = made.iter().find(|(other, _)| other.shares_with(&one))
                else {
                    continue;
                };
                let Some(name) = &limit.limit else { continue };
                if limit.used.place != one.used.place {
                    let found = draft
                        .findings
                        .iter()
                        .find(|finding| finding.limit.as_ref() == Some(name));
                    if let Some(outcome) = found.map(|finding| finding.outcome.clone()) {
                        draft.again(&one.used.place, &one.used.words, name, outcome);
                    }
                }
                if !route.limits.contains(name) {
                    route.limits.push(name.clone());
                }
            }
            draft.route(route);
        }
        self.unread(root, draft);
        for zone in self.zones.values().filter(|zone| !zone.is_used) {
            draft.nothing(
                &zone.place,
                &zone.words,
                "no `limit_req` or `limit_conn` uses this zone",
            );
        }
        self.close(root, draft);
    }

    /// Whether all refusals have 429 in NGINX, too.
    fn refuses_with_429(&self, root: &Directive) -> bool {
        let mut blocks: Vec<&Directive> = root.all("http").collect();
        blocks.push(root);
        let used = self.zones.iter().filter(|(_, zone)| zone.is_used);
        let mut kinds = used.map(|((is_connections, _), _)| match is_connections {
            true => "limit_conn_status",
            false => "limit_req_status",
        });
        kinds.all(|name| {
            let everywhere = blocks.iter().any(|block| block.all(name).next().is_some());
            everywhere && all_429(root, name)
        })
    }

    /// Says of each use that nothing was said of that it is not imported: its block makes no route.
    fn unread(&mut self, block: &Directive, draft: &mut Draft) {
        for directive in block.children() {
            self.unread(directive, draft);
            let is_connections = directive.name == "limit_conn";
            if !is_connections && directive.name != "limit_req" {
                continue;
            }
            let (place, words) = (directive.place(), directive.words());
            let short = plain(&words, 200);
            let is_said = draft.findings.iter().any(|finding| {
                let rest = finding.what.strip_prefix(&short);
                let rest = rest.filter(|rest| {
                    rest.is_empty() || rest.starts_with(" (zone ") || rest.starts_with(" in ")
                });
                let is_cut = words.len() > 120 && finding.what.get(..100) == short.get(..100);
                finding.place == place && (rest.is_some() || is_cut)
            });
            if is_said {
                continue;
            }
            for ((of_connections, name), zone) in &mut self.zones {
                let named = directive.args.iter().any(|arg| {
                    arg == name || arg.strip_prefix("zone=").is_some_and(|zone| zone == name)
                });
                zone.is_used |= named && *of_connections == is_connections;
            }
            let why = format!("`{}` around it makes no route here", block.words());
            let why = if block.name.is_empty() || block.name == "http" {
                "no server of these files makes a route with it".to_owned()
            } else {
                why
            };
            draft.not_imported(&place, &words, &why);
        }
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
