//! Servers and locations as routes, `upstream` blocks as upstreams.

use super::directive::Directive;
use crate::compare::{Takes, Turn};
use crate::draft::{Draft, Target};

/// The names of the upstreams that were made, by the names of the file.
pub(crate) type Upstreams = Vec<(String, String)>;

pub(crate) fn upstreams(http: &[&Directive], draft: &mut Draft) -> Upstreams {
    let mut made: Upstreams = Vec::new();
    for block in http.iter().flat_map(|http| http.all("upstream")) {
        let mut servers = Vec::new();
        for server in block.all("server") {
            let address = server.arg(0);
            if let Some(state) = server
                .args
                .iter()
                .find(|arg| matches!(arg.as_str(), "down" | "backup"))
            {
                let place = &server.place;
                draft.note(format!("{place}: server {address} is `{state}`: it is left out, for all servers of an upstream here take requests"));
                continue;
            }
            if let Some(most) = server.args.iter().find(|arg| arg.starts_with("max_conns=")) {
                draft.note(format!(
                    "{}: server {address} {most}: `connections` of an upstream bounds them, for each worker and server",
                    server.place
                ));
            }
            let url = match address.strip_prefix("unix:") {
                Some(path) => format!("unix:{path}"),
                None => format!("http://{address}"),
            };
            let weight = server
                .args
                .iter()
                .find_map(|arg| arg.strip_prefix("weight=")?.parse().ok());
            let weight = weight.unwrap_or(1);
            servers.push((server.place.clone(), url, weight));
        }
        if let Target::Upstream(new) = draft.upstream(block.arg(0), servers) {
            made.push((block.arg(0).to_owned(), new));
        }
    }
    made
}

pub(crate) enum Path {
    /// The path, with `**` where what is below it belongs to it, and how NGINX has it.
    Of(String, Takes, Turn),
    Not(&'static str),
}

/// Reads `[= | ^~ | ~ | ~*] PATH`.
pub(crate) fn path(location: &Directive) -> Path {
    let (kind, path) = match &location.args[..] {
        [path] if path.starts_with('@') => {
            return Path::Not("a named location is reached from others only");
        }
        [path] => match path.strip_prefix('=') {
            Some(path) => ("=", path),
            None => ("", path.as_str()),
        },
        [kind, path] => (kind.as_str(), path.as_str()),
        _ => return Path::Not("its path is not understood"),
    };
    match kind {
        "" => prefix(path, Turn::Ranked),
        "^~" => prefix(path, Turn::Final),
        "=" => literal(path, Turn::Final),
        "~" => {
            // Anchored literals are no more than prefixes and paths.
            let Some(text) = path.strip_prefix('^') else {
                return Path::Not(EXPRESSION);
            };
            let (text, whole) = text
                .strip_suffix('$')
                .map_or((text, false), |text| (text, true));
            let escaped = [("\\.", "."), ("\\/", "/"), ("\\-", "-")];
            let replaced = |text: String, (from, to): (&str, &str)| text.replace(from, to);
            let bare = escaped.into_iter().fold(text.to_owned(), replaced);
            let others = escaped.map(|(escape, _)| (escape, ""));
            let others = others.into_iter().fold(text.to_owned(), replaced);
            if others.contains(|c: char| !c.is_ascii_alphanumeric() && !"/-_~".contains(c)) {
                return Path::Not(EXPRESSION);
            }
            if whole {
                literal(&bare, Turn::Expression)
            } else {
                prefix(&bare, Turn::Expression)
            }
        }
        _ => Path::Not(EXPRESSION),
    }
}

const EXPRESSION: &str = "a route has no regular expressions";

fn is_path(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['{', '}', '*'])
}

fn literal(path: &str, turn: Turn) -> Path {
    match is_path(path) {
        true => Path::Of(path.to_owned(), Takes::Exact(path.to_owned()), turn),
        false => Path::Not(NO_PATH),
    }
}

fn prefix(path: &str, turn: Turn) -> Path {
    let pattern = format!("{}/**", path.strip_suffix('/').unwrap_or(path));
    match is_path(path) {
        true => Path::Of(pattern, Takes::Prefix(path.to_owned()), turn),
        false => Path::Not(NO_PATH),
    }
}

const NO_PATH: &str = "its path cannot be that of a route";

/// What a block does with its requests, and the URI that its `proxy_pass` has.
pub(crate) fn target<'d>(block: &'d Directive, upstreams: &Upstreams) -> (Target, &'d str) {
    if let Some(answer) = block.all("return").next() {
        return (returned(answer), "");
    }
    let url = block
        .all("proxy_pass")
        .next()
        .map_or("", |pass| pass.arg(0));
    if let Some(path) = url.strip_prefix("http://unix:")
        && !path.contains('$')
    {
        return (Target::Upstream(format!("unix:{path}")), "");
    }
    let Some((scheme, rest)) = url.split_once("://").filter(|_| !url.contains('$')) else {
        return (Target::Unknown, "");
    };
    let (host, uri) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let target = match upstreams.iter().find(|(name, _)| name == host) {
        Some((_, name)) if scheme == "http" => Target::Upstream(name.clone()),
        Some(_) => Target::Unknown,
        None => Target::Upstream(format!("{scheme}://{host}")),
    };
    (target, uri)
}

/// `return CODE [TEXT|URL]`, which NGINX answers before it asks any limit.
fn returned(answer: &Directive) -> Target {
    let (status, rest) = match answer.arg(0).parse::<u64>() {
        Ok(status) => (status, answer.arg(1)),
        Err(_) => (302, answer.arg(0)),
    };
    let filled = rest
        .replace("$scheme://$host", "https://{host}")
        .replace("$request_uri", "{path}{query}")
        .replace("$host", "{host}")
        .replace("$uri", "{path}");
    if filled.contains('$') {
        return Target::Unknown;
    }
    match status {
        301 | 302 | 303 | 307 | 308 => Target::Redirect(status, filled),
        200..600 => Target::Respond(status, rest.to_owned()),
        // 444 closes the connection; there is no such thing here.
        _ => Target::Respond(403, String::new()),
    }
}
