//! The configuration of envoyproxy/ratelimit: descriptors with fixed windows of the clock.

use std::borrow::Cow;

use crate::draft::{Counting, Difference, Draft, Limit, Route, Target, by_method, clients, either};
use crate::tree::{documents, not_read};
use crate::{ImportError, Place, SourceFile};
use tollgate_config::rate_limit_yaml::{self, Descriptor, Position, Quota, RateLimit};

/// Keys that Envoy fills by its own rules; others are taken for headers.
const MEANT: [&str; 6] = [
    "remote_address",
    "masked_remote_address",
    "generic_key",
    "header_match",
    "path",
    "method",
];

/// A limit that was made, and the requests it is for.
struct Made {
    limit: String,
    headers: Vec<(String, String)>,
    path: Option<String>,
}

#[derive(Clone, Default)]
struct Chain {
    names: Vec<String>,
    per: Vec<String>,
    has_source: bool,
    constant: Vec<String>,
    headers: Vec<(String, String)>,
    path: Option<String>,
}

pub(crate) fn draft(sources: &[SourceFile], draft: &mut Draft) -> Result<(), ImportError> {
    let mut made = Vec::new();
    let held: Vec<Vec<SourceFile>> = sources.iter().map(of_config_maps).collect();
    let files = sources
        .iter()
        .zip(&held)
        .flat_map(|(source, held)| match held.is_empty() {
            true => std::slice::from_ref(source),
            false => held.as_slice(),
        });
    for source in files {
        let (files, mistakes) = rate_limit_yaml::read(&source.name, &source.text)
            .map_err(|error| not_read(&source.name, error))?;
        for mistake in mistakes {
            let place = source.place(mistake.place.line);
            draft.not_imported(&place, &mistake.what, &mistake.why);
        }
        let mut reader = Reader {
            source,
            draft,
            made: &mut made,
        };
        for file in &files {
            if file.descriptors.is_empty() {
                let place = source.place(file.place.line);
                let text = format!("{place}: there are no descriptors");
                reader.draft.note(text);
            }
            reader.siblings(&file.descriptors, &Chain::default());
        }
    }
    routes(&made, draft);
    if !draft.limits.is_empty() {
        draft.note(
            "store: the service counts in Redis or Memcached for all of Envoy; without a [store] each gateway counts \
             for itself",
        );
    }
    Ok(())
}

/// The files that the ConfigMaps of a manifest hold; none if it has none.
fn of_config_maps(source: &SourceFile) -> Vec<SourceFile> {
    let documents = documents(std::slice::from_ref(source)).unwrap_or_default();
    let maps = documents
        .iter()
        .filter(|map| map.text_at("kind") == Some("ConfigMap"));
    let held = maps
        .flat_map(|map| map.entries_at(&["data"]))
        .filter_map(|(key, held)| {
            Some(SourceFile {
                name: format!("{} {key}", source.name),
                text: held.text()?.to_owned(),
            })
        });
    held.collect()
}

struct Reader<'r> {
    source: &'r SourceFile,
    draft: &'r mut Draft,
    made: &'r mut Vec<Made>,
}

impl Reader<'_> {
    fn place(&self, at: Position) -> Place {
        self.source.place(at.line)
    }

    /// Descriptors at one level: one with a value goes before the one of the same key without.
    fn siblings(&mut self, descriptors: &[Descriptor], above: &Chain) {
        for descriptor in descriptors {
            let before = self.made.len();
            self.descriptor(descriptor, above);
            if descriptor.value.is_some() {
                continue;
            }
            let key = &descriptor.key;
            let alike = descriptors.iter().filter(|other| other.key == *key);
            let valued = alike.filter_map(|other| other.value.as_deref()).next();
            let Some(value) = valued else { continue };
            let first = either(format!(
                "the service does not count `{key}={value}` here, whose descriptor goes before this one; without a \
                 route of its own it is counted here as well"
            ));
            for one in self.made.iter().skip(before) {
                self.draft.differ(&one.limit, &first);
            }
        }
    }

    fn descriptor(&mut self, descriptor: &Descriptor, above: &Chain) {
        let (place, what) = (self.place(descriptor.place), descriptor.words());
        let (key, value) = (descriptor.key.as_str(), descriptor.value.as_deref());
        let mut chain = above.clone();
        chain
            .names
            .push(value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}")));
        let why_not = chain.add(key, value, &what);
        let why_not = why_not.or(descriptor.quota_mode.then_some("there is no `quota_mode`"));
        if !MEANT.contains(&&*of_envoy(key)) && why_not.is_none() {
            self.draft.note(format!(
                "{place}: Envoy's routes say what fills `{key}`; it is taken for the header of that name"
            ));
        }
        if let Some(rate) = &descriptor.rate_limit {
            let at = self.place(rate.place);
            self.rate_limit(descriptor, rate, &chain, why_not, &at);
            if !rate.replaces.is_empty() {
                let why =
                    "limits do not replace each other here: name on each route those that hold";
                self.draft.not_imported(&at, "replaces", why);
            }
        }
        match why_not {
            Some(why) => {
                for inner in &descriptor.descriptors {
                    let what = format!("descriptors within {what}");
                    let place = self.place(inner.place);
                    self.draft.not_imported(&place, &what, why);
                }
            }
            None => self.siblings(&descriptor.descriptors, &chain),
        }
    }

    fn rate_limit(
        &mut self,
        descriptor: &Descriptor,
        rate: &RateLimit,
        chain: &Chain,
        why_not: Option<&str>,
        at: &Place,
    ) {
        let what = descriptor.words();
        let (words, quota) = match rate.quota {
            Quota::Unlimited => (format!("{what}: unlimited"), None),
            Quota::Per { requests, period } => {
                let unit = tollgate_limit::words::period(period);
                let words = format!("{what}: {requests} per {unit}");
                (words, Some((requests, period)))
            }
            Quota::Broken => return,
        };
        match (why_not, quota) {
            (Some(why), _) => self.draft.not_imported(at, &words, why),
            (None, None) => self.draft.nothing(at, &words, "it is unlimited"),
            (None, Some((0, _))) => {
                let why =
                    "a limit admits at least one; to refuse all, write a route with `respond`";
                self.draft.not_imported(at, &words, why);
            }
            (None, Some((requests, period))) => {
                let mut limit = Limit::new(Counting::ClockWindow, requests, period.0);
                limit.shadow = descriptor.shadow_mode;
                let differences = chain.split(&mut limit);
                let name = rate.name.as_deref().filter(|name| !name.is_empty());
                let name = name.map_or_else(|| chain.names.join("_"), str::to_owned);
                let limit = self.draft.limit(&name, at, &words, limit, differences);
                self.made.extend(limit.map(|limit| Made {
                    limit,
                    headers: chain.headers.clone(),
                    path: chain.path.clone(),
                }));
            }
        }
    }
}

