//! Services, routes, consumers and plugins, and which plugin is in force where.

use sha2::{Digest, Sha256};

use crate::draft::{Caller, Draft, Identity, Place, Route, Target};
use crate::tree::{Node, Placed as _};
use tollgate_limit::hex;

/// A plugin of one kind, and the limits it became.
pub(super) struct Plugin<'k> {
    pub(super) scope: Scope,
    pub(super) node: &'k Node,
    pub(super) limits: Vec<(&'static str, String)>,
}

/// What a plugin is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    Service(String),
    Route(String),
    Consumer(String),
    /// A combination of them.
    Several,
    /// A group of consumers.
    Group,
}

/// All plugins with what they are of.
pub(super) fn plugins(root: &Node) -> Vec<(Scope, &Node)> {
    let mut all = Vec::new();
    for node in items(root, "plugins") {
        all.push((scope(node, None), node));
    }
    let routes = items(root, "routes").iter();
    let services = items(root, "services");
    for service in services {
        let own = || Scope::Service(service_name(service));
        all.extend(
            items(service, "plugins")
                .iter()
                .map(|node| (scope(node, Some(own())), node)),
        );
    }
    let within = services.iter().flat_map(|service| items(service, "routes"));
    for route in routes.chain(within) {
        let own = || Scope::Route(route_name(route));
        all.extend(
            items(route, "plugins")
                .iter()
                .map(|node| (scope(node, Some(own())), node)),
        );
    }
    for consumer in items(root, "consumers") {
        let username = consumer.text_at("username").unwrap_or_default();
        let own = || Scope::Consumer(username.to_owned());
        all.extend(
            items(consumer, "plugins")
                .iter()
                .map(|node| (scope(node, Some(own())), node)),
        );
    }
    for group in items(root, "consumer_groups") {
        all.extend(
            items(group, "plugins")
                .iter()
                .map(|node| (Scope::Group, node)),
        );
    }
    all
}

fn items<'k>(node: &'k Node, key: &str) -> &'k [Node] {
    node.get(key).map_or(&[][..], Node::items)
}

/// What a plugin is of: what it names, and what it is written in.
fn scope(node: &Node, within: Option<Scope>) -> Scope {
    if node.get("consumer_group").is_some() {
        return Scope::Group;
    }
    let named = |key: &str| {
        let value = node.get(key)?;
        let name = value.text().or_else(|| value.text_at("name"));
        let name = name.or_else(|| value.text_at("username"));
        Some(name.unwrap_or_default().to_owned())
    };
    let named = (named("service"), named("route"), named("consumer"));
    match (named, within) {
        ((None, None, None), within) => within.unwrap_or(Scope::All),
        ((Some(service), None, None), None) => Scope::Service(service),
        ((_, Some(route), None), None) => Scope::Route(route),
        ((None, None, Some(consumer)), None) => Scope::Consumer(consumer),
        _ => Scope::Several,
    }
}

/// A service without a name is known by its place.
fn service_name(service: &Node) -> String {
    service
        .text_at("name")
        .map_or_else(|| service.place().to_string(), str::to_owned)
}

/// A route without a name is known by its place.
fn route_name(route: &Node) -> String {
    route
        .text_at("name")
        .map_or_else(|| route.place().to_string(), str::to_owned)
}

/// A route with its service.
pub(super) struct Way<'k> {
    service: Option<&'k Node>,
    route: &'k Node,
}

pub(super) fn ways(root: &Node) -> Vec<Way<'_>> {
    let services = root.get("services").map_or(&[][..], Node::items);
    let mut ways = Vec::new();
    for service in services {
        let routes = service.get("routes").map_or(&[][..], Node::items).iter();
        ways.extend(routes.map(|route| Way {
            service: Some(service),
            route,
        }));
    }
    for route in root.get("routes").map_or(&[][..], Node::items) {
        let named = route
            .get("service")
            .and_then(|node| node.text().or_else(|| node.text_at("name")));
        let service = services
            .iter()
            .find(|service| service.text_at("name") == named && named.is_some());
        ways.push(Way { service, route });
    }
    ways.truncate(2_000);
    ways
}

