//! Redirects that keep what was asked for, and headers on responses of the gateway's own.

use crate::harness::Gateway;

fn redirecting(to: &str) -> Gateway {
    Gateway::start(&format!(
        "[[routes]]\nmatch = \"/**\"\nredirect = \"{to}\"\n"
    ))
}

fn location(gateway: &Gateway, path: &str) -> String {
    let answer = gateway.request("GET", path, &[("host", "Shop.example:8080")]);
    assert_eq!(answer.status, 308, "{answer:?}");
    answer.header("location").expect("a Location").to_owned()
}

#[test]
fn redirect_path_and_query_are_kept_as_they_were_asked_for() {
    for to in [
        "https://{host}{path}{query}",
        "https://{host}{path}?{query}",
    ] {
        let gateway = redirecting(to);
        assert_eq!(
            location(&gateway, "/a%20b/c,d?x=1&y=%2F"),
            "https://shop.example/a%20b/c,d?x=1&y=%2F",
            "{to}"
        );
        assert_eq!(location(&gateway, "/"), "https://shop.example/", "{to}");
        assert_eq!(location(&gateway, "/a?"), "https://shop.example/a", "{to}");
    }
    let more = redirecting("https://new.example/old{path}?from=here&{query}");
    assert_eq!(
        location(&more, "/a?b=c"),
        "https://new.example/old/a?from=here&b=c"
    );
    assert_eq!(location(&more, "/a"), "https://new.example/old/a?from=here");
    let joined = redirecting("https://new.example{path}?from=here{query}");
    assert_eq!(
        location(&joined, "/a?b=c"),
        "https://new.example/a?from=here&b=c"
    );
}

#[test]
fn redirect_cannot_be_made_to_lead_elsewhere() {
    let bare = redirecting("{path}");
    for path in [
        "//evil.example/x",
        "///evil.example/x",
        "/%2F/evil.example/x",
    ] {
        let answer = bare.request("GET", path, &[]);
        if answer.status == 308 {
            let location = answer.header("location").expect("a Location");
            assert!(
                location.starts_with('/') && !location.starts_with("//"),
                "{path} leads to {location}"
            );
        }
    }
    let gateway = redirecting("https://shop.example{path}?{query}");
    assert_eq!(
        location(&gateway, "/@evil.example?b=%0d%0aset-cookie:x"),
        "https://shop.example/@evil.example?b=%0d%0aset-cookie:x"
    );
}

const ROUTED: &str = "[limits.one]\nrate = \"1/hour\"\nburst = 1\nper = \"address\"\n\
     [identities.key]\nkey = \"header:x-key\"\nwhen_missing = \"refuse\"\n\
     [limits.keyed]\nrate = \"9/hour\"\nper = \"key\"\n";

#[test]
fn response_headers_are_on_every_response_of_a_route() {
    let edits = "response_headers = { set = { strict-transport-security = \"max-age=9\", x-route = \"{route}\", \
                 cache-control = \"public, max-age=60\", content-type = \"text/html\" }, remove = [\"x-none\", \"retry-after\"] }\n";
    let gateway = Gateway::start(&format!(
        "{ROUTED}[[routes]]\nmatch = \"/limited\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n{edits}\
         [[routes]]\nmatch = \"/keyed\"\nupstream = \"builtin:echo\"\nlimits = [\"keyed\"]\n{edits}\
         [[routes]]\nmatch = \"/gone\"\nredirect = \"/new\"\n{edits}\
         [[routes]]\nmatch = \"/fixed\"\nrespond = {{ status = 404, body = \"none\" }}\n{edits}\
         [[routes]]\nmatch = \"/dead\"\nupstream = \"http://127.0.0.1:1\"\n{edits}"
    ));
    for (path, status) in [
        ("/limited", 200),
        ("/limited", 429),
        ("/keyed", 401),
        ("/gone", 308),
        ("/fixed", 404),
        ("/dead", 502),
    ] {
        let answer = gateway.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(
            answer.header("strict-transport-security"),
            Some("max-age=9"),
            "{path} {status}"
        );
        assert_eq!(answer.header("x-route"), Some(path), "{path} {status}");
        if matches!(status, 429 | 401 | 502) {
            // What a refusal says of itself no route changes: a cache must not keep it, and a client is told when to come.
            assert_eq!(
                answer.header("cache-control"),
                Some("no-store"),
                "{path} {status}"
            );
            assert_eq!(
                answer.header("content-type"),
                Some("application/problem+json"),
                "{path} {status}"
            );
        }
        assert_eq!(
            answer.header("retry-after").is_some(),
            status == 429,
            "{path} {status}"
        );
    }
    let unrouted = gateway.get("/nowhere");
    assert_eq!(
        (
            unrouted.status,
            unrouted.header("strict-transport-security")
        ),
        (404, None),
        "no route, no headers of one"
    );
}
