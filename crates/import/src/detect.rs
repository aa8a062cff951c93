//! Tells from a file's name and contents which gateway it is of.

use crate::{Peer, SourceFile};

/// The gateway that a file is of, and how that was seen. `None`: it looks like none that is known.
pub fn detect(source: &SourceFile) -> Option<(Peer, &'static str)> {
    let path = std::path::Path::new(&source.name);
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let is = |end: &str| name.ends_with(end);
    let by_name = match () {
        () if is("nginx.conf") => Some(Peer::Nginx),
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
            () if has("rateLimit") || has("inFlightReq") || has("traefik.http.") || has_http() => {
                Some(Peer::Traefik)
            }
            () if has("plugins") && (has("services") || has("routes")) => Some(Peer::Kong),
            () => None,
        };
    }
    match () {
        () if is(".toml") => begins(&["[http", "[[http"]).then_some(Peer::Traefik),
        () if begins(&NGINX) => Some(Peer::Nginx),
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

/// A gateway whose files are not read, because none of their limits has an equal here: its name, and the page of the
/// book that has the counterparts.
pub fn page(source: &SourceFile) -> Option<(&'static str, &'static str)> {
    let name = source.name.to_lowercase();
    let begins = |words: &[&str]| {
        let mut lines = source.text.lines().take(100_000).map(str::trim_start);
        lines.any(|line| words.iter().any(|word| line.starts_with(word)))
    };
    match () {
        () if name.contains("haproxy") || begins(&HAPROXY) => {
            Some(("HAProxy", "Move from HAProxy"))
        }
        () if name.contains("caddyfile") || begins(&CADDY) => Some(("Caddy", "Move from Caddy")),
        () => None,
    }
}

const HAPROXY: [&str; 4] = [
    "stick-table",
    "http-request ",
    "frontend ",
    "default_backend",
];
const CADDY: [&str; 3] = ["rate_limit {", "reverse_proxy ", "handle_path "];
