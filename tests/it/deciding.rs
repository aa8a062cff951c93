//! The listeners for decisions (`[decide]`): which peers may ask, and what a reload changes.

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway};
use crate::neighbours::FORGED;

/// A gateway that decides for these networks; its one limit admits two requests.
fn config(trusted: &str) -> String {
    format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\ntrusted = {trusted}\n\
         [limits.per_caller]\nrate = \"2/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\"]\n"
    )
}

fn get(gateway: &Gateway, path: &str) -> (u16, String) {
    let answer = Connection::open(gateway.deciding()).request("GET", path, &[]);
    let kind = answer.json()["type"].as_str().map(str::to_owned);
    (answer.status, kind.unwrap_or_default())
}

const UNTRUSTED: &str = "urn:problem-type:tollgate:untrusted-peer";

#[test]
fn deciding_peer_outside_the_trusted_networks_gets_403() {
    let gateway = Gateway::start(&config("[\"192.0.2.0/24\"]"));
    for path in ["/check", "/v1/decide", "/"] {
        assert_eq!(get(&gateway, path), (403, UNTRUSTED.to_owned()), "{path}");
    }
    // Clients are served as before.
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn deciding_forged_headers_of_an_untrusted_peer_get_403_and_charge_nothing() {
    let gateway = Gateway::start(&config("[\"192.0.2.0/24\"]"));
    let check = |headers: &[(&str, &str)]| {
        Connection::open(gateway.deciding())
            .request("GET", "/check", headers)
            .status
    };
    let trusted = ["x-forwarded-for", "x-real-ip", "x-client-ip"].map(|name| (name, "192.0.2.1"));
    for header in FORGED.into_iter().chain(trusted) {
        assert_eq!(check(&[header]), 403, "{header:?}");
    }
    // A whole statement, as a proxy writes it.
    let stated = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    assert_eq!([(); 3].map(|()| check(&stated)), [403; 3]);
    gateway.reload(&config("[\"127.0.0.1\"]")).expect("valid");
    assert_eq!([(); 3].map(|()| check(&stated)), [200, 200, 429]);
    assert_eq!([(); 3].map(|()| gateway.get("/").status), [200, 200, 429]);
}

#[test]
fn deciding_reload_replaces_the_trusted_networks_and_keeps_the_listener() {
    let gateway = Gateway::start(&config("[\"192.0.2.0/24\"]"));
    let address = gateway.deciding();
    assert_eq!(get(&gateway, "/none").0, 403);
    let words = gateway.reload(&config("[\"127.0.0.1\"]")).expect("valid");
    assert!(!words.contains("restart"), "{words}");
    assert_eq!(get(&gateway, "/none").0, 404);
    // Another listener, or none, waits for a restart.
    let elsewhere = config("[\"192.0.2.0/24\"]").replace("127.0.0.1:0", "127.0.0.1:1");
    let without = elsewhere.split_once("[limits").expect("limits").1;
    for changed in [elsewhere.clone(), format!("[limits{without}")] {
        let words = gateway.reload(&changed).expect("valid");
        assert!(words.contains("decide.listen"), "{words}");
    }
    assert_eq!(gateway.deciding(), address);
    assert_eq!(get(&gateway, "/none").0, 403);
}

#[test]
fn deciding_route_that_forbids_or_redirects_does_so_for_a_proxy_too() {
    let gateway = Gateway::start(
        "[decide]\nlisten = \"127.0.0.1:0\"\n\
         [[routes]]\nmatch = \"/admin/**\"\nrespond = { status = 403, body = \"no\" }\n\
         [[routes]]\nmatch = \"/old\"\nredirect = { to = \"https://new.example/\" }\n\
         [[routes]]\nmatch = \"/health\"\nrespond = { status = 200, body = \"ok\" }\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
    );
    let check = |path: &str| check_target(&gateway, ("x-forwarded-uri", path));
    assert_eq!(check("/anything").status, 200);
    let forbidden = check("/admin/users");
    assert_eq!((forbidden.status, forbidden.text()), (403, "no".to_owned()));
    let moved = check("/old");
    assert_eq!(moved.status, 308);
    assert_eq!(moved.header("location"), Some("https://new.example/"));
    // The proxy has its own response for these.
    assert_eq!(check("/health").status, 200);

    let decide = |together: bool| {
        let body = format!(
            "{{\"together\":{together},\"requests\":[{{\"method\":\"GET\",\"path\":\"/anything\",\"client\":\"192.0.2.7\"}},\
             {{\"method\":\"GET\",\"path\":\"/admin/users\",\"client\":\"192.0.2.7\"}}]}}"
        );
        let json = [("Content-Type", "application/json")];
        crate::permits::send(&gateway, "/v1/decide", &json, &body).json()
    };
    let each = decide(false);
    assert_eq!(each["decisions"][0]["allowed"], true, "{each}");
    assert_eq!(each["decisions"][1]["status"], 403, "{each}");
    assert_eq!(decide(true)["allowed"], false);
}

#[test]
fn deciding_target_that_begins_with_two_slashes_is_refused() {
    let gateway = Gateway::start(
        "[decide]\nlisten = \"127.0.0.1:0\"\n\
         [[routes]]\nmatch = \"/login\"\nrespond = { status = 403, body = \"no\" }\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
    );
    let decide = |path: &str| {
        let body = format!(
            "{{\"requests\":[{{\"method\":\"GET\",\"path\":\"{path}\",\"client\":\"192.0.2.7\"}}]}}"
        );
        let json = [("Content-Type", "application/json")];
        crate::permits::send(&gateway, "/v1/decide", &json, &body)
    };
    // Many servers take `a` for a host, and serve `/login`.
    for path in ["//a/login", "//a/login?b=c", "///login", "//"] {
        let url = format!("http://api.example{path}");
        for stated in [
            ("x-forwarded-uri", path),
            ("x-original-uri", path),
            ("x-original-url", url.as_str()),
        ] {
            let answer = check_target(&gateway, stated);
            assert_eq!(answer.status, 400, "{stated:?}");
            let told = answer.json()["detail"].to_string();
            assert!(told.contains("one slash"), "{told}");
        }
        let answer = decide(path);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text().contains("one slash"), "{}", answer.text());
    }
    // Elsewhere in the path they are one.
    assert_eq!(
        check_target(&gateway, ("x-forwarded-uri", "/b//c")).status,
        200
    );
    let decided = decide("/.//login").json();
    assert_eq!(decided["decisions"][0]["status"], 403, "{decided}");
}

