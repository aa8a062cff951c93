//! Matching over HTTP: no spelling of a path slips past a limit, and a preflight is let through to be answered.

use crate::harness::{Gateway, Upstream};

#[test]
fn every_spelling_of_a_path_draws_from_one_bucket_and_is_forwarded_as_it_came() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.login]\nrate = \"4/hour\"\nburst = 4\nper = \"address\"\n\
         [[routes]]\nmatch = \"/v1/login\"\nupstream = \"{url}\"\nlimits = [\"login\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n",
        url = upstream.url()
    ));
    let admitted = [
        "/v1//login",
        "/v1/%6Cogin",
        "/x/../v1/./login;a=1",
        "/v1/login/?next=/",
    ];
    for path in admitted {
        assert_eq!(gateway.get(path).status, 200, "{path}");
    }
    for path in [
        "/v1/login",
        "/%76%31/login",
        "/v1/log%69n;x/",
        "//v1/%2e/login",
    ] {
        assert_eq!(gateway.get(path).status, 429, "{path}");
    }
    for path in [
        "/x/..%3bok/v1/login",
        "/v1/login%2f..",
        "/v1%5Clogin",
        "/v1/login%00",
        "/../v1/login",
        "/v1/%c0%aflogin",
        "/v1/login%",
    ] {
        assert_eq!(gateway.get(path).status, 400, "{path}");
    }
    let seen: Vec<String> = upstream
        .seen()
        .iter()
        .map(|request| request.line().to_owned())
        .collect();
    assert_eq!(seen, admitted.map(|path| format!("GET {path} HTTP/1.1")));
}

#[test]
fn a_preflight_needs_no_key_and_finds_the_route_it_asks_about() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
         [limits.post]\nrate = \"1/hour\"\nburst = 1\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"POST /v1\"\nupstream = \"{}\"\nlimits = [\"post\"]\n",
        upstream.url()
    ));
    let origin = ("origin", "https://app.example");
    let asking = [origin, ("access-control-request-method", "POST")];
    for _ in 0..3 {
        assert_eq!(gateway.request("OPTIONS", "/v1", &asking).status, 200);
    }
    let options = gateway.request("OPTIONS", "/v1", &[origin]);
    assert_eq!(
        (options.status, options.header("allow")),
        (405, Some("POST")),
        "it is no preflight"
    );
    let other = [origin, ("access-control-request-method", "DELETE")];
    assert_eq!(
        gateway.request("OPTIONS", "/v1", &other).status,
        405,
        "what it asks about is not served"
    );
    assert_eq!(gateway.request("POST", "/v1", &[origin]).status, 401);
    let keyed = [origin, ("x-api-key", "k")];
    assert_eq!(
        gateway.request("POST", "/v1", &keyed).status,
        200,
        "the preflights cost nothing"
    );
    assert_eq!(gateway.request("POST", "/v1", &keyed).status, 429);
    assert_eq!(
        gateway
            .request("POST", "/v1", &[("x-api-key", "a"), ("x-api-key", "b")])
            .status,
        400
    );
}

#[test]
fn preflight_no_browser_would_send_is_charged() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n\
         [limits.all]\nrate = \"1/hour\"\nburst = 1\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"all\"]\n",
        upstream.url()
    ));
    let asking = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ];
    assert_eq!(gateway.request("OPTIONS", "/v1", &asking).status, 200);
    let with_session = [asking[0], asking[1], ("cookie", "sid=1")];
    assert_eq!(gateway.request("OPTIONS", "/v1", &with_session).status, 200);
    assert_eq!(gateway.request("OPTIONS", "/v1", &with_session).status, 429);
    let mut connection = gateway.connect();
    connection.send(
        "OPTIONS /v1 HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n\
         Content-Length: 2\r\n\r\nhi",
    );
    assert_eq!(connection.answer("OPTIONS").status, 429);
    assert_eq!(
        gateway.request("OPTIONS", "/v1", &asking).status,
        200,
        "a question that is one passes"
    );
}

#[test]
fn route_wrong_method_is_405_with_the_methods_there_are() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[identities.who]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
         [limits.one]\nrate = \"1/hour\"\nburst = 1\nper = \"who\"\n\
         [[routes]]\nmatch = \"GET /items/{{id}}\"\nupstream = \"{url}\"\nlimits = [\"one\"]\n\
         [[routes]]\nmatch = \"PUT|DELETE /items/{{id}}\"\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = \"PATCH /items/**\"\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = \"POST a.example/items/7\"\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = {{ methods = \"LOCK\", path = \"/items/{{id}}\", headers = {{ x-dav = \"1\" }} }}\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = \"POST /open\"\nupstream = \"{url}\"\n[[routes]]\nmatch = \"/open\"\nupstream = \"{url}\"\n"
    ));
    let asked = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let answer = gateway.request(method, path, headers);
        (answer.status, answer.header("allow").map(str::to_owned))
    };
    let all = Some("DELETE, GET, HEAD, PATCH, PUT".to_owned());
    assert_eq!(
        asked("POST", "/items/7", &[]),
        (405, all.clone()),
        "no client is asked for its identity"
    );
    assert_eq!(asked("OPTIONS", "/items/7", &[]), (405, all.clone()));
    assert_eq!(
        asked("LOCK", "/items/7", &[]),
        (405, all),
        "a header is missing for that one"
    );
    let dav = Some("DELETE, GET, HEAD, LOCK, PATCH, PUT".to_owned());
    assert_eq!(asked("POST", "/items/7", &[("x-dav", "1")]), (405, dav));
    assert_eq!(
        asked("GET", "/items/7/parts", &[]),
        (405, Some("PATCH".to_owned()))
    );
    assert_eq!(
        asked("POST", "/items/7", &[("Host", "a.example")]).0,
        200,
        "another host's route"
    );
    assert_eq!(
        asked("HEAD", "/items/7", &[]),
        (401, None),
        "GET answers HEAD"
    );
    assert_eq!(asked("POST", "/nowhere", &[]), (404, None));
    assert_eq!(
        asked("DELETE", "/open", &[]).0,
        200,
        "a route for all methods takes it"
    );
    let answer = gateway.request("POST", "/items/7", &[]);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let keyed = [("x-api-key", "k")];
    assert_eq!(asked("POST", "/items/7", &keyed).0, 405);
    assert_eq!(
        asked("GET", "/items/7", &keyed).0,
        200,
        "it was charged nothing"
    );
}
