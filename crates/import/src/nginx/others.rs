//! Settings beside the limits: those without a counterpart, and where addresses come from.

use std::collections::BTreeMap;

use super::directive::Directive;
use super::{Kind, Zone, ZoneName};
use crate::draft::{Draft, either};
use crate::words;

/// Says of each setting that concerns limiting, and of which nothing was said, that it is not imported.
pub(super) fn others(
    block: &Directive,
    in_stream: bool,
    zones: &mut BTreeMap<ZoneName, Zone>,
    draft: &mut Draft,
) {
    for directive in &block.block {
        let in_stream = in_stream || directive.name == "stream";
        // Their entries are values and no directives.
        if !["map", "geo", "split_clients", "types"].contains(&directive.name.as_str()) {
            others(directive, in_stream, zones, draft);
        }
        if directive.said.get() || (is_read(&directive.name) && !in_stream) || !concerns(directive)
        {
            continue;
        }
        let kind = Kind::named(&directive.name, "");
        for ((of, name), zone) in zones.iter_mut() {
            let is_named =
                |arg: &String| arg == name || arg.strip_prefix("zone=") == Some(name.as_str());
            zone.is_used |= Some(*of) == kind && directive.args.iter().any(is_named);
        }
        let around = match block.name.as_str() {
            "" | "http" => "no server of these files makes a route with it".to_owned(),
            _ => format!("`{}` around it makes no route here", block.words()),
        };
        let why = match directive.name.as_str() {
            "limit_conn" | "limit_conn_zone" if in_stream => {
                "it limits TCP connections; Tollgate limits HTTP requests"
            }
            "limit_req" | "limit_conn" if block.name == "if" => "a route has no `if`",
            "limit_req" | "limit_conn" => around.as_str(),
            "limit_zone" => {
                "`limit_zone` is of NGINX before 1.1.8; `limit_conn_zone` took its place"
            }
            "limit_rate" | "limit_rate_after" | "proxy_limit_rate" => {
                "Tollgate does not limit bandwidth"
            }
            _ => "it is not read",
        };
        draft.lost(directive, why);
    }
}

/// Whether a directive concerns limiting by its name, or a script by its text.
fn concerns(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    let is_script = name == "set"
        || ["_by_lua", "js_", "perl"]
            .iter()
            .any(|word| name.contains(word));
    let mut args = directive.args.iter();
    let in_script = is_script && args.any(|arg| words::is_of_limiting(arg));
    name != "limit_except" && (in_script || words::is_of_limiting(name))
}

/// Whether a setting is read elsewhere, or changes no verdict.
fn is_read(name: &str) -> bool {
    let endings = ["_zone", "_log_level", "_status", "_dry_run"];
    let mut endings = endings.into_iter();
    endings.any(|ending| Kind::named(name, ending).is_some())
}

/// Headers that have the client alone, as `[address] header` names them.
const OF_CLIENT: [&str; 4] = [
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "fly-client-ip",
];

/// `set_real_ip_from` is `trusted_proxies`, `real_ip_header` is `header`. What of it is not the same holds for all limits by address.
pub(super) fn real_ip(http: &[&Directive], draft: &mut Draft) {
    let mut all = Vec::new();
    for block in http {
        within(block, &mut all);
    }
    let servers = http.iter().flat_map(|block| block.all("server")).count();
    let named = |name: &'static str| all.iter().filter(move |(one, _)| one.name == name);
    for (from, _) in named("set_real_ip_from") {
        let network = from.arg(0);
        if words::network(network).is_none() {
            draft.differ_by_address(either(format!(
                "set_real_ip_from {network} ({}) is no network: put its addresses into trusted_proxies",
                from.place
            )));
        } else if !draft.trusted.iter().any(|other| other == network) {
            draft.trusted.push(network.to_owned());
        }
    }
    if named("set_real_ip_from").next().is_none() {
        return;
    }
    let is_forwarded_for = |header: &str| header.eq_ignore_ascii_case("x-forwarded-for");
    let mut headers: Vec<&str> = named("real_ip_header").map(|(one, _)| one.arg(0)).collect();
    headers.sort_by_key(|header| header.to_ascii_lowercase());
    headers.dedup_by(|one, other| one.eq_ignore_ascii_case(other));
    if headers.is_empty() {
        headers.push("X-Real-IP");
    }
    if let [only] = headers[..] {
        let mut known = OF_CLIENT.into_iter();
        draft.header = known.find(|known| only.eq_ignore_ascii_case(known));
    }
    if draft.header.is_none() {
        for header in headers.iter().filter(|header| !is_forwarded_for(header)) {
            draft.differ_by_address(either(format!(
                "NGINX takes addresses from {header}; Tollgate takes them from the one header that [address] names, or \
                 from the PROXY protocol where the server has `proxy_protocol`"
            )));
        }
    }
    let is_recursive = named("real_ip_recursive").any(|(one, _)| one.arg(0) == "on");
    if headers.iter().any(|header| is_forwarded_for(header)) && !is_recursive {
        draft.differ_by_address(either(
            "without real_ip_recursive NGINX takes the last address of X-Forwarded-For, Tollgate the last that is not of \
             a trusted proxy",
        ));
    }
    if servers > 1
        && let Some((one, block)) = all
            .iter()
            .find(|(_, block)| !matches!(block.name.as_str(), "" | "http"))
    {
        draft.differ_by_address(either(format!(
            "`{}` ({}) is in force in its `{}` alone; [address] is in force everywhere",
            one.words(),
            one.place,
            block.name
        )));
    }
}

/// The settings of addresses in a block and within it, each with what is around it.
fn within<'d>(block: &'d Directive, all: &mut Vec<(&'d Directive, &'d Directive)>) {
    for directive in &block.block {
        if matches!(
            directive.name.as_str(),
            "set_real_ip_from" | "real_ip_header" | "real_ip_recursive"
        ) {
            all.push((directive, block));
        }
        // The root holds `http` blocks, which are walked by themselves.
        if directive.name != "http" && directive.name != "stream" {
            within(directive, all);
        }
    }
}
