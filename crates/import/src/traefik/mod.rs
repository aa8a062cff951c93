//! Traefik's dynamic configuration in YAML or TOML, and its custom resources: `rateLimit` and `inFlightReq`.

mod limits;
mod numbers;
mod routers;
mod rule;

use crate::compare::Turn;
use crate::draft::{Counting, Draft, Place, Route, Target, clients, either};
use crate::tree::{self, Node};
use crate::{ImportError, SourceFile};

use limits::make;
use routers::{resource, router};

const DEEPEST: usize = 8;

/// Reads TOML by its ending and YAML otherwise.
pub(crate) fn documents(sources: &[SourceFile]) -> Result<Vec<Node>, ImportError> {
    let mut documents = Vec::new();
    for source in sources {
        if source.name.to_lowercase().ends_with(".toml") {
            documents.push(tree::toml(source)?);
        } else {
            documents.extend(tree::documents(std::slice::from_ref(source))?);
        }
    }
    Ok(documents)
}

struct Middleware<'t> {
    /// That of a custom resource; none of a file.
    namespace: Option<String>,
    name: String,
    node: &'t Node,
    is_used: bool,
}

impl<'t> Middleware<'t> {
    const fn new(namespace: Option<String>, name: String, node: &'t Node) -> Self {
        Self {
            namespace,
            name,
            node,
            is_used: false,
        }
    }
}

struct Router<'t> {
    name: String,
    node: &'t Node,
    rule: &'t str,
    middlewares: Vec<Named>,
    target: Target,
}

/// A middleware as a router or a chain names it.
#[derive(Clone)]
struct Named {
    /// Where a custom resource names it without a provider.
    namespace: Option<String>,
    name: String,
    provider: Option<String>,
}

impl Named {
    fn new(text: &str, namespace: Option<&str>) -> Self {
        let (name, provider) = match text.split_once('@') {
            Some((name, provider)) => (name, Some(provider.to_owned())),
            None => (text, None),
        };
        let namespace = namespace.filter(|_| provider.is_none());
        Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            provider,
        }
    }

    /// Whether it is this one: a resource is `NAMESPACE-NAME` to the other providers.
    fn is(&self, middleware: &Middleware<'_>) -> bool {
        match (&middleware.namespace, &self.namespace) {
            (Some(of), Some(wanted)) => of == wanted && middleware.name == self.name,
            (Some(of), None) => {
                self.provider.as_deref() == Some("kubernetescrd")
                    && self.name == format!("{of}-{}", middleware.name)
            }
            (None, None) => {
                self.provider.as_deref() != Some("kubernetescrd") && middleware.name == self.name
            }
            (None, Some(_)) => false,
        }
    }
}

pub(crate) fn draft(documents: &[Node], draft: &mut Draft) {
    let mut middlewares: Vec<Middleware<'_>> = Vec::new();
    let mut routers: Vec<Router<'_>> = Vec::new();
    for document in documents {
        for (name, node) in document.entries_at(&["http", "middlewares"]) {
            node.is_read.set(true);
            middlewares.push(Middleware::new(None, name.clone(), node));
        }
        for (name, node) in document.entries_at(&["http", "routers"]) {
            node.is_read.set(true);
            routers.extend(router(name, node, document));
        }
        labels(document, draft);
        let items = document.items_at(&["items"]).iter();
        for item in items.chain(std::iter::once(document)) {
            resource(item, &mut middlewares, &mut routers);
        }
    }
    for router in &routers {
        let mut limits = Vec::new();
        for used in &router.middlewares {
            apply(used, router, &mut middlewares, &mut limits, 0, draft);
        }
        // Middlewares are asked in turn: what one has charged stays charged when the next refuses.
        let charged = clients(
            "where a later middleware refuses a request, Traefik has charged this one; here it is charged on none",
        );
        let before = limits.split_last().map_or(&[][..], |(_, before)| before);
        for limit in before {
            let named = draft.limits.iter().find(|named| named.name == *limit);
            if named.is_some_and(|named| named.limit.counting != Counting::InFlight) {
                draft.differ(limit, &charged);
            }
        }
        add_routes(router, &limits, draft);
    }
    for middleware in middlewares.iter().filter(|middleware| !middleware.is_used) {
        let (name, node) = (&middleware.name, middleware.node);
        let mut kinds = ["rateLimit", "inFlightReq"].into_iter();
        let Some(kind) = kinds.find(|kind| node.get(kind).is_some()) else {
            continue;
        };
        if routers.is_empty() {
            // A file of middlewares alone: the routers are elsewhere, in labels or in other files.
            make(name, node, None, draft);
        } else {
            tree::is_said(node);
            draft.nothing(
                &Place::of(node),
                &format!("{kind} {name}"),
                "no router uses it",
            );
        }
    }
    documents.iter().for_each(|document| draft.unread(document));
    if !draft.limits.is_empty() {
        draft.note("a change of its configuration refills the buckets of Traefik, and a restart does; here none");
    }
}

