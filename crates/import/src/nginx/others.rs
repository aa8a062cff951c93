//! Settings beside the limits: those without a counterpart, and where addresses come from.

use super::directive::Directive;
use crate::draft::Draft;
use crate::words;

use super::Kind;

/// Settings that concern limiting and have no counterpart, wherever they are.
pub(super) fn others(block: &Directive, in_stream: bool, draft: &mut Draft) {
    for directive in &block.block {
        let in_stream = in_stream || directive.name == "stream";
        others(directive, in_stream, draft);
        let why = match directive.name.as_str() {
            "limit_conn" | "limit_conn_zone" if in_stream => {
                "it limits TCP connections; Tollgate limits HTTP requests"
            }
            "limit_req" | "limit_conn" if block.name == "if" => "a route has no `if`",
            "limit_zone" => {
                "`limit_zone` is of NGINX before 1.1.8; `limit_conn_zone` took its place"
            }
            "limit_rate" | "limit_rate_after" | "proxy_limit_rate" => {
                "Tollgate does not limit bandwidth"
            }
            "limit_except" => continue,
            name if is_read(name) => continue,
            name if name.starts_with("limit_") => "it is not understood",
            _ => continue,
        };
        draft.lost(directive, why);
    }
}

/// Whether a setting is read elsewhere, or changes no verdict.
fn is_read(name: &str) -> bool {
    let endings = ["", "_zone", "_log_level", "_status", "_dry_run"];
    let mut endings = endings.into_iter();
    endings.any(|ending| Kind::named(name, ending).is_some())
}

/// `set_real_ip_from` is `trusted_proxies`.
pub(super) fn real_ip(http: &[&Directive], draft: &mut Draft) {
    let servers = http.iter().flat_map(|block| block.all("server"));
    let blocks: Vec<&Directive> = http.iter().copied().chain(servers).collect();
    let mut header = "X-Real-IP".to_owned();
    for block in &blocks {
        for from in block.all("set_real_ip_from") {
            let network = from.arg(0);
            let is_known = words::network(network).is_some();
            if is_known && !draft.trusted.iter().any(|other| other == network) {
                draft.trusted.push(network.to_owned());
            } else if !is_known {
                let place = &from.place;
                draft.note(format!("{place}: set_real_ip_from {network}: trusted_proxies lists networks; put its addresses there"));
            }
        }
        if let Some(directive) = block.all("real_ip_header").last() {
            header = directive.arg(0).to_owned();
        }
    }
    if draft.trusted.is_empty() {
        return;
    }
    if !header.eq_ignore_ascii_case("x-forwarded-for") {
        draft.note(format!(
            "addresses: NGINX takes them from {header}, Tollgate from X-Forwarded-For or Forwarded of trusted_proxies \
             (PROXY protocol: [server] proxy_protocol)"
        ));
    }
    let mut recursive = blocks
        .iter()
        .flat_map(|block| block.all("real_ip_recursive"));
    if !recursive.any(|directive| directive.arg(0) == "on") {
        draft.note(
            "addresses: without real_ip_recursive NGINX takes the last address of X-Forwarded-For, Tollgate the last \
             that is not of a trusted proxy",
        );
    }
}