/// The key, without regard to the spelling of those that Envoy's routes fill from the request line: Istio's
/// examples write `PATH` for `:path`.
fn of_envoy(key: &str) -> Cow<'_, str> {
    let folded = key.trim_start_matches(':').to_ascii_lowercase();
    match folded.as_str() {
        "path" | "method" => Cow::Owned(folded),
        _ => Cow::Borrowed(key),
    }
}

impl Chain {
    /// Adds an entry, or says why a route cannot stand for it.
    fn add(&mut self, key: &str, value: Option<&str>, what: &str) -> Option<&'static str> {
        match (&*of_envoy(key), value) {
            ("remote_address" | "masked_remote_address", None) => {
                self.per.push("address".to_owned());
            }
            ("remote_address" | "masked_remote_address", Some(_)) => {
                return Some("a route cannot tell one address from others");
            }
            ("generic_key" | "header_match" | "destination_cluster" | "source_cluster", _) => {
                self.constant.push(what.to_owned());
            }
            ("path", Some(value)) => self.path = Some(value.to_owned()),
            ("path", None) => self.per.push("route".to_owned()),
            ("method", Some(_)) => {
                return Some("a method of its own is not read; write a route with it");
            }
            ("method", None) => self.per.push("method".to_owned()),
            (_, Some(value)) if value.ends_with('*') => {
                return Some("a route has no values with `*`");
            }
            (_, Some(value)) => self
                .headers
                .push((key.to_ascii_lowercase(), value.to_owned())),
            (_, None) => {
                self.per
                    .push(format!("header:{}", key.to_ascii_lowercase()));
                self.has_source = true;
            }
        }
        None
    }

    /// Splits a limit by what was gathered, and says how the two differ.
    fn split(&self, limit: &mut Limit) -> Vec<Difference> {
        limit.per.clone_from(&self.per);
        if limit.per.is_empty() {
            limit.per.push("everyone".to_owned());
        }
        if self.has_source {
            limit.when_missing = "skip";
        }
        let has = |part: &str| limit.per.iter().any(|per| per == part);
        let mut differences = Vec::new();
        if has("method") {
            differences.push(by_method());
        }
        if has("route") {
            differences.push(either(
                "paths of one route share a bucket here; Envoy's descriptor has each path for itself",
            ));
        }
        let constant = self.constant.iter().map(|constant| {
            either(format!(
                "Envoy's routes say which requests carry `{constant}`; here all do: name the limit on those routes only"
            ))
        });
        differences.extend(constant);
        differences
    }
}

fn routes(made: &[Made], draft: &mut Draft) {
    let is_always = |one: &&Made| one.headers.is_empty() && one.path.is_none();
    let always = made.iter().filter(is_always);
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
    for one in made.iter().filter(|one| !is_always(one)) {
        let mut route = Route::new(None, one.path.as_deref().unwrap_or("/**"), Target::Unknown);
        route.headers.clone_from(&one.headers);
        let is_same = |other: &&Made| other.headers == one.headers && other.path == one.path;
        let same = made.iter().filter(is_same).map(|one| &one.limit);
        // A value of its own goes before the descriptor without one; other descriptors hold as well.
        let others = always.iter().filter(|limit| !one.replaces(limit, draft));
        route.limits = same.chain(others).cloned().collect();
        draft.route(route);
    }
}

impl Made {
    /// Whether this limit's value goes before `limit`, which has the same key without a value.
    fn replaces(&self, limit: &str, draft: &Draft) -> bool {
        let named = draft.limits.iter().find(|named| named.name == limit);
        let per = named.map_or(&[][..], |named| &named.limit.per);
        let has = |part: &str| per.iter().any(|own| own == part);
        let mut headers = self.headers.iter();
        headers.any(|(name, _)| has(&format!("header:{name}")))
            || self.path.is_some() && has("route")
    }
}
