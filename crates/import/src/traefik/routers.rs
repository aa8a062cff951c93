//! Routers of files and routes of custom resources, with the middlewares they name.

use super::{Middleware, Named, Router};
use crate::draft::Target;
use crate::tree::Node;

pub(super) fn router<'t>(name: &str, node: &'t Node, document: &'t Node) -> Option<Router<'t>> {
    let rule = node.text_at("rule")?;
    let used = node.items_at(&["middlewares"]).iter();
    // A service can have a provider behind its name: `api@file`.
    let service = node
        .text_at("service")
        .and_then(|name| name.split('@').next());
    let servers = service.map_or(&[][..], |service| {
        document.items_at(&["http", "services", service, "loadBalancer", "servers"])
    });
    let target = match servers {
        [server] => server.text_at("url"),
        _ => None,
    };
    Some(Router {
        name: name.to_owned(),
        node,
        rule,
        middlewares: used
            .filter_map(Node::text)
            .map(|name| Named::new(name, None))
            .collect(),
        target: target.map_or(Target::Unknown, |url| {
            Target::Upstream(url.trim_end_matches('/').to_owned())
        }),
    })
}

pub(super) fn resource<'t>(
    item: &'t Node,
    middlewares: &mut Vec<Middleware<'t>>,
    routers: &mut Vec<Router<'t>>,
) {
    let metadata = |key: &str| item.at(&["metadata", key]).and_then(Node::text);
    let name = metadata("name").unwrap_or("middleware").to_owned();
    let namespace = metadata("namespace").unwrap_or("default");
    match item.text_at("kind") {
        Some("Middleware") => {
            let spec = item.get("spec");
            middlewares
                .extend(spec.map(|node| Middleware::new(Some(namespace.to_owned()), name, node)));
        }
        Some("IngressRoute") => {
            for (index, node) in item.items_at(&["spec", "routes"]).iter().enumerate() {
                let name = match index {
                    0 => name.clone(),
                    _ => format!("{name}_{}", index + 1),
                };
                routers.push(ingress_route(name, node, namespace));
            }
        }
        _ => {}
    }
}

fn ingress_route<'t>(name: String, node: &'t Node, namespace: &str) -> Router<'t> {
    let named = |used: &Node| {
        let within = used.text_at("namespace").unwrap_or(namespace);
        Some(Named::new(used.text_at("name")?, Some(within)))
    };
    let target = node.items_at(&["services"]).first().and_then(|service| {
        let namespace = service.text_at("namespace").unwrap_or(namespace);
        let port = service.text_at("port")?;
        port.parse::<u16>().ok()?;
        Some(Target::service(service.text_at("name")?, namespace, port))
    });
    Router {
        name,
        node,
        rule: node.text_at("match").unwrap_or_default(),
        middlewares: node
            .items_at(&["middlewares"])
            .iter()
            .filter_map(named)
            .collect(),
        target: target.unwrap_or(Target::Unknown),
    }
}
