//! Services, routes, consumers and plugins, and which plugin is in force where.

use sha2::{Digest, Sha256};

use crate::compare::{Takes, Turn};
use crate::draft::{Caller, Draft, Identity, Place, Route, Target, either, methods};
use crate::tree::Node;
use tollgate_limit::hex;

/// A plugin of one kind, and the limits it became.
pub(super) struct Plugin<'k> {
    pub(super) scope: Scope,
    pub(super) node: &'k Node,
    pub(super) limits: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    Service(String),
    Route(String),
    Consumer(String),
    Several,
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
        .map_or_else(|| Place::of(node).to_string(), str::to_owned)
}

pub(super) struct ServiceRoute<'k> {
    service: Option<&'k Node>,
    route: &'k Node,
}

pub(super) fn ways(root: &Node) -> Vec<ServiceRoute<'_>> {
    let services = root.items_at(&["services"]);
    let mut ways = Vec::new();
    for service in services {
        let routes = service.items_at(&["routes"]).iter();
        ways.extend(routes.map(|route| ServiceRoute {
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
        ways.push(ServiceRoute { service, route });
    }
    ways.truncate(2_000);
    ways
}

/// The plugin that is in force on a route: its own, its service's, or that of all.
pub(super) fn in_force(plugins: &[Plugin<'_>], way: &ServiceRoute<'_>) -> Option<usize> {
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
            // Kong's consumers may be nameless; a caller has a name.
            let name = match consumer {
                "" => format!("consumer-{}", &digest[..8]),
                name => name.to_owned(),
            };
            callers.push(Caller {
                digest,
                name,
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

/// What tells a route's requests from others and is not read.
const UNREAD: [&str; 5] = ["headers", "expression", "snis", "sources", "destinations"];

impl<'k> ServiceRoute<'k> {
    pub(super) fn routes(&self, root: &Node, limits: &[String], draft: &mut Draft) {
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
        let target = self.target(root, draft);
        let place = Place::of(self.route);
        if let Some(key) = UNREAD.into_iter().find(|key| self.route.get(key).is_some()) {
            if !limits.is_empty() {
                let what = format!("limits of route {}", name_of(self.route));
                let why = format!(
                    "its `{key}` is not read, so {} is on no route for it",
                    limits.join(", ")
                );
                draft.not_imported(&place, &what, &why);
            }
            let words = format!(
                "a route with `{key}` ({place}) takes requests that go to other routes here"
            );
            return draft.differ_on_host(None, either(words));
        }
        for host in or_one(texts("hosts"), "") {
            for path in or_one(texts("paths"), "/") {
                if path.starts_with('~') {
                    let why = "a route has no regular expressions";
                    if !limits.is_empty() {
                        draft.not_imported(&place, &format!("limits of path {path}"), why);
                    }
                    let words = format!(
                        "path {path} ({place}) takes requests that go to other routes here: {why}"
                    );
                    draft.differ_on_host(None, either(words));
                    continue;
                }
                let front = path.trim_end_matches('/');
                let pattern = format!("{methods}{host}{front}/**");
                // Kong asks first the route with more conditions, then one of a whole host, then the longest path.
                let conditions = ["methods", "hosts", "paths"]
                    .map(|key| u64::from(self.route.get(key).is_some()));
                let is_whole = u64::from(!host.starts_with('*'));
                let rank =
                    (conditions.iter().sum::<u64>() << 32) + (is_whole << 31) + path.len() as u64;
                let route = Route::new(Some(place.clone()), pattern, target.clone());
                let mut route = route.taking(Takes::Prefix(path.to_owned()), Turn::Ranked, rank);
                if !front.is_empty() && self.route.text_at("strip_path") != Some("false") {
                    route.strip_prefix = front.to_owned();
                }
                route.limits = limits.to_vec();
                draft.route(route);
            }
        }
    }

    fn target(&self, root: &Node, draft: &mut Draft) -> Target {
        let Some(service) = self.service else {
            return Target::Unknown;
        };
        let text = |key| service.text_at(key);
        let url = text("url").and_then(|url| url.split_once("://"));
        let address = url.map(|(_, rest)| rest.split('/').next().unwrap_or_default());
        let (scheme, host, port) = match (url, address) {
            (Some((scheme, _)), Some(address)) => match address.rsplit_once(':') {
                Some((host, port)) if !address.ends_with(']') => (scheme, host, Some(port)),
                _ => (scheme, address, None),
            },
            _ => match text("host") {
                Some(host) => (text("protocol").unwrap_or("http"), host, text("port")),
                None => return Target::Unknown,
            },
        };
        let upstreams = root.items_at(&["upstreams"]).iter();
        let mut named = upstreams.filter(|upstream| upstream.text_at("name") == Some(host));
        if let Some(upstream) = named.next() {
            return members(root, upstream, scheme, host, draft);
        }
        let port = port.map(|port| format!(":{port}"));
        let default = if url.is_some() {
            ""
        } else if scheme == "https" {
            ":443"
        } else {
            ":80"
        };
        Target::Upstream(format!(
            "{scheme}://{host}{}",
            port.as_deref().unwrap_or(default)
        ))
    }
}

/// The targets of an upstream as servers, by their weights; one of weight 0 takes no requests.
fn members(root: &Node, upstream: &Node, scheme: &str, name: &str, draft: &mut Draft) -> Target {
    if draft
        .upstreams
        .iter()
        .any(|(known, _)| known == &crate::draft::name(name, "upstream"))
    {
        return Target::Upstream(crate::draft::name(name, "upstream"));
    }
    let is_of = |target: &&Node| {
        let named = target.get("upstream");
        named.and_then(|named| named.text().or_else(|| named.text_at("name"))) == Some(name)
    };
    let apart = root.items_at(&["targets"]).iter().filter(is_of);
    let mut servers = Vec::new();
    for target in upstream.items_at(&["targets"]).iter().chain(apart) {
        let weight = target
            .text_at("weight")
            .map_or(Some(100), |text| text.parse::<u64>().ok());
        let address = target.text_at("target").unwrap_or_default();
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port { "" } else { ":8000" };
        match weight {
            Some(weight) if weight > 0 => servers.push((
                Place::of(target),
                format!("{scheme}://{address}{port}"),
                weight,
            )),
            _ => draft.note(format!(
                "{}: target {address} has no weight: it takes no requests and is left out",
                Place::of(target)
            )),
        }
    }
    draft.upstream(name, servers)
}
