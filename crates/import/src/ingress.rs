//! Kubernetes Ingress manifests with the annotations of ingress-nginx, whose controller makes `limit_req` of them.

use crate::compare::{Choice, Takes, Turn};
use crate::draft::{Counting, Draft, Limit, Place, Route, Target, clients, either};
use crate::nginx::numbers::{self, Rate};
use crate::tree::Node;
use crate::words;

const PREFIX: &str = "nginx.ingress.kubernetes.io/";

pub(crate) fn draft(documents: &[Node], draft: &mut Draft) {
    let listed = documents
        .iter()
        .flat_map(|document| document.items_at(&["items"]));
    let is_ingress = |item: &&Node| item.text_at("kind") == Some("Ingress");
    let ingresses: Vec<&Node> = listed.chain(documents).filter(is_ingress).collect();
    if ingresses.is_empty() {
        draft.note("there is no Ingress in these files");
    }
    let whitelists: Vec<Vec<String>> = ingresses.iter().map(|ingress| whitelist(ingress)).collect();
    for network in whitelists.iter().flatten() {
        if words::network(network).is_some() {
            draft.leave_out(network);
        } else {
            draft.note(format!(
                "limit-whitelist: `{network}` is no network; it is left out"
            ));
        }
    }
    for (ingress, whitelist) in ingresses.iter().zip(&whitelists) {
        let mut exempt = draft.exempt.iter();
        let differs = exempt.any(|network| !whitelist.contains(network));
        let limits = limits(ingress, differs, draft);
        routes(ingress, &limits, draft);
    }
    draft.choice = Choice {
        by_host: true,
        decodes_slashes: true,
    };
    documents.iter().for_each(|document| draft.unread(document));
    if !draft.limits.is_empty() {
        draft.note(
            "replicas: ingress-nginx counts in each controller pod, so n pods admit n times the number; gateways with \
             a [store] count together",
        );
        draft.note(
            "status: ingress-nginx refuses with 503 unless limit-req-status-code says otherwise, Tollgate with 429 \
             and Retry-After",
        );
    }
}

fn annotations(ingress: &Node) -> Vec<(&str, &Node)> {
    let annotations = ingress.entries_at(&["metadata", "annotations"]).iter();
    annotations
        .filter_map(|(key, node)| Some((key.strip_prefix(PREFIX)?, node)))
        .collect()
}

fn whitelist(ingress: &Node) -> Vec<String> {
    let listed = annotations(ingress)
        .into_iter()
        .filter(|(key, _)| matches!(*key, "limit-whitelist" | "limit-allowlist"));
    let texts = listed.filter_map(|(_, node)| {
        node.is_read.set(true);
        node.text()
    });
    let networks = texts.flat_map(|text| text.split(',')).map(str::trim);
    let named = networks.filter(|network| !network.is_empty());
    named.map(str::to_owned).collect()
}

