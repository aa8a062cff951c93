//! `haproxy.cfg`: stick tables, what is tracked in them, and the `http-request` lines that refuse.

mod condition;
mod routes;
mod section;

use crate::draft::{Counting, Difference, Draft, Limit, Route, Target, clients, either, name};
use crate::words::unit;
use crate::{ImportError, Source};

use condition::{Condition, Counter, condition};
use routes::{backends, is_refusal, leftovers, routes};
use section::{Line, Section};

/// A stick table: the rates it keeps, with their periods.
struct Table<'h> {
    name: &'h str,
    line: &'h Line,
    rates: Vec<(String, u64)>,
}

/// Reads the files into the draft.
pub(crate) fn draft(sources: &[Source], draft: &mut Draft) -> Result<(), ImportError> {
    let sections = section::read(sources)?;
    let tables = sections.iter().flat_map(|section| {
        let lines = section.all("stick-table");
        lines.map(|line| table(&section.name, line))
    });
    let tables: Vec<Table<'_>> = tables.collect();
    let backends = backends(&sections, draft);
    for section in sections.iter().filter(|section| section.kind == "defaults") {
        routes::defaults(section, draft);
        leftovers(section, draft);
    }
    for section in sections
        .iter()
        .filter(|section| matches!(&*section.kind, "frontend" | "listen" | "backend"))
    {
        let made = refusals(section, &tables, draft);
        leftovers(section, draft);
        if section.kind != "backend" {
            routes(section, &made, &backends, draft);
        } else if !made.is_empty() {
            draft.note(format!(
                "backend {}: its limits hold for the requests that reach it; here they are on the routes of its frontends",
                section.name
            ));
            let mut route = Route::new(None, "/**", Target::Unknown);
            route.limits = made.into_iter().map(|(_, limit)| limit).collect();
            draft.route(route);
        }
    }
    if !draft.limits.is_empty() {
        draft.note("status: HAProxy refuses with 403 unless deny_status says otherwise, Tollgate with 429 and Retry-After");
        draft.note("tables: HAProxy forgets the entry that was used longest ago when a table is full, and after `expire`; peers overwrite each other's counts");
    }
    Ok(())
}

fn table<'h>(name: &'h str, line: &'h Line) -> Table<'h> {
    let stores = line.after("store").unwrap_or_default();
    let rates = stores.split(',').filter_map(stored).collect();
    Table { name, line, rates }
}

/// `http_req_rate(10s)` with its period; a counter without one has none.
fn stored(store: &str) -> Option<(String, u64)> {
    match store.split_once('(') {
        Some((what, rest)) => Some((what.to_owned(), period(rest.trim_end_matches(')'))?)),
        None => Some((store.to_owned(), 0)),
    }
}

/// A duration as HAProxy writes it: milliseconds without a unit.
fn period(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "" => 1_000,
        name => unit(name)?,
    };
    number.checked_mul(unit).filter(|micros| *micros > 0)
}

