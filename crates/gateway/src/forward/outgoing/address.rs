//! Points a request at a server: its target, its Host and its path.

use bytes::BytesMut;
use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Uri};

use crate::forward::ForwardError;
use tollgate_limit::hex;
use tollgate_policy::routes::Route;
use tollgate_policy::routes::path::{normalise_with_slashes, with_one_slash};
use tollgate_policy::upstream::{HostPolicy, Server};

/// Points a prepared request at `server`: sets its Host or `:authority` and its base path.
pub(in crate::forward) fn address<B>(
    request: &mut Request<B>,
    host: &HostPolicy,
    server: &Server,
    http2: bool,
) -> Result<(), ForwardError> {
    let uri = std::mem::take(request.uri_mut());
    *request.uri_mut() = addressed(uri, request.headers_mut(), host, server, http2)?;
    Ok(())
}

fn addressed(
    uri: Uri,
    headers: &mut HeaderMap,
    host: &HostPolicy,
    server: &Server,
    http2: bool,
) -> Result<Uri, ForwardError> {
    let authority = match host {
        HostPolicy::Keep => None,
        HostPolicy::Upstream => Some(&server.authority),
        HostPolicy::Fixed(authority) => Some(authority),
    };
    let path = if server.base_path.is_empty() {
        uri.into_parts().path_and_query
    } else {
        let mut text = BytesMut::with_capacity(server.base_path.len() + uri.path().len() + 32);
        text.extend_from_slice(server.base_path.as_bytes());
        text.extend_from_slice(
            uri.path_and_query()
                .map_or("/", PathAndQuery::as_str)
                .as_bytes(),
        );
        Some(PathAndQuery::from_maybe_shared(text.freeze()).map_err(|_| ForwardError::Rewrite)?)
    };
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !http2 {
        if let Some(authority) =
            authority.or_else(|| (!headers.contains_key(HOST)).then_some(&server.authority))
        {
            let value =
                HeaderValue::from_str(authority.as_str()).map_err(|_| ForwardError::Rewrite)?;
            headers.insert(HOST, value);
        }
        return Ok(Uri::from(path));
    }
    let asked = headers.remove(HOST);
    let authority = match (authority, asked) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => {
            Authority::try_from(host.as_bytes()).map_err(|_| ForwardError::Rewrite)?
        }
        (None, None) => server.authority.clone(),
    };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if server.tls.is_some() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    parts.authority = Some(authority);
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| ForwardError::Rewrite)
}

/// The target with the route's prefix replaced, and with one leading slash; all other bytes are unchanged.
pub(super) fn rewrite(uri: Uri, route: &Route) -> Result<Uri, ForwardError> {
    let strip = prefix(route.strip_prefix.as_deref());
    let add = prefix(route.add_prefix.as_deref());
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let is_edited = !(strip.is_empty() && add.is_empty());
    if whole == "*" || whole.starts_with("*?") || !is_edited && !whole.starts_with("//") {
        return Ok(uri);
    }
    let end = whole.find('?').unwrap_or(whole.len());
    let (path, query) = whole.split_at(end);
    let rest = strip_encoded(path, strip).ok_or(ForwardError::Rewrite)?;
    // `/v1/../v1/a` is `/v1/a` to the router; without its first segment it would leave the
    // directory it is mapped to. The router has refused all other faults in the whole path; a slash
    // that it keeps is no fault.
    if !strip.is_empty() && normalise_with_slashes(rest).is_err() {
        return Err(ForwardError::Rewrite);
    }
    let rest = if add.is_empty() {
        with_one_slash(rest)
    } else {
        rest
    };
    let mut text = BytesMut::with_capacity(add.len() + whole.len() + 1);
    text.extend_from_slice(add.as_bytes());
    if !rest.starts_with('/') {
        text.extend_from_slice(b"/");
    }
    text.extend_from_slice(rest.as_bytes());
    text.extend_from_slice(query.as_bytes());
    PathAndQuery::from_maybe_shared(text.freeze())
        .map(Uri::from)
        .map_err(|_| ForwardError::Rewrite)
}

fn prefix(edit: Option<&str>) -> &str {
    edit.unwrap_or_default().trim_end_matches('/')
}

