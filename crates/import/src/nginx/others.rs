//! Settings beside the limits: those without a counterpart, and where addresses come from.

use crate::draft::Draft;

use super::tree::Directive;

/// Settings that concern limiting and have no counterpart, wherever they are.
pub(super) fn others(block: &Directive, in_stream: bool, draft: &mut Draft) {
    for directive in block.children() {
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
            "limit_req" | "limit_req_zone" | "limit_conn" | "limit_conn_zone" | "limit_except" => {
                continue;
            }
            "limit_req_log_level"
            | "limit_conn_log_level"
            | "limit_req_status"
            | "limit_conn_status"
            | "limit_req_dry_run"
            | "limit_conn_dry_run" => continue,
            name if name.starts_with("limit_") => "it is not understood",
            _ => continue,
        };
        draft.not_imported(&directive.place(), &directive.words(), why);
    }
}

/// `set_real_ip_from` is `trusted_proxies`.
pub(super) fn real_ip(http: &[&Directive], draft: &mut Draft) {
    let servers = http.iter().flat_map(|block| block.all("server"));
    let blocks: Vec<&Directive> = http.iter().copied().chain(servers).collect();
    let mut header = "X-Real-IP".to_owned();
    for block in &blocks {
        for from in block.all("set_real_ip_from") {
            let network = from.arg(0);
            let known = network.parse::<ipnet::IpNet>().is_ok()
                || network.parse::<std::net::IpAddr>().is_ok();
            if known && !draft.trusted.iter().any(|other| other == network) {
                draft.trusted.push(network.to_owned());
            } else if !known {
                let place = from.place();
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
    let recursive = blocks.iter().any(|block| {
        block
            .all("real_ip_recursive")
            .any(|directive| directive.arg(0) == "on")
    });
    if !recursive {
        draft.note(
            "addresses: without real_ip_recursive NGINX takes the last address of X-Forwarded-For, Tollgate the last \
             that is not of a trusted proxy",
        );
    }
}