/// The limits of a section, each with the pattern of the requests it is for.
fn refusals(section: &Section, tables: &[Table<'_>], draft: &mut Draft) -> Vec<(String, String)> {
    let mut made = Vec::new();
    for line in section.lines.iter().filter(|line| is_refusal(line)) {
        let condition = match condition(line, section) {
            Ok(condition) => condition,
            Err(why) => {
                if concerns_rates(line, section) {
                    draft.not_imported(&line.place, &line.text(), &why);
                }
                continue;
            }
        };
        let of_counter = match &condition.counters[..] {
            [] => continue,
            [counter] => limit(section, tables, &condition, counter, line)
                .map(|(limit, differences)| (limit, differences, &counter.what)),
            _ => Err("several counters in one condition have no counterpart".to_owned()),
        };
        match of_counter {
            Ok((limit, differences, counted)) => {
                for network in &condition.exempt {
                    draft.leave_out(network);
                }
                let section = name(&section.name, "api");
                let wanted = format!("{section}_{}", counted.trim_end_matches("_rate"));
                let limit = draft.limit(&wanted, &line.place, &line.text(), limit, differences);
                made.extend(limit.map(|limit| (condition.pattern(), limit)));
            }
            Err(why) => draft.not_imported(&line.place, &line.text(), &why),
        }
    }
    made
}

/// Whether a line, or an acl it names, compares a counter.
fn concerns_rates(line: &Line, section: &Section) -> bool {
    let is_counter = |word: &str| {
        let mut parts = ["_rate", "gpc", "conn_cur", "_cnt"].into_iter();
        parts.any(|part| word.contains(part))
    };
    let compares = |acl: &Line| acl.words.iter().skip(2).any(|word| is_counter(word));
    line.words.iter().any(|word| {
        let name = word.trim_start_matches('!');
        is_counter(name) || section.acl(name).any(compares)
    })
}

fn limit(
    section: &Section,
    tables: &[Table<'_>],
    refusal: &Condition,
    counter: &Counter,
    line: &Line,
) -> Result<(Limit, Vec<Difference>), String> {
    // What is tracked, and where it is counted.
    let (key, table, tracked) = match &counter.number {
        None => ("src".to_owned(), counter.table.as_deref(), None),
        Some(number) => {
            let track = section.lines.iter().find(|line| {
                let at = usize::from(line.word(1) == "content" || line.word(1) == "connection") + 1;
                matches!(line.word(0), "http-request" | "tcp-request")
                    && line.word(at).strip_prefix("track-sc") == Some(number.as_str())
            });
            let track =
                track.ok_or_else(|| format!("nothing is tracked as sc{number} in this section"))?;
            let mut words = track.words.iter();
            let at = words
                .position(|word| word.starts_with("track-sc"))
                .unwrap_or(1);
            let table = track.after("table").or(counter.table.as_deref());
            (track.word(at + 1).to_owned(), table, Some(track))
        }
    };
    let wanted = table.unwrap_or(&section.name);
    let table = tables.iter().find(|table| table.name == wanted);
    let table = table.ok_or_else(|| format!("there is no stick-table `{wanted}`"))?;
    let (counted, place) = (&counter.what, &table.line.place);
    let stored = table.rates.iter().find(|(what, _)| what == counted);
    let (_, period) =
        stored.ok_or_else(|| format!("the table does not store {counted} ({place})"))?;
    let mut differences = Vec::new();
    if let Some(track) = tracked {
        let condition = condition(track, section)?;
        let same = condition.pattern() == refusal.pattern() || condition.pattern() == "/**";
        if !same || !condition.counters.is_empty() {
            let place = &track.place;
            return Err(format!("it is tracked under another condition ({place})"));
        }
        if condition.pattern() != refusal.pattern() {
            differences.push(clients("HAProxy counts all requests that are tracked; here only those that the refusal is about"));
        }
        if track.word(0) == "tcp-request" && track.word(1) == "connection" {
            differences.push(either(
                "HAProxy tracks connections here, and the requests of each",
            ));
        }
    }
    if counter.most == 0 {
        return Err("it refuses every request that is counted".to_owned());
    }
    let mut limit = match &*counter.what {
        "conn_cur" => {
            differences.push(either("HAProxy counts a connection until it releases its entry; here requests in progress count"));
            Limit::new(Counting::InFlight, counter.most, 0)
        }
        what if matches!(what, "http_req_rate" | "http_err_rate") || is_general(what) => {
            if is_general(what) {
                counted_always(what, section)?;
            }
            Limit::new(Counting::SlidingWindow, counter.most, *period)
        }
        "conn_rate" | "sess_rate" => {
            return Err("it counts connections; Tollgate limits requests".to_owned());
        }
        "bytes_in_rate" | "bytes_out_rate" => {
            return Err("Tollgate does not limit bandwidth".to_owned());
        }
        other => return Err(format!("{other} has no counterpart: it has no period")),
    };
    if limit.counting == Counting::SlidingWindow {
        differences.push(clients(
            "HAProxy counts refused requests too, so a client that goes on asking stays refused; here it gets its rate",
        ));
        differences.push(either(format!(
            "both estimate from two periods, which begin at different moments; in one period at most {} more or fewer",
            counter.most.saturating_sub(1)
        )));
    }
    if counter.what == "http_err_rate" {
        limit.count = vec!["4xx"];
    }
    if line.word(1) == "tarpit" {
        differences.push(either(
            "a tarpit holds the connection before it refuses; here the refusal is at once",
        ));
    }
    scope(&key, &mut limit, &mut differences)?;
    Ok((limit, differences))
}

/// Whether it is the rate of a general counter, which the file's own lines raise.
fn is_general(what: &str) -> bool {
    what.starts_with("gpc") && what.ends_with("_rate")
}

/// A general counter is understood where every request raises it.
fn counted_always(what: &str, section: &Section) -> Result<(), String> {
    let name = what.trim_end_matches("_rate");
    let action = format!("sc-inc-{name}(");
    let raises = |line: &&Line| line.words.iter().any(|word| word.starts_with(&action));
    let line = section.lines.iter().find(raises);
    let line = line.ok_or_else(|| format!("nothing raises {name} in this section"))?;
    if line.word(0) != "http-request" || line.has(&["if", "unless"]) {
        return Err(format!("{name} is raised on a condition ({})", line.place));
    }
    Ok(())
}

fn scope(key: &str, limit: &mut Limit, differences: &mut Vec<Difference>) -> Result<(), String> {
    let named = |fetches: &[&str]| {
        fetches.iter().find_map(|fetch| {
            let rest = key.strip_prefix(fetch)?.strip_prefix('(')?;
            let name = rest.split([')', ',']).next()?;
            rest.ends_with(')').then(|| name.to_owned())
        })
    };
    let per = if matches!(key, "src" | "src,ipmask(32,128)") {
        "address".to_owned()
    } else if let Some(name) = named(&["req.hdr", "hdr", "req.fhdr", "hdr_ip", "req.hdr_ip"]) {
        if key.contains("hdr_ip") {
            return Err("the address comes from a header: write its proxies into [address] trusted_proxies and per = \"address\"".to_owned());
        }
        differences.push(either("string keys are cut at the table's length in HAProxy (32 characters by default); here none is"));
        format!("header:{}", name.to_ascii_lowercase())
    } else if let Some(name) = named(&["req.cook", "cook"]) {
        format!("cookie:{name}")
    } else if let Some(name) = named(&["url_param", "urlp"]) {
        format!("query:{name}")
    } else if key.starts_with("int(") || key.starts_with("str(") || key.starts_with("always_") {
        "everyone".to_owned()
    } else {
        return Err(format!("the key `{key}` has no counterpart"));
    };
    if per.contains(':') {
        // A request without the key is not tracked.
        limit.when_missing = "skip";
    }
    limit.per = vec![per];
    Ok(())
}