/// Returns the rest of the encoded `path` after `prefix`. The prefix is compared with the decoded
/// path, up to the end of a segment; slashes are collapsed as in the route matcher. `None` if the
/// path spells the prefix in a way that cannot be cut (dot segments within it).
fn strip_encoded<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let bytes = path.as_bytes();
    let mut at = 0;
    let mut previous = 0;
    for &wanted in prefix.as_bytes() {
        while previous == b'/' && bytes.get(at) == Some(&b'/') {
            at += 1;
        }
        let (byte, next) = decoded(bytes, at)?;
        // An encoded slash is a character, not the separator in the prefix.
        let encoded_slash = byte == b'/' && next > at + 1;
        if byte != wanted || encoded_slash {
            return None;
        }
        previous = byte;
        at = next;
    }
    match bytes.get(at) {
        None | Some(b'/') => path.get(at..),
        Some(_) => None,
    }
}

fn decoded(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let byte = *bytes.get(at)?;
    if byte != b'%' {
        return Some((byte, at + 1));
    }
    let byte = hex::byte(*bytes.get(at + 1)?, *bytes.get(at + 2)?)?;
    Some((byte, at + 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::tests::route;

    #[test]
    fn a_prefix_is_cut_as_it_decodes_and_the_rest_stays_as_it_is() {
        assert_eq!(strip_encoded("/v1/a%2Fb//c", "/v1"), Some("/a%2Fb//c"));
        assert_eq!(strip_encoded("/%761/a", "/v1"), Some("/a"));
        assert_eq!(strip_encoded("//v1/a", "/v1"), Some("/a"));
        assert_eq!(strip_encoded("/v1", "/v1"), Some(""));
        assert_eq!(strip_encoded("/v12", "/v1"), None);
        assert_eq!(strip_encoded("/a%2Fb/c", "/a/b"), None);
        assert_eq!(strip_encoded("/x/../v1/a", "/v1"), None);
    }

    #[test]
    fn nothing_climbs_out_of_where_a_path_is_put() {
        let route = Route {
            strip_prefix: Some("/v1".into()),
            add_prefix: Some("/public".into()),
            ..route()
        };
        let sent = |path: &str| {
            rewrite(path.parse().expect("a path"), &route)
                .ok()
                .map(|uri| uri.to_string())
        };
        assert_eq!(
            sent("/v1/a/../b?c=%2F").as_deref(),
            Some("/public/a/../b?c=%2F")
        );
        assert_eq!(
            sent("/v1/a%2Fb/../c").as_deref(),
            Some("/public/a%2Fb/../c"),
            "one segment and its parent"
        );
        assert_eq!(sent("/v1").as_deref(), Some("/public/"));
        for climbing in [
            "/v1/../v1/x",
            "/v1/a%2Fb/../../v1/x",
            "/v1/%2e%2e/v1/x",
            "/v1/a%5cb/../../v1/x",
        ] {
            assert_eq!(sent(climbing), None, "{climbing}");
        }
    }

    #[test]
    fn forward_path_never_begins_with_two_slashes() {
        let plain = route();
        let stripped = Route {
            strip_prefix: Some("/strip".into()),
            ..route()
        };
        let root = Route {
            strip_prefix: Some("/".into()),
            ..route()
        };
        let added = Route {
            add_prefix: Some("/v1".into()),
            ..route()
        };
        for (route, path, expected) in [
            (&added, "//x/login", "/v1//x/login"),
            (&plain, "//x/login", "/x/login"),
            (&plain, "///x//login?a=//b", "/x//login?a=//b"),
            (&plain, "//", "/"),
            (&plain, "//?a", "/?a"),
            (&plain, "/x//login", "/x//login"),
            (&plain, "http://a.example//x/login", "/x/login"),
            (&plain, "*", "*"),
            (&root, "//x/login", "/x/login"),
            (&stripped, "/strip//evil/x", "/evil/x"),
            (&stripped, "//strip///evil/x?y", "/evil/x?y"),
            (&stripped, "/strip//", "/"),
            (&stripped, "/strip/a//b", "/a//b"),
        ] {
            let sent = rewrite(path.parse().expect("a path"), route).expect("a target");
            let sent = sent.path_and_query().map(PathAndQuery::as_str);
            assert_eq!(sent, Some(expected), "{path}");
        }
    }
}