/// Asks about a request whose target is `stated` by a header.
fn check_target(gateway: &Gateway, stated: (&str, &str)) -> Answer {
    let stated = [
        ("x-forwarded-method", "GET"),
        stated,
        ("x-forwarded-host", "api.example"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    Connection::open(gateway.deciding()).request("GET", "/check", &stated)
}

#[test]
fn deciding_body_that_another_program_has_costs_the_most_and_decides_about_no_route() {
    let limit = |name: &str, cost: &str| {
        format!(
            "[limits.{name}]\nrate = \"1000/hour\"\nburst = 1000\nper = \"everyone\"\ncost = {{ {cost}, max = 400 }}\n\
             [[routes]]\nmatch = \"/{name}\"\nupstream = \"builtin:echo\"\nlimits = [\"{name}\"]\n"
        )
    };
    let bytes = limit("bytes", "content_length = true, per = \"1KiB\"");
    let tokens = limit("tokens", "json = \"max_tokens\", default = 1");
    let gateway = Gateway::start(&format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\n{bytes}{tokens}\
         [[routes]]\nmatch = {{ path = \"/of_body\", body = {{ \"json:tool\" = \"a\" }} }}\nupstream = \"builtin:echo\"\n"
    ));
    let decide = |together: bool, path: &str, count: usize| {
        let one = format!("{{\"method\":\"GET\",\"path\":\"{path}\",\"client\":\"192.0.2.7\"}}");
        let requests = vec![one; count].join(",");
        let body = format!("{{\"together\":{together},\"requests\":[{requests}]}}");
        let json = [("Content-Type", "application/json")];
        crate::permits::send(&gateway, "/v1/decide", &json, &body).json()
    };
    for path in ["/bytes", "/tokens"] {
        let three = decide(true, path, 3);
        assert_eq!(three["allowed"], false, "{path}: {three}");
        let two = decide(true, path, 2);
        assert_eq!(two["allowed"], true, "{path}: {two}");
        let third = decide(false, path, 1);
        assert_eq!(third["decisions"][0]["status"], 429, "{path}: {third}");
    }
    let alone = decide(false, "/of_body", 1);
    assert_eq!(alone["decisions"][0]["status"], 413, "{alone}");
    let together = decide(true, "/of_body", 1);
    assert_eq!(together["together"]["status"], 413, "{together}");
}
