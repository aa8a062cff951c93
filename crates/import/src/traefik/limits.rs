use crate::draft::{Counting, Difference, Draft, Limit, Place, clients, either, name, upstream};
use crate::tree::{Node, is_said};

use super::numbers;

pub(super) fn make(
    middleware: &str,
    node: &Node,
    router: Option<&str>,
    draft: &mut Draft,
) -> Option<String> {
    let wanted = match router {
        Some(router) => format!("{}_{}", name(router, "router"), name(middleware, "limit")),
        None => middleware.to_owned(),
    };
    if let Some(rate) = node.get("rateLimit") {
        let mut what = format!("rateLimit {middleware}");
        for key in ["average", "period", "burst"] {
            what.extend(rate.text_at(key).map(|text| format!(" {key}={text}")));
        }
        let place = Place::of(rate);
        let redis = rate.get("redis");
        let (limit, differences) = match numbers::limit(rate) {
            Ok(Some(made)) => made,
            Ok(None) => {
                is_said(rate);
                draft.nothing(&place, &what, "`average` is 0, which is no limit");
                return None;
            }
            Err(why) => {
                is_said(rate);
                draft.not_imported(&place, &what, &why);
                return None;
            }
        };
        if redis.is_some() {
            draft.note(format!("{place}: it counts in Redis for all instances and routers; without a [store] each gateway counts for itself"));
        }
        return scoped(&wanted, rate, &what, limit, differences, "address", draft);
    }
    let places = node.get("inFlightReq")?;
    let amount = places
        .text_at("amount")
        .and_then(|text| text.parse::<u64>().ok());
    let amount = amount.unwrap_or(0);
    let what = format!("inFlightReq {middleware} amount={amount}");
    if amount == 0 {
        is_said(places);
        let why = "an amount above 0 was expected; 0 refuses every request";
        draft.not_imported(&Place::of(places), &what, why);
        return None;
    }
    let limit = Limit::new(Counting::InFlight, amount, 0);
    scoped(&wanted, places, &what, limit, Vec::new(), "host", draft)
}

fn scoped(
    wanted: &str,
    node: &Node,
    what: &str,
    mut limit: Limit,
    mut differences: Vec<Difference>,
    default: &str,
    draft: &mut Draft,
) -> Option<String> {
    let place = Place::of(node);
    let source = node.get("sourceCriterion");
    let header = source
        .and_then(|source| source.text_at("requestHeaderName"))
        .filter(|name| !name.is_empty());
    let strategy = source.and_then(|source| source.get("ipStrategy"));
    let per = match (header, strategy) {
        (Some(header), _) => {
            limit.when_missing = "use:address";
            differences.push(clients(
                "without the header all clients share one bucket in Traefik; here each address has one",
            ));
            format!("header:{}", header.to_ascii_lowercase())
        }
        (None, Some(_)) => "address".to_owned(),
        _ if source.is_some_and(|source| source.is_true("requestHost")) => "host".to_owned(),
        (None, None) => default.to_owned(),
    };
    if let Some(strategy) = strategy {
        let depth = strategy
            .text_at("depth")
            .and_then(|text| text.parse::<u64>().ok());
        let depth = depth.unwrap_or(0);
        if depth > 0 || strategy.get("excludedIPs").is_some() {
            differences.push(upstream(format!(
                "ipStrategy ({}) looks for the client in X-Forwarded-For; here it is believed only from the networks in \
                 [address] trusted_proxies, which this file does not tell: until they are written, all clients behind \
                 a proxy share its bucket",
                if depth > 0 { format!("depth {depth}") } else { "excludedIPs".to_owned() }
            )));
        }
        if let Some(prefix) = strategy.text_at("ipv6Subnet") {
            differences.push(clients(format!(
                "IPv6 clients of one /{prefix} count together in Traefik; here each address for itself: [address] ipv6_prefix"
            )));
        }
    }
    for node in [Some(node), source, strategy].into_iter().flatten() {
        draft.unread_members(node, &[("requestHost", "false")]);
    }
    if per == "host" {
        differences.push(either("a route's hosts count each for itself here; hosts that no route names share one bucket"));
    }
    limit.per = vec![per];
    draft.limit(wanted, &place, what, limit, differences)
}
