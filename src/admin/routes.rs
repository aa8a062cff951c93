//! The resources of the admin listener and their methods: what is not listed here does not exist.
//!
//! `docs/openapi.json` describes each of them; a test compares the two.

use http::Method;

/// The methods of the resource at `path`; `None`: there is no such resource.
pub(super) fn methods(path: &str) -> Option<&'static [&'static str]> {
    let (_, methods) = RESOURCES
        .iter()
        .find(|(template, _)| matches(template, path))?;
    Some(methods)
}

/// Whether one of `methods` is `method`; HEAD is GET without the body.
pub(super) fn allows(methods: &[&str], method: &Method) -> bool {
    let method = if *method == Method::HEAD {
        Method::GET
    } else {
        method.clone()
    };
    methods.contains(&method.as_str())
}

/// The value of `Allow`.
pub(super) fn allow(methods: &[&str]) -> String {
    methods.join(", ").replace("GET", "GET, HEAD")
}

/// Whether `path` is one of `template`: `{name}` is a segment that is not empty, `{name*}` any
/// number of them.
fn matches(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(any), one) if any.ends_with("*}") => {
                let after: Vec<&str> = wanted.collect();
                let rest: Vec<&str> = one.into_iter().chain(given).collect();
                return rest.ends_with(&after);
            }
            (Some(name), Some(segment)) if name.starts_with('{') && !segment.is_empty() => {}
            (Some(name), Some(segment)) if name == segment => {}
            _ => return false,
        }
    }
}

/// All resources. The first one that matches a path is its resource.
pub const RESOURCES: &[(&str, &[&str])] = &[
    ("/", &["GET"]),
    ("/livez", &["GET"]),
    ("/readyz", &["GET"]),
    ("/metrics", &["GET"]),
    ("/-/reload", &["POST"]),
    ("/api/v1/status", &["GET"]),
    ("/api/v1/openapi.json", &["GET"]),
    ("/api/v1/log-level", &["GET", "PUT"]),
    ("/api/v1/limits", &["GET"]),
    ("/api/v1/limits/{name}/keys", &["GET"]),
    ("/api/v1/keys/{identity}/{value*}/reset", &["POST"]),
    (
        "/api/v1/keys/{identity}/{value*}/override",
        &["PUT", "DELETE"],
    ),
    ("/api/v1/overrides", &["GET"]),
    ("/api/v1/keys/{identity}/{value*}", &["GET"]),
    ("/api/v1/keys/{identity}", &["GET"]),
    ("/api/v1/buckets/{limit}/{key}", &["GET"]),
    ("/api/v1/decisions/{id}", &["GET"]),
    ("/api/v1/audit", &["GET"]),
    ("/api/v1/events", &["GET"]),
    ("/api/v1/figures", &["GET"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_paths_have_the_methods_of_their_resource() {
        for (path, expected) in [
            ("/api/v1/limits", Some("GET, HEAD")),
            ("/api/v1/limits/", None),
            ("/api/v1/limits/search/keys", Some("GET, HEAD")),
            ("/api/v1/limits//keys", None),
            ("/api/v1/keys/tenant/acme", Some("GET, HEAD")),
            ("/api/v1/keys/tenant/acme/eu", Some("GET, HEAD")),
            ("/api/v1/keys/everyone", Some("GET, HEAD")),
            ("/api/v1/keys/tenant/acme/eu/reset", Some("POST")),
            ("/api/v1/keys/everyone/reset", Some("POST")),
            ("/api/v1/keys/tenant/acme/override", Some("PUT, DELETE")),
            ("/api/v1/log-level", Some("GET, HEAD, PUT")),
            ("/api/v2/limits", None),
            ("/-/reload", Some("POST")),
            ("", None),
        ] {
            let allowed = methods(path).map(allow);
            assert_eq!(allowed.as_deref(), expected, "{path}");
        }
    }
}
