//! Services, routes, consumers and plugins, and which plugin is in force where.

use sha2::{Digest, Sha256};

use crate::draft::{Caller, Draft, Identity, Route, Target, methods};
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

impl<'k> Plugin<'k> {
    pub(super) const fn new(scope: Scope, node: &'k Node) -> Self {
        Self {
            scope,
            node,
            limits: Vec::new(),
        }
    }
}

/// All plugins with what they are of.
pub(super) fn plugins(root: &Node) -> Vec<(Scope, &Node)> {
    let services = root.items_at(&["services"]);
    let within = services
        .iter()
        .flat_map(|service| service.items_at(&["routes"]));
    let routes = root.items_at(&["routes"]).iter().chain(within);
    let consumer = |node: &Node| {
        let username = node.text_at("username").unwrap_or_default();
        Scope::Consumer(username.to_owned())
    };
    let mut owners: Vec<(&Node, Option<Scope>)> = vec![(root, None)];
    owners.extend(
        services
            .iter()
            .map(|node| (node, Some(Scope::Service(name_of(node))))),
    );
    owners.extend(routes.map(|node| (node, Some(Scope::Route(name_of(node))))));
    let consumers = root.items_at(&["consumers"]).iter();
    owners.extend(consumers.map(|node| (node, Some(consumer(node)))));
    let groups = root.items_at(&["consumer_groups"]).iter();
    owners.extend(groups.map(|node| (node, Some(Scope::Group))));
    let plugins = owners.into_iter().flat_map(|(owner, own)| {
        let plugins = owner.items_at(&["plugins"]).iter();
        plugins.map(move |node| (scope(node, own.clone()), node))
    });
    plugins.collect()
}

/// What a plugin is of: what it names, and what it is written in.
fn scope(node: &Node, within: Option<Scope>) -> Scope {
    if within == Some(Scope::Group) || node.get("consumer_group").is_some() {
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

/// A service or route without a name is known by its place.
fn name_of(node: &Node) -> String {
    node.text_at("name")
        .map_or_else(|| node.place().to_string(), str::to_owned)
}

/// A route with its service.
pub(super) struct Way<'k> {
    service: Option<&'k Node>,
    route: &'k Node,
}

pub(super) fn ways(root: &Node) -> Vec<Way<'_>> {
    let services = root.items_at(&["services"]);
    let mut ways = Vec::new();
    for service in services {
        let routes = service.items_at(&["routes"]).iter();
        ways.extend(routes.map(|route| Way {
            service: Some(service),
            route,
        }));
    }
    for route in root.items_at(&["routes"]) {
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
    let route = Scope::Route(name_of(way.route));
    let service = way.service.map(|service| Scope::Service(name_of(service)));
    let mut scopes = [Some(route), service, Some(Scope::All)]
        .into_iter()
        .flatten();
    scopes.find_map(|scope| plugins.iter().position(|plugin| plugin.scope == scope))
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
    let is_anonymous = auth
        .iter()
        .any(|plugin| plugin.node.at(&["config", "anonymous"]).is_some());
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
    for consumer in root.items_at(&["consumers"]) {
        let username = consumer
            .text_at("username")
            .or_else(|| consumer.text_at("custom_id"))
            .unwrap_or_default();
        let keys = consumer.items_at(&["keyauth_credentials"]).iter();
        keys.filter_map(|key| key.text_at("key"))
            .for_each(|key| add(username, key));
    }
    for key in root.items_at(&["keyauth_credentials"]) {
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

impl<'k> Way<'k> {
    /// What tells its requests from others and is not read.
    pub(super) fn unread(&self) -> Option<&'static str> {
        let keys = ["headers", "expression", "snis", "sources", "destinations"];
        keys.into_iter().find(|key| self.route.get(key).is_some())
    }

    pub(super) fn routes(&self, limits: &[String], draft: &mut Draft) {
        let texts = |key: &str| -> Vec<&'k str> {
            let items = self.route.items_at(&[key]).iter();
            items.filter_map(Node::text).collect()
        };
        let or_one = |mut found: Vec<&'k str>, default| {
            if found.is_empty() {
                found.push(default);
            }
            found
        };
        let methods = methods(&texts("methods"));
        let target = self.target();
        let place = self.route.place();
        if let Some(key) = self.unread() {
            if limits.is_empty() {
                draft.note(format!(
                    "{place}: its `{key}` is not read; the route is left out"
                ));
            } else {
                let what = format!("limits of route {}", name_of(self.route));
                let limits = limits.join(", ");
                let why = format!("its `{key}` is not read, so {limits} is on no route for it");
                draft.not_imported(&place, &what, &why);
            }
            return;
        }
        for host in or_one(texts("hosts"), "") {
            for path in or_one(texts("paths"), "/") {
                if path.starts_with('~') {
                    let why = "a route has no regular expressions";
                    match limits {
                        [] => draft.note(format!("{place}: path {path}: {why}")),
                        _ => draft.not_imported(&place, &format!("limits of path {path}"), why),
                    }
                    continue;
                }
                let front = path.trim_end_matches('/');
                let pattern = format!("{methods}{host}{front}/**");
                let mut route = Route::new(Some(place.clone()), pattern, target.clone());
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
