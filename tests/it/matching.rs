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
    let admitted = ["/v1//login", "/v1/%6Cogin", "/x/../v1/./login;a=1", "/v1/login/?next=/"];
    for path in admitted {
        assert_eq!(gateway.get(path).status, 200, "{path}");
    }
    for path in ["/v1/login", "/%76%31/login", "/v1/log%69n;x/", "//v1/%2e/login"] {
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
    let seen: Vec<String> = upstream.seen().iter().map(|request| request.line().to_owned()).collect();
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
    assert_eq!(gateway.request("OPTIONS", "/v1", &[origin]).status, 404);
    assert_eq!(gateway.request("POST", "/v1", &[origin]).status, 401);
    let keyed = [origin, ("x-api-key", "k")];
    assert_eq!(gateway.request("POST", "/v1", &keyed).status, 200, "the preflights cost nothing");
    assert_eq!(gateway.request("POST", "/v1", &keyed).status, 429);
    assert_eq!(gateway.request("POST", "/v1", &[("x-api-key", "a"), ("x-api-key", "b")]).status, 400);
}

#[test]
fn what_no_browser_would_ask_is_charged_as_any_request() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n\
         [limits.all]\nrate = \"1/hour\"\nburst = 1\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"all\"]\n",
        upstream.url()
    ));
    let asking = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
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
    assert_eq!(gateway.request("OPTIONS", "/v1", &asking).status, 200, "a question that is one passes");
}
