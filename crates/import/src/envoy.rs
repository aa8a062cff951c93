//! The configuration of envoyproxy/ratelimit: descriptors with fixed windows of the clock.

use crate::draft::{Counting, Draft, Limit, Route, Target, clients, either};
use crate::tree::Node;
use crate::words::{DAY, HOUR, MINUTE, SECOND};

/// The deepest nesting of descriptors.
const DEEPEST: usize = 16;

/// A limit that was made, and the requests it is for.
struct Made {
    limit: String,
    headers: Vec<(String, String)>,
    path: Option<String>,
}

/// What a chain of descriptors has gathered.
#[derive(Clone, Default)]
struct Chain {
    names: Vec<String>,
    per: Vec<String>,
    has_source: bool,
    /// Keys whose meaning is in Envoy's routes.
    constant: Vec<String>,
    headers: Vec<(String, String)>,
    path: Option<String>,
}

/// Reads the files into the draft.
pub(crate) fn draft(documents: &[Node], draft: &mut Draft) {
    let mut made = Vec::new();
    for document in documents {
        // The service accepts a file of one domain, its chart a map of files.
        let roots = document.get("domain").map(|_| document).into_iter();
        let mut count = 0;
        for root in roots {
            let descriptors = root.get("descriptors").map_or(&[][..], Node::items);
            count += descriptors.len();
            siblings(descriptors, &Chain::default(), 0, draft, &mut made);
        }
        if count == 0 {
            draft.note(format!("{}: there are no descriptors", document.place()));
        }
    }
    routes(&made, draft);
    if !draft.limits.is_empty() {
        draft.note(
            "store: the service counts in Redis or Memcached for all of Envoy; without a [store] each gateway counts \
             for itself",
        );
    }
}

