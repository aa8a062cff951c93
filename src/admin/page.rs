//! The page at `/`: who is refused, who is close, what is exact, and what can be done.
//!
//! One document without outside requests. It executes only its own script (by hash), makes no markup
//! from data, and cannot be framed. Its changes carry an operator's token, which it keeps in memory.

use std::sync::LazyLock;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use super::api::typed;

struct Page {
    text: String,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let style = include_str!("page/style.css");
    let script = [
        "\"use strict\";\n",
        include_str!("page/draw.js"),
        include_str!("page/state.js"),
        include_str!("page/panels.js"),
        include_str!("page/act.js"),
    ]
    .concat();
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
        hash(&script),
        hash(style)
    );
    Page {
        text: include_str!("page/index.html")
            .replacen("{style}", style, 1)
            .replacen("{script}", &script, 1),
        policy: HeaderValue::try_from(policy).expect("Base64 is ASCII"),
    }
});

/// Whether a request at `/` prefers the page to the list of resources in text.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    accepts
        .filter_map(|accept| accept.to_str().ok())
        .any(|accept| accept.contains("text/html"))
}

pub(super) fn response() -> Response {
    let page = &*PAGE;
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", &*page.text);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, page.policy.clone());
    for (name, value) in [
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_asks_for_nothing_outside_and_makes_no_markup_from_data() {
        let text = &PAGE.text;
        assert!(text.contains("<style>:root") && text.contains("\"use strict\""));
        assert!(!text.contains("{style}") && !text.contains("{script}"));
        let own = "http://www.w3.org/2000/svg";
        let outside = text.replace(own, "");
        for forbidden in [
            "http://",
            "https://",
            "src=\"",
            "@import",
            "url(",
            "innerHTML",
            "eval(",
        ] {
            assert!(!outside.contains(forbidden), "{forbidden}");
        }
        // A script that contained its own end tag would end there.
        assert_eq!(text.matches("</script").count(), 1);
        assert_eq!(text.matches("</style").count(), 1);
    }
}
