//! Tells from a file's name and contents which gateway it is of.

use crate::{Peer, Source};

/// The gateway that a file is of, and what it was told by. `None`: it looks like none that is known.
pub fn detect(source: &Source) -> Option<(Peer, &'static str)> {
    let path = std::path::Path::new(&source.name);
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let is = |end: &str| name.ends_with(end);
    if name.starts_with("caddyfile") || is(".caddyfile") {
        return Some((Peer::Caddy, "its name"));
    }
    if is("nginx.conf") {
        return Some((Peer::Nginx, "its name"));
    }
    if is("haproxy.cfg") {
        return Some((Peer::Haproxy, "its name"));
    }
    // A line of the text that begins so, blanks and list dashes not counted.
    let begins = |words: &[&str]| {
        source.text.lines().take(100_000).any(|line| {
            let line = line.trim_start().trim_start_matches("- ").trim_start();
            words.iter().any(|word| line.starts_with(word))
        })
    };
    let has = |text: &str| source.text.contains(text);
    let contents = "its contents";
    if is(".yml") || is(".yaml") || is(".json") || begins(&["apiVersion:", "_format_version"]) {
        if begins(&["_format_version", "\"_format_version"]) {
            return Some((Peer::Kong, contents));
        }
        let is_resource = begins(&["apiVersion:", "\"apiVersion\""]);
        if is_resource && (has("traefik.io/") || has("traefik.containo.us/")) {
            return Some((Peer::Traefik, contents));
        }
        if is_resource
            && (begins(&["kind: Ingress", "\"kind\": \"Ingress\""])
                || has("nginx.ingress.kubernetes.io/"))
        {
            return Some((Peer::Ingress, contents));
        }
        if begins(&["domain:", "\"domain\""]) && has("descriptors") {
            return Some((Peer::Envoy, contents));
        }
        if has("rateLimit")
            || has("inFlightReq")
            || (begins(&["http:"]) && (has("routers") || has("middlewares")))
        {
            return Some((Peer::Traefik, contents));
        }
        if has("plugins") && (has("services") || has("routes")) {
            return Some((Peer::Kong, contents));
        }
        return None;
    }
    if is(".toml") {
        return begins(&["[http", "[[http"]).then_some((Peer::Traefik, contents));
    }
    if begins(&[
        "limit_req",
        "limit_conn",
        "server {",
        "http {",
        "upstream ",
        "proxy_pass ",
        "worker_processes",
    ]) {
        return Some((Peer::Nginx, contents));
    }
    if begins(&[
        "stick-table",
        "http-request ",
        "frontend ",
        "backend ",
        "default_backend",
    ]) {
        return Some((Peer::Haproxy, contents));
    }
    if begins(&["rate_limit", "reverse_proxy"]) {
        return Some((Peer::Caddy, contents));
    }
    None
}
