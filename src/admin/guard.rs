//! Protects the admin listener from web pages in an operator's browser. It does not authenticate:
//! the admin listener has no passwords and must be reachable by authorised people only.

use std::net::IpAddr;

use http::{Request, StatusCode, header};

/// Checks whether a request is allowed.
///
/// # Errors
/// The status and text of the refusal: a host name that is not allowed (a page whose name was
/// rebound to this address), or a change requested by a web page.
pub(super) fn check_origin<B>(
    request: &Request<B>,
    hosts: &[String],
) -> Result<(), (StatusCode, String)> {
    let headers = request.headers();
    let mut fields = headers.get_all(header::HOST).iter();
    let host = match (fields.next().map(|field| field.to_str()), fields.next()) {
        (Some(Ok(host)), None) => host,
        _ => {
            return Err((
                StatusCode::BAD_REQUEST,
                "one Host field is needed\n".to_owned(),
            ));
        }
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
                "the admin listener is not asked by the name `{}`: use its address, or list the name in admin.hosts\n",
                name.escape_default()
            );
            return Err((StatusCode::MISDIRECTED_REQUEST, words));
        }
    }
    if !request.method().is_safe()
        && (headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site"))
    {
        return Err((
            StatusCode::FORBIDDEN,
            "changes are not made from a browser\n".to_owned(),
        ));
    }
    Ok(())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of a bracketed address are inside the brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}
