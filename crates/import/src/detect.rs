//! Tells from a file's name and contents which gateway it is of.

use crate::{Peer, SourceFile};

/// The gateway that a file is of. `None`: it looks like none that is known.
pub fn detect(source: &SourceFile) -> Option<Peer> {
    let name = source.name.to_lowercase();
    let is = |end: &str| name.ends_with(end);
    let text = &source.text;
    if is("nginx.conf") {
        return Some(Peer::Nginx);
    }
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
        if begins(&["domain:", "\"domain\""]) && has("descriptors") {
            return Some(Peer::Envoy);
        }
        if has("rateLimit") || has("inFlightReq") || has("traefik.http.") || has_http() {
            return Some(Peer::Traefik);
        }
        return (has("plugins") && (has("services") || has("routes"))).then_some(Peer::Kong);
    }
    if is(".toml") {
        return begins(&["[http", "[[http"]).then_some(Peer::Traefik);
    }
    begins(&NGINX).then_some(Peer::Nginx)
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