fn limits(ingress: &Node, exempts_more: bool, draft: &mut Draft) -> Vec<String> {
    let annotations = annotations(ingress);
    let name = ingress.at(&["metadata", "name"]).and_then(Node::text);
    let name = name.unwrap_or("ingress");
    let number = |wanted: &str| {
        let (_, node) = annotations.iter().find(|(key, _)| *key == wanted)?;
        words::number(node.text()?.trim())
    };
    for (_, node) in annotations
        .iter()
        .filter(|(key, _)| *key == "limit-burst-multiplier")
    {
        node.is_read.set(true);
    }
    let multiplier = number("limit-burst-multiplier")
        .filter(|number| *number > 0)
        .unwrap_or(5);
    let is_set = |wanted: &str| number(wanted).is_some_and(|number| number > 0);
    let has_both = is_set("limit-connections") && (is_set("limit-rps") || is_set("limit-rpm"));
    let mut made = Vec::new();
    for (key, node) in &annotations {
        let place = Place::of(node);
        let what = format!("{key}: {}", node.text().unwrap_or("?"));
        let count = number(key);
        let (limit, mut differences, kind) = match (*key, count) {
            ("limit-rps" | "limit-rpm" | "limit-connections", Some(0)) => {
                node.is_read.set(true);
                draft.nothing(&place, &what, "0 is no limit");
                continue;
            }
            ("limit-rps" | "limit-rpm", Some(count)) => {
                let seconds = if *key == "limit-rps" { 1 } else { 60 };
                let rate = Rate {
                    amount: count,
                    seconds,
                };
                let (limit, differences) =
                    numbers::limit(rate, count.saturating_mul(multiplier), None);
                (limit, differences, key.trim_start_matches("limit-"))
            }
            ("limit-connections", Some(count)) => {
                let limit = Limit::new(Counting::InFlight, count, 0);
                (limit, Vec::new(), "connections")
            }
            _ => continue,
        };
        node.is_read.set(true);
        if has_both {
            differences.push(clients(
                "a request that limit-connections refuses has spent its rate in NGINX; here it is charged on neither",
            ));
        }
        if exempts_more {
            differences.push(clients(
                "`exempt` is in force for every limit here, also for those of other ingresses",
            ));
        }
        made.extend(draft.limit(&format!("{name}_{kind}"), &place, &what, limit, differences));
    }
    made
}

fn routes(ingress: &Node, limits: &[String], draft: &mut Draft) {
    let namespace = ingress.at(&["metadata", "namespace"]).and_then(Node::text);
    let namespace = namespace.unwrap_or("default");
    let Some(spec) = ingress.get("spec") else {
        return;
    };
    let annotations = annotations(ingress);
    let expressions = annotations
        .iter()
        .find(|(key, _)| matches!(*key, "use-regex" | "rewrite-target"));
    for rule in spec.items_at(&["rules"]) {
        let host = rule.text_at("host").unwrap_or_default();
        for path in rule.items_at(&["http", "paths"]) {
            let text = path.text_at("path").unwrap_or("/");
            let below = format!("{}/**", text.trim_end_matches('/'));
            let (pattern, takes, rank) = match path.text_at("pathType") {
                Some("Exact") => (text, Takes::Exact(text.to_owned()), u64::MAX),
                Some("Prefix") => (&*below, Takes::Below(text.to_owned()), text.len() as u64),
                _ => (&*below, Takes::Prefix(text.to_owned()), text.len() as u64),
            };
            let target = path
                .get("backend")
                .map_or(Target::Unknown, |backend| target(backend, namespace));
            let route = Route::new(Some(Place::of(path)), format!("{host}{pattern}"), target);
            let mut route = route.taking(takes, Turn::Ranked, rank);
            route.limits = limits.to_vec();
            if let Some((key, node)) = expressions {
                let place = Place::of(node);
                let words = format!(
                    "{key} ({place}) makes regular expressions of the paths of a host, which go before others"
                );
                draft.differ_on_host(Some(host), either(words));
            }
            draft.route(route);
        }
    }
    if let Some(backend) = spec.get("defaultBackend").or_else(|| spec.get("backend")) {
        let route = Route::new(Some(Place::of(backend)), "/**", target(backend, namespace));
        let mut route = route.taking(Takes::Prefix("/".to_owned()), Turn::Ranked, 0);
        route.limits = limits.to_vec();
        draft.route(route);
    }
}

fn target(backend: &Node, namespace: &str) -> Target {
    let text = |path: &[&str]| backend.at(path).and_then(Node::text);
    let name = text(&["service", "name"]).or_else(|| text(&["serviceName"]));
    let old_port = || text(&["servicePort"]).filter(|port| port.parse::<u16>().is_ok());
    match (name, text(&["service", "port", "number"]).or_else(old_port)) {
        (Some(name), Some(port)) => Target::service(name, namespace, port),
        _ => Target::Unknown,
    }
}
