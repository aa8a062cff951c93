//! Who may ask: the admin listener has no passwords, it relies on being reachable by the right people only. A web page
//! in such a person's browser is not one of them.

use std::net::IpAddr;

use http::{HeaderMap, Method, StatusCode, header};

/// Whether a request may be answered.
///
/// # Errors
/// The status and the words it is refused with: a host name that nobody allowed (a page whose name was rebound to
/// this address), or a change asked for by a web page.
pub(super) fn check_origin(
    method: &Method,
    headers: &HeaderMap,
    hosts: &[String],
) -> Result<(), (StatusCode, String)> {
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
    let name = without_port(host);
    // A name that ends in a dot is the same name, written in full.
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
    if !method.is_safe()
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