/// Says of the labels of a compose file that they are not read.
fn labels(document: &Node, draft: &mut Draft) {
    for (name, service) in document.entries_at(&["services"]) {
        for labels in [service.get("labels"), service.at(&["deploy", "labels"])] {
            let Some(labels) = labels else { continue };
            let why = "labels of containers are not read: write them as a file of the dynamic configuration";
            draft.not_imported(&Place::of(labels), &format!("labels of {name}"), why);
            tree::is_said(labels);
        }
    }
}

/// The limits of a middleware on one router. In memory Traefik keeps buckets for each router.
fn apply(
    used: &Named,
    router: &Router<'_>,
    middlewares: &mut [Middleware<'_>],
    limits: &mut Vec<String>,
    depth: usize,
    draft: &mut Draft,
) {
    let mut known = middlewares.iter_mut();
    let Some(middleware) = known.find(|middleware| used.is(middleware)) else {
        let what = format!("middleware {}", used.name);
        let why = "it is not in these files, so its limits are not known";
        return draft.not_imported(&Place::of(router.node), &what, why);
    };
    middleware.is_used = true;
    let (name, node) = (middleware.name.clone(), middleware.node);
    let namespace = middleware.namespace.clone();
    if let Some(chain) = node.at(&["chain", "middlewares"]) {
        if depth + 1 >= DEEPEST {
            let why = format!("chains are nested deeper than {DEEPEST}");
            return draft.not_imported(&Place::of(chain), &format!("chain {name}"), &why);
        }
        let named = |item: &Node| {
            let within = item.text_at("namespace").or(namespace.as_deref());
            let name = item.text().or_else(|| item.text_at("name"))?;
            Some(Named::new(name, within))
        };
        let names: Vec<Named> = chain.items().iter().filter_map(named).collect();
        if names.len() > 100 {
            let why = "a chain of more than 100 middlewares";
            draft.not_imported(&Place::of(chain), &format!("chain {name}"), why);
        }
        for named in names.iter().take(100) {
            apply(named, router, middlewares, limits, depth + 1, draft);
        }
        return;
    }
    limits.extend(make(&name, node, Some(&router.name), draft));
}

fn add_routes(router: &Router<'_>, limits: &[String], draft: &mut Draft) {
    let place = Place::of(router.node);
    let patterns = match rule::patterns(router.rule) {
        Ok(patterns) => patterns,
        Err(why) => {
            let what = format!("router {}: {}", router.name, router.rule);
            if !limits.is_empty() {
                let why = format!("{why}; its limits ({}) are on no route", limits.join(", "));
                draft.not_imported(&place, &what, &why);
            }
            let words = format!("{what} ({place}) takes requests that go to other routes here");
            draft.differ_on_host(None, either(words));
            return;
        }
    };
    for pattern in patterns {
        // The longest rule is asked first, unless a priority is written.
        let written = router
            .node
            .text_at("priority")
            .and_then(|text| text.parse().ok());
        let rank = written
            .filter(|priority| *priority > 0)
            .unwrap_or(router.rule.len() as u64);
        let route = Route::new(Some(place.clone()), pattern.text, router.target.clone());
        let mut route = route.taking(pattern.takes, Turn::Ranked, rank);
        route.headers = pattern.headers;
        route.limits = limits.to_vec();
        draft.route(route);
    }
}