/// The plugin that is in force on a route: its own, its service's, or that of all.
pub(super) fn in_force(plugins: &[Plugin<'_>], way: &Way<'_>) -> Option<usize> {
    let mut scopes = vec![Scope::Route(route_name(way.route))];
    scopes.extend(
        way.service
            .map(|service| Scope::Service(service_name(service))),
    );
    scopes.push(Scope::All);
    scopes
        .iter()
        .find_map(|scope| plugins.iter().position(|plugin| plugin.scope == *scope))
}

/// The identity of `key-auth`, with the consumers' keys.
pub(super) fn identity(root: &Node, auth: &[Plugin<'_>]) -> Identity {
    let config = auth.first().and_then(|plugin| plugin.node.get("config"));
    let names: Vec<&str> = config
        .and_then(|config| config.get("key_names"))
        .map_or_else(
            || vec!["apikey"],
            |names| names.items().iter().filter_map(Node::text).collect(),
        );
    let off = |key: &str| config.and_then(|config| config.text_at(key)) == Some("false");
    let mut keys = Vec::new();
    for name in names {
        if !off("key_in_header") {
            keys.push(format!("header:{}", name.to_ascii_lowercase()));
        }
        if !off("key_in_query") {
            keys.push(format!("query:{name}"));
        }
    }
    let is_anonymous = auth.iter().any(|plugin| {
        plugin
            .node
            .get("config")
            .is_some_and(|config| config.get("anonymous").is_some())
    });
    let mut callers: Vec<Caller> = Vec::new();
    let mut add = |consumer: &str, key: &str| {
        let digest = hex::digits(&Sha256::digest(key.as_bytes()));
        if callers.len() < 5_000 && !callers.iter().any(|caller| caller.digest == digest) {
            callers.push(Caller {
                digest,
                name: consumer.to_owned(),
                limits: Vec::new(),
            });
        }
    };
    for consumer in root.get("consumers").map_or(&[][..], Node::items) {
        let username = consumer
            .text_at("username")
            .or_else(|| consumer.text_at("custom_id"))
            .unwrap_or_default();
        for key in consumer
            .get("keyauth_credentials")
            .map_or(&[][..], Node::items)
        {
            key.text_at("key")
                .into_iter()
                .for_each(|key| add(username, key));
        }
    }
    for key in root.get("keyauth_credentials").map_or(&[][..], Node::items) {
        if let (Some(consumer), Some(key)) = (key.text_at("consumer"), key.text_at("key")) {
            add(consumer, key);
        }
    }
    Identity {
        keys,
        when_missing: if is_anonymous {
            "use:address"
        } else {
            "refuse"
        },
        callers,
    }
}

impl Way<'_> {
    /// What tells its requests from others and is not read.
    pub(super) fn unread(&self) -> Option<&'static str> {
        let keys = ["headers", "expression", "snis", "sources", "destinations"];
        keys.into_iter().find(|key| self.route.get(key).is_some())
    }

    pub(super) fn routes(&self, limits: &[String], draft: &mut Draft) {
        let texts = |key: &str| -> Vec<&str> {
            self.route
                .get(key)
                .map_or(&[][..], Node::items)
                .iter()
                .filter_map(Node::text)
                .collect()
        };
        let or = |list: Vec<&'static str>, found: Vec<&str>| -> Vec<String> {
            if found.is_empty() {
                list.into_iter().map(str::to_owned).collect()
            } else {
                found.into_iter().map(str::to_owned).collect()
            }
        };
        let methods = texts("methods").join("|");
        let methods = if methods.is_empty() {
            String::new()
        } else {
            format!("{methods} ")
        };
        let target = self.target();
        let place: Place = self.route.place();
        let other = self.unread();
        if let (Some(key), false) = (other, limits.is_empty()) {
            let what = format!("limits of route {}", route_name(self.route));
            let why = format!(
                "its `{key}` is not read, so {} is on no route for it",
                limits.join(", ")
            );
            draft.not_imported(&place, &what, &why);
            return;
        }
        if let Some(key) = other {
            draft.note(format!(
                "{place}: its `{key}` is not read; the route is left out"
            ));
            return;
        }
        for host in or(vec![""], texts("hosts")) {
            for path in or(vec!["/"], texts("paths")) {
                if path.starts_with('~') {
                    let why = "a route has no regular expressions";
                    match limits {
                        [] => draft.note(format!("{place}: path {path}: {why}")),
                        _ => draft.not_imported(&place, &format!("limits of path {path}"), why),
                    }
                    continue;
                }
                let front = path.trim_end_matches('/');
                let mut route = Route::new(
                    Some(place.clone()),
                    format!("{methods}{host}{front}/**"),
                    target.clone(),
                );
                if !front.is_empty() {
                    draft.note("paths: a path of Kong is a prefix, so `/orders` also takes `/orders-old`; here `/orders/**` takes `/orders` and what is below it");
                    if self.route.text_at("strip_path") != Some("false") {
                        route.strip_prefix = front.to_owned();
                    }
                }
                route.limits = limits.to_vec();
                draft.route(route);
            }
        }
    }

    fn target(&self) -> Target {
        let Some(service) = self.service else {
            return Target::Unknown;
        };
        if let Some(url) = service.text_at("url") {
            let host = url.split_once("://").map(|(scheme, rest)| {
                format!("{scheme}://{}", rest.split('/').next().unwrap_or_default())
            });
            return host.map_or(Target::Unknown, Target::Upstream);
        }
        let Some(host) = service.text_at("host") else {
            return Target::Unknown;
        };
        let scheme = service.text_at("protocol").unwrap_or("http");
        let port = service
            .text_at("port")
            .unwrap_or(if scheme == "https" { "443" } else { "80" });
        Target::Upstream(format!("{scheme}://{host}:{port}"))
    }
}
