//! Frontends and backends as routes and upstreams, and lines that concern limiting and have no counterpart.

use crate::draft::{Draft, Place, Route, Target};

use super::concerns_rates;
use super::condition::condition;
use super::section::{Line, Section};

/// Whether a line refuses requests.
pub(super) fn is_refusal(line: &Line) -> bool {
    let refusals = ["deny", "tarpit", "reject", "silent-drop", "return"];
    line.word(0) == "http-request" && refusals.contains(&line.word(1))
}

/// Refusals of `defaults`: they hold for the sections below it, which are read by themselves.
pub(super) fn defaults(section: &Section, draft: &mut Draft) {
    for line in &section.lines {
        if is_refusal(line) && concerns_rates(line, section) {
            let why = "rules of `defaults` are not read";
            draft.not_imported(&line.place, &line.text(), why);
        }
    }
}

/// Lines that concern limiting and were not read above.
pub(super) fn leftovers(section: &Section, draft: &mut Draft) {
    for (index, line) in section.lines.iter().enumerate() {
        let what = line.text();
        let rated = || concerns_rates(line, section);
        let refuses_later = || {
            let mut later = section.lines.iter().skip(index + 1);
            later.any(|later| is_refusal(later) && concerns_rates(later, section))
        };
        let is_action =
            |action: &str| !action.starts_with("track-sc") && !action.starts_with("sc-");
        let why = match (line.word(0), line.word(1)) {
            ("http-request", "allow") if refuses_later() => {
                "the requests that it lets pass skip the refusals after it; here they meet the limits"
            }
            ("http-request", action)
                if !is_refusal(line)
                    && line.has(&["if", "unless"])
                    && is_action(action)
                    && rated() =>
            {
                "only refusals are limits here"
            }
            ("redirect" | "use_backend" | "use-server" | "block" | "http-after-response", _)
                if rated() =>
            {
                "a rate decides nothing here but whether a request is refused"
            }
            ("rate-limit", _) => "it limits connections of all clients; Tollgate limits requests",
            ("filter", "bwlim-in" | "bwlim-out")
            | ("http-request" | "http-response" | "tcp-request", "set-bandwidth-limit") => {
                "Tollgate does not limit bandwidth"
            }
            ("tcp-request" | "tcp-response", "connection" | "content" | "session")
                if line.has(&["reject", "deny", "silent-drop"]) && rated() =>
            {
                "it refuses connections; Tollgate limits requests"
            }
            ("http-response", "deny" | "return") if rated() => {
                "a response cannot be refused by a limit"
            }
            ("maxconn", _) => {
                draft.note(format!(
                    "{}: {what}: [server.bounds] connections bounds them",
                    line.place
                ));
                continue;
            }
            ("server" | "default-server", _) if line.after("maxconn").is_some() => {
                draft.note(format!(
                    "{}: maxconn of a server: `connections` of an upstream bounds them, for each worker and server",
                    line.place
                ));
                continue;
            }
            _ => continue,
        };
        draft.not_imported(&line.place, &what, why);
    }
}

/// Backends with what becomes of them.
pub(super) fn backends(sections: &[Section], draft: &mut Draft) -> Vec<(String, Target)> {
    let mut made = Vec::new();
    let is_backend = |section: &&Section| matches!(&*section.kind, "backend" | "listen");
    for section in sections.iter().filter(is_backend).take(1_000) {
        let mut servers = Vec::new();
        for line in section.all("server") {
            let address = line.word(2);
            if address.starts_with(['/', '@']) {
                continue;
            }
            let scheme = if line.has(&["ssl"]) { "https" } else { "http" };
            let weight = line.after("weight").and_then(|weight| weight.parse().ok());
            let url = format!("{scheme}://{address}");
            servers.push((line.place.clone(), url, weight.unwrap_or(1)));
        }
        let target = match &servers[..] {
            [(_, url, _)] => Target::Upstream(url.clone()),
            _ => draft.upstream(&section.name, servers),
        };
        made.push((section.name.clone(), target));
    }
    made
}

pub(super) fn routes(
    section: &Section,
    made: &[(String, String)],
    backends: &[(String, Target)],
    draft: &mut Draft,
) {
    let target = |name: &str| {
        let found = backends.iter().find(|(known, _)| known == name);
        found.map_or(Target::Unknown, |(_, target)| target.clone())
    };
    let default = section.all("default_backend").next();
    let fallback = match (default, &*section.kind) {
        (Some(line), _) => target(line.word(1)),
        (None, "listen") => target(&section.name),
        _ => Target::Unknown,
    };
    let mut wanted: Vec<(String, Target, Place)> = Vec::new();
    for line in section.all("use_backend") {
        let why = match condition(line, section) {
            Ok(condition) if condition.counters.is_empty() && condition.exempt.is_empty() => {
                let target = target(line.word(1));
                wanted.push((condition.pattern(), target, line.place.clone()));
                continue;
            }
            Ok(_) => "a route has no such condition".to_owned(),
            Err(why) => why,
        };
        draft.note(format!(
            "{}: {}: {why}; it is left out",
            line.place,
            line.text()
        ));
    }
    let Some(place) = default
        .or(section.lines.first())
        .map(|line| line.place.clone())
    else {
        return;
    };
    // A limit for some requests is a route of its own, to where they go anyway.
    for (pattern, _) in made {
        if !wanted.iter().any(|(known, _, _)| known == pattern) {
            wanted.push((pattern.clone(), fallback.clone(), place.clone()));
        }
    }
    if !wanted.iter().any(|(pattern, _, _)| pattern == "/**") {
        wanted.push(("/**".to_owned(), fallback, place));
    }
    for (pattern, target, place) in wanted {
        let mut route = Route::new(Some(place), pattern.clone(), target);
        let holds = made.iter().filter(|(on, _)| *on == "/**" || *on == pattern);
        route.limits = holds.map(|(_, limit)| limit.clone()).collect();
        draft.route(route);
    }
}
