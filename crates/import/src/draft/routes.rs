//! The routes and upstreams of a draft. A route that cannot be written is left out, and the report says what that means for
//! its limits.

use super::{Draft, Finding, MOST, Place, free, name, upstream};
use crate::compare::{Takes, Theirs, Turn};
use crate::words::plain;
use crate::write;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A URL or the name of an upstream.
    Upstream(String),
    /// The file does not say where requests go.
    Unknown,
    Respond(u64, String),
    Redirect(u64, String),
}

impl Target {
    pub(crate) fn service(name: &str, namespace: &str, port: &str) -> Self {
        Self::Upstream(format!("http://{name}.{namespace}.svc:{port}"))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) place: Option<Place>,
    pub(crate) pattern: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) target: Target,
    pub(crate) limits: Vec<String>,
    pub(crate) strip_prefix: String,
    pub(crate) add_prefix: String,
    theirs: Option<(Takes, Turn, u64)>,
}

impl Route {
    pub(crate) fn new(place: Option<Place>, pattern: impl Into<String>, target: Target) -> Self {
        Self {
            place,
            pattern: pattern.into(),
            headers: Vec::new(),
            target,
            limits: Vec::new(),
            strip_prefix: String::new(),
            add_prefix: String::new(),
            theirs: None,
        }
    }
}

impl Route {
    /// The same route, with how the other gateway takes its requests and its rank among others.
    pub(crate) fn taking(self, takes: Takes, turn: Turn, rank: u64) -> Self {
        Self {
            theirs: Some((takes, turn, rank)),
            ..self
        }
    }

    fn theirs(&self) -> Option<Theirs> {
        let (takes, turn, rank) = self.theirs.clone()?;
        let (methods, pattern) = self.pattern.split_once(' ').unwrap_or(("", &self.pattern));
        let host = pattern.split('/').next().unwrap_or_default();
        let methods = methods.split('|').filter(|method| !method.is_empty());
        Some(Theirs {
            host: host.to_owned(),
            takes,
            methods: methods.map(str::to_owned).collect(),
            headers: self.headers.clone(),
            turn,
            rank,
            limits: self.limits.clone(),
        })
    }
}

/// The methods of a pattern; all where none is named.
pub(crate) fn methods<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.join("|") {
        names if names.is_empty() => names,
        names => names + " ",
    }
}

impl Draft {
    /// Adds an upstream of these servers. A server that is named twice, or that is none, is left out.
    pub(crate) fn upstream(&mut self, wanted: &str, servers: Vec<(Place, String, u64)>) -> Target {
        let mut good: Vec<(String, u64)> = Vec::new();
        for (place, url, weight) in servers.into_iter().take(MOST) {
            let again = good.iter().any(|(known, _)| *known == url);
            match write::check_upstream(&[(url.clone(), weight)]) {
                Ok(()) if !again => good.push((url, weight)),
                Ok(()) => self.note(format!(
                    "{place}: server {url} is named twice; it counts once"
                )),
                Err(why) => self.note(format!("{place}: server {url}: {why}")),
            }
        }
        if good.is_empty() || self.upstreams.len() >= MOST {
            return Target::Unknown;
        }
        let is_taken = |name: &str| self.upstreams.iter().any(|(known, _)| known == name);
        let name = free(name(wanted, "upstream"), is_taken);
        if let Err(why) = write::check_upstream(&good) {
            self.note(format!("upstream {name}: {why}"));
            return Target::Unknown;
        }
        self.upstreams.push((name.clone(), good));
        Target::Upstream(name)
    }

    /// Adds a route, unless its pattern is bad or taken, which is noted.
    pub(crate) fn route(&mut self, route: Route) {
        if self.theirs.len() < 2 * MOST {
            self.theirs.extend(route.theirs());
        }
        if self.routes.len() >= MOST {
            self.note(format!("more than {MOST} routes: the rest is left out"));
            if !route.limits.is_empty() {
                self.unlimited(&route, &format!("more than {MOST} routes"));
            }
            return;
        }
        let taken = self
            .routes
            .iter()
            .position(|other| other.pattern == route.pattern && other.headers == route.headers);
        match taken {
            Some(taken) => self.join(taken, route),
            None => match write::check_route(&route) {
                Ok(()) => self.routes.push(route),
                Err(why) => self.mend(route, &why),
            },
        }
    }

    /// Joins a route with the one at `taken`, which has the same pattern. If their targets differ,
    /// the new one is left out.
    fn join(&mut self, taken: usize, route: Route) {
        let pattern = plain(&route.pattern, 200);
        let other = &mut self.routes[taken];
        let missing = |from: &[String], of: &[String]| -> Vec<String> {
            let missing = of.iter().filter(|limit| !from.contains(limit));
            missing.cloned().collect()
        };
        let more = missing(&other.limits, &route.limits);
        let mut wider = missing(&route.limits, &other.limits);
        let why = if other.target == route.target || other.target == Target::Unknown {
            wider.extend(more.iter().cloned());
            other.limits.extend(more);
            other.target = route.target;
            "here one route with it takes the requests of both"
        } else {
            let place = prefix(&route);
            self.note(format!(
                "{place}`{pattern}` has a route already; this one is left out"
            ));
            if !more.is_empty() {
                self.unlimited(&route, "another route takes the same requests");
            }
            "here all its requests meet it"
        };
        let difference = upstream(format!(
            "the files have `{pattern}` twice, once without this limit; {why}"
        ));
        for limit in wider {
            self.differ(&limit, &difference);
        }
    }

    /// Adds a route that cannot be written without its upstream, if only that is wrong; otherwise
    /// the route is left out.
    fn mend(&mut self, mut route: Route, why: &str) {
        let (place, pattern) = (prefix(&route), plain(&route.pattern, 200));
        if let Target::Upstream(url) = &route.target {
            let url = url.clone();
            route.target = Target::Unknown;
            if write::check_route(&route).is_ok() {
                self.note(format!("{place}`{url}` cannot be an upstream: {why}"));
                self.routes.push(route);
                return;
            }
        }
        if route.limits.is_empty() {
            let words = "cannot be a route, it is left out";
            return self.note(format!("{place}`{pattern}` {words}: {why}"));
        }
        match &route.place {
            Some(at) => {
                let why = format!("`{pattern}` cannot be a route, so it is not limited: {why}");
                self.not_imported(at, &pattern, &why);
            }
            None => {
                let limits = route.limits.join(", ");
                self.note(format!(
                    "`{pattern}` cannot be a route, it and its limits ({limits}) are left out: {why}"
                ));
            }
        }
    }

    /// Says that the limits of a route that is left out do not hold for its requests.
    pub(crate) fn unlimited(&mut self, route: &Route, why: &str) {
        let of_limit = |finding: &&Finding| {
            let limit = finding.limit.as_ref();
            limit.is_some_and(|limit| route.limits.contains(limit))
        };
        let place = route.place.clone().or_else(|| {
            let found = self.findings.iter().find(of_limit);
            found.map(|finding| finding.place.clone())
        });
        let limits = route.limits.join(", ");
        let what = format!("route {}", route.pattern);
        let why = format!("{why}, so it is left out, and {limits} does not limit it");
        self.not_imported(&place.unwrap_or_default(), &what, &why);
    }
}

/// The place of a route as the beginning of a note.
fn prefix(route: &Route) -> String {
    let place = route.place.as_ref();
    place.map_or_else(String::new, |place| format!("{place}: "))
}
