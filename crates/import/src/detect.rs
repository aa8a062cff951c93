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
    let by_name = match () {
        () if name.starts_with("caddyfile") || is(".caddyfile") => Some(Peer::Caddy),
        () if is("nginx.conf") => Some(Peer::Nginx),
        () if is("haproxy.cfg") => Some(Peer::Haproxy),
        () => None,
    };
    let by_name = by_name.map(|peer| (peer, "its name"));
    by_name.or_else(|| Some((by_contents(&source.text, is)?, "its contents")))
}

/// `is`: whether the file's name ends so.
fn by_contents(text: &str, is: impl Fn(&str) -> bool) -> Option<Peer> {
    // A line of the text that begins so, blanks and list dashes not counted.
    let begins = |words: &[&str]| {
        text.lines().take(100_000).any(|line| {
            let line = line.trim_start().trim_start_matches("- ").trim_start();
            words.iter().any(|word| line.starts_with(word))
        })
    };
    let has = |word: &str| text.contains(word);
    if is(".yml") || is(".yaml") || is(".json") || begins(&["apiVersion:", "_format_version"]) {
        if begins(&["_format_version", "\"_format_version"]) {
            return Some(Peer::Kong);
        }
        if begins(&["apiVersion:", "\"apiVersion\""]) {
            if has("traefik.io/") || has("traefik.containo.us/") {
                return Some(Peer::Traefik);
            }
            let kinds = ["kind: Ingress", "\"kind\": \"Ingress\""];
            if begins(&kinds) || has("nginx.ingress.kubernetes.io/") {
                return Some(Peer::Ingress);
            }
        }
        let has_http = || begins(&["http:"]) && (has("routers") || has("middlewares"));
        return match () {
            () if begins(&["domain:", "\"domain\""]) && has("descriptors") => Some(Peer::Envoy),
            () if has("rateLimit") || has("inFlightReq") || has_http() => Some(Peer::Traefik),
            () if has("plugins") && (has("services") || has("routes")) => Some(Peer::Kong),
            () => None,
        };
    }
    match () {
        () if is(".toml") => begins(&["[http", "[[http"]).then_some(Peer::Traefik),
        () if begins(&NGINX) => Some(Peer::Nginx),
        () if begins(&HAPROXY) => Some(Peer::Haproxy),
        () if begins(&["rate_limit", "reverse_proxy"]) => Some(Peer::Caddy),
        () => None,
    }
}

const NGINX: [&str; 7] = [
    "limit_req",
    "limit_conn",
    "server {",
    "http {",
    "upstream ",
    "proxy_pass ",
    "worker_processes",
];
const HAPROXY: [&str; 5] = [
    "stick-table",
    "http-request ",
    "frontend ",
    "backend ",
    "default_backend",
];