/// Descriptors at one level: one with a value goes before the one of the same key without.
fn siblings(
    descriptors: &[Node],
    above: &Chain,
    depth: usize,
    draft: &mut Draft,
    made: &mut Vec<Made>,
) {
    for descriptor in descriptors {
        let before = made.len();
        read(descriptor, above, depth, draft, made);
        let value = |node: &Node| {
            node.text_at("value")
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        if value(descriptor).is_some() {
            continue;
        }
        let key = descriptor.text_at("key");
        let valued = descriptors
            .iter()
            .filter(|other| other.text_at("key") == key)
            .find_map(value);
        let (Some(key), Some(value)) = (key, valued) else {
            continue;
        };
        let first = either(format!(
            "the service does not count `{key}={value}` here, whose descriptor goes before this one; without a route \
             of its own it is counted here as well"
        ));
        for one in made.iter().skip(before) {
            draft.differ(&one.limit, &first);
        }
    }
}

fn read(descriptor: &Node, above: &Chain, depth: usize, draft: &mut Draft, made: &mut Vec<Made>) {
    let (place, key) = (
        descriptor.place(),
        descriptor.text_at("key").unwrap_or_default(),
    );
    let value = descriptor
        .text_at("value")
        .filter(|value| !value.is_empty());
    let what = match value {
        Some(value) => format!("descriptor {key}={value}"),
        None => format!("descriptor {key}"),
    };
    if depth >= DEEPEST || key.is_empty() {
        let why = if key.is_empty() {
            "it has no key"
        } else {
            "it is nested too deep"
        };
        return draft.not_imported(&place, &what, why);
    }
    let mut chain = above.clone();
    chain
        .names
        .push(value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}")));
    let mut why_not = None;
    let is_quota = descriptor.is_true("quota_mode")
        || descriptor
            .get("rate_limit")
            .is_some_and(|rate| rate.is_true("quota_mode"));
    match (key, value) {
        ("remote_address" | "masked_remote_address", None) => chain.per.push("address".to_owned()),
        ("remote_address" | "masked_remote_address", Some(_)) => {
            why_not = Some("a route cannot tell one address from others");
        }
        ("generic_key" | "header_match" | "destination_cluster" | "source_cluster", _) => {
            chain.constant.push(what.clone());
        }
        ("path" | ":path", Some(value)) => chain.path = Some(value.to_owned()),
        ("path" | ":path", None) => chain.per.push("route".to_owned()),
        ("method" | ":method", Some(_)) => {
            why_not = Some("a method of its own is not read; write a route with it");
        }
        ("method" | ":method", None) => chain.per.push("method".to_owned()),
        (_, Some(value)) if value.ends_with('*') => {
            why_not = Some("a route has no values with `*`")
        }
        (_, Some(value)) => chain
            .headers
            .push((key.to_ascii_lowercase(), value.to_owned())),
        (_, None) => {
            chain
                .per
                .push(format!("header:{}", key.to_ascii_lowercase()));
            chain.has_source = true;
        }
    }
    if is_quota && why_not.is_none() {
        why_not = Some("there is no `quota_mode`");
    }
    let is_header = ![
        "remote_address",
        "masked_remote_address",
        "generic_key",
        "header_match",
        "path",
        "method",
    ]
    .contains(&key);
    if is_header && why_not.is_none() {
        draft.note(format!(
            "{place}: Envoy's routes say what fills `{key}`; it is taken for the header of that name"
        ));
    }
    if let Some(rate) = descriptor.get("rate_limit") {
        let unit = rate
            .text_at("unit")
            .unwrap_or_default()
            .to_ascii_lowercase();
        let count = rate.text_at("requests_per_unit").unwrap_or("0");
        let words = if rate.is_true("unlimited") {
            format!("{what}: unlimited")
        } else {
            format!("{what}: {count} per {unit}")
        };
        let at = rate.place();
        match why_not {
            Some(why) => draft.not_imported(&at, &words, why),
            None if rate.is_true("unlimited") => draft.nothing(&at, &words, "it is unlimited"),
            None => {
                let period = period(&unit);
                let number = count.parse::<u64>().ok().filter(|number| *number > 0);
                match (period, number) {
                    (Some(period), Some(number)) => {
                        let mut limit = Limit::new(Counting::ClockWindow, number, period);
                        limit.shadow =
                            descriptor.is_true("shadow_mode") || rate.is_true("shadow_mode");
                        let name = rate.text_at("name").unwrap_or_default();
                        add(&chain, limit, name, &at, &words, draft, made);
                    }
                    (None, _) => draft.not_imported(&at, &words, "the unit is not understood"),
                    (_, None) => draft.not_imported(
                        &at,
                        &words,
                        "a limit admits at least one; to refuse all, write a route with `respond`",
                    ),
                }
            }
        }
        if rate.get("replaces").is_some() {
            draft.not_imported(
                &at,
                "replaces",
                "limits do not replace each other here: name on each route those that hold",
            );
        }
    }
    let within = descriptor.get("descriptors").map_or(&[][..], Node::items);
    match why_not {
        Some(why) => {
            for inner in within {
                draft.not_imported(&inner.place(), &format!("descriptors within {what}"), why);
            }
        }
        None => siblings(within, &chain, depth + 1, draft, made),
    }
}

fn add(
    chain: &Chain,
    mut limit: Limit,
    name: &str,
    place: &crate::Place,
    words: &str,
    draft: &mut Draft,
    made: &mut Vec<Made>,
) {
    let mut differences = Vec::new();
    limit.per.clone_from(&chain.per);
    if limit.per.is_empty() {
        limit.per.push("everyone".to_owned());
    }
    if chain.has_source {
        limit.when_missing = "skip";
    }
    if limit.per.iter().any(|per| per == "method") {
        differences.push(either(
            "HEAD counts as GET here, and methods that no route names share one bucket",
        ));
    }
    if limit.per.iter().any(|per| per == "route") {
        differences.push(either(
            "paths of one route share a bucket here; Envoy's descriptor has each path for itself",
        ));
    }
    for constant in &chain.constant {
        differences.push(either(format!(
            "Envoy's routes say which requests carry `{constant}`; here all do: name the limit on those routes only"
        )));
    }
    let wanted = if name.is_empty() {
        chain.names.join("_")
    } else {
        name.to_owned()
    };
    if let Some(limit) = draft.limit(&wanted, place, words, limit, differences) {
        made.push(Made {
            limit,
            headers: chain.headers.clone(),
            path: chain.path.clone(),
        });
    }
}

/// The service's units: a month has 30 days and a year 365, and all begin at multiples since 1970.
fn period(unit: &str) -> Option<u64> {
    Some(match unit {
        "second" => SECOND,
        "minute" => MINUTE,
        "hour" => HOUR,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    })
}

fn routes(made: &[Made], draft: &mut Draft) {
    let always = made
        .iter()
        .filter(|one| one.headers.is_empty() && one.path.is_none());
    let always: Vec<String> = always.map(|one| one.limit.clone()).collect();
    if made.len() > 1 {
        let several = clients(
            "where another limit refuses a request, the service has charged this one; here it is charged on none",
        );
        for one in made {
            draft.differ(&one.limit, &several);
        }
    }
    let mut base = Route::new(None, "/**", Target::Unknown);
    base.limits.clone_from(&always);
    draft.route(base);
    for one in made
        .iter()
        .filter(|one| !one.headers.is_empty() || one.path.is_some())
    {
        let mut route = Route::new(None, one.path.as_deref().unwrap_or("/**"), Target::Unknown);
        route.headers.clone_from(&one.headers);
        let same = made
            .iter()
            .filter(|other| other.headers == one.headers && other.path == one.path);
        route.limits = same.map(|one| one.limit.clone()).collect();
        // A value of its own goes before the descriptor without one; other descriptors hold as well.
        route.limits.extend(
            always
                .iter()
                .filter(|limit| !one.replaces(limit, made, draft))
                .cloned(),
        );
        draft.route(route);
    }
}

impl Made {
    /// Whether this limit's value goes before `limit`, which has the same key without a value.
    fn replaces(&self, limit: &str, made: &[Self], draft: &Draft) -> bool {
        let Some(other) = made.iter().find(|other| other.limit == limit) else {
            return false;
        };
        let named = draft.limits.iter().find(|named| named.name == other.limit);
        let per = named.map_or(&[][..], |named| &named.limit.per);
        self.headers
            .iter()
            .any(|(name, _)| per.iter().any(|per| *per == format!("header:{name}")))
    }
}
