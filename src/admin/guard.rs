//! Protects the admin listener from web pages in an operator's browser. It does not authenticate:
//! reads have no passwords, so the listener must be reachable by authorised people only.

use std::net::IpAddr;

use http::{HeaderMap, Request, StatusCode, header};

use super::api::Problem;

/// Checks whether a request is allowed.
/// It is refused for a host name that is not allowed (a page whose name was
/// rebound to this address), or a change requested by a web page other than this listener's own.
pub(super) fn check_origin<B>(request: &Request<B>, hosts: &[String]) -> Result<(), Problem> {
    let headers = request.headers();
    let Some(host) = only(headers, "host") else {
        return Err(Problem::bad_request("one Host field is needed"));
    };
    // An absolute target names the host a second time.
    let target = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    for name in [Some(host), target].into_iter().flatten().map(without_port) {
        // A trailing dot makes a name fully qualified, but does not change it.
        let name = name.strip_suffix('.').unwrap_or(name);
        let known = name.eq_ignore_ascii_case("localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        if !known {
            let words = format!(
                "the admin listener is not asked by the name `{}`: use its address, or list the name in admin.hosts",
                name.escape_default()
            );
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, words));
        }
    }
    if !request.method().is_safe()
        && (headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site"))
        && !is_own_page(request, host)
    {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "from a browser, only the page of this listener makes changes, with the token of an operator",
        ));
    }
    Ok(())
}

/// Whether a request for a change comes from the page that this listener serves, by the name `host`:
/// its origin is that name and port, which was checked before, and it shows a token. A browser sends
/// no token on its own, and a page of another origin cannot send this header without asking first,
/// which is never allowed. So the user of a Unix socket, or of a proxy in front of it, is not enough.
fn is_own_page<B>(request: &Request<B>, host: &str) -> bool {
    let headers = request.headers();
    request.uri().path().starts_with("/api/v1/")
        && is_origin(headers, host)
        && (!headers.contains_key("sec-fetch-site")
            || only(headers, "sec-fetch-site") == Some("same-origin"))
        && headers.contains_key(header::AUTHORIZATION)
}

/// Whether a browser sends a request for the page of another site. Browsers from before 2023 send
/// `Origin` alone, and only with some requests.
pub(super) fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    let host = only(headers, "host").unwrap_or_default();
    site.is_some_and(|site| site != "same-origin" && site != "none")
        || headers.contains_key(header::ORIGIN) && !is_origin(headers, host)
}

fn is_origin(headers: &HeaderMap, host: &str) -> bool {
    let origin = only(headers, "origin").and_then(|origin| {
        let http = origin.strip_prefix("http://");
        http.or_else(|| origin.strip_prefix("https://"))
    });
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    first.filter(|_| second.is_none())?.to_str().ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of a bracketed address are inside the brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request for a change with these headers is allowed.
    fn allows(path: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        check_origin(&request, &["gate.internal".to_owned()]).is_ok()
    }

    const RESET: &str = "/api/v1/keys/tenant/k/reset";
    const HOST: (&str, &str) = ("host", "gate.internal:9180");
    const OWN: (&str, &str) = ("origin", "http://gate.internal:9180");
    const TOKEN: (&str, &str) = ("authorization", "Bearer t");
    const SAME: (&str, &str) = ("sec-fetch-site", "same-origin");

    #[test]
    fn guard_changes_of_the_listeners_own_page_need_its_origin_and_a_token() {
        assert!(allows(RESET, &[HOST, OWN, TOKEN, SAME]));
        assert!(allows(RESET, &[HOST, OWN, TOKEN]));
        let tls = ("origin", "https://Gate.internal:9180");
        assert!(allows(RESET, &[HOST, tls, TOKEN, SAME]));
        assert!(!allows(RESET, &[HOST, OWN, SAME]), "no token");
        assert!(!allows(RESET, &[HOST, TOKEN, SAME]), "no origin");
        assert!(!allows("/-/reload", &[HOST, OWN, TOKEN, SAME]));
        assert!(allows(RESET, &[HOST]), "no browser");
        for origin in [
            "http://gate.internal",
            "http://gate.internal:9181",
            "http://evil.example",
            "http://gate.internal:9180.evil.example",
            "http://evil.example#gate.internal:9180",
            "http://127.0.0.1:9180",
            "gate.internal:9180",
            "null",
            "",
        ] {
            let headers = [HOST, ("origin", origin), TOKEN, SAME];
            assert!(!allows(RESET, &headers), "{origin}");
        }
        assert!(
            !allows(RESET, &[HOST, OWN, OWN, TOKEN, SAME]),
            "two origins"
        );
        for site in ["cross-site", "same-site", "none"] {
            let headers = [HOST, OWN, TOKEN, ("sec-fetch-site", site)];
            assert!(!allows(RESET, &headers), "{site}");
        }
        // A name that was rebound to this address has an origin of its own.
        let rebound = [
            ("host", "evil.example"),
            ("origin", "http://evil.example"),
            TOKEN,
            SAME,
        ];
        assert!(!allows(RESET, &rebound));
    }
}
