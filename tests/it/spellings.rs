//! One request in several spellings that servers read alike, or differently: none is limited otherwise than it is served.

use crate::harness::frames::{self, END_HEADERS, END_STREAM, Frames, HEADERS, frame};
use crate::harness::{Connection, Gateway, Upstream};

/// One request an hour for each caller by `key`; who names none is refused.
fn one_each(key: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "[identities.who]\nkey = \"{key}\"\nwhen_missing = \"refuse\"\n\
         [limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"who\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
        upstream.url()
    ))
}

#[test]
fn method_not_in_capitals_is_refused_over_both_versions() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.login]\nrate = \"1/hour\"\nburst = 1\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"POST /login\"\nupstream = \"{url}\"\nlimits = [\"login\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n",
        url = upstream.url()
    ));
    for method in [
        "post", "Post", "POSt", "get", "pOST", "x", "options", "connect",
    ] {
        let answer = gateway.request(method, "/login", &[]);
        assert_eq!(answer.status, 400, "{method}");
        assert_eq!(answer.header("connection"), Some("close"), "{method}");
        let mut http2 = Frames::open(gateway.address(), &[]);
        http2.ask(1, method, "/login", &[]);
        assert_eq!(http2.fate(1).status, Some(400), "{method} over HTTP/2");
    }
    assert_eq!(upstream.seen().len(), 0);
    for method in ["POST", "M-SEARCH", "VERSION-CONTROL", "PROPFIND", "X2_Y"] {
        assert_eq!(
            gateway.request(method, "/login", &[]).status,
            200,
            "{method}"
        );
    }
    assert_eq!(gateway.request("POST", "/login", &[]).status, 429);
}

#[test]
fn preflight_for_a_method_in_small_letters_or_with_an_override_is_charged() {
    let upstream = Upstream::hello();
    let asking = |method| {
        [
            ("origin", "https://a.example"),
            ("access-control-request-method", method),
        ]
    };
    for (method, more) in [
        ("post", ("x-other", "1")),
        ("POST", ("X_HTTP_Method_Override", "POST")),
        ("POST", ("x-http_method-override", "POST")),
        ("POST", ("X_HTTP_Method", "POST")),
        ("POST", ("x_method_override", "POST")),
        ("POST", ("X-HTTP-Method-Override", "POST")),
    ] {
        let gateway = Gateway::start(&format!(
            "[limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"everyone\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        ));
        let ask = || {
            gateway
                .request("OPTIONS", "/", &[&asking(method)[..], &[more]].concat())
                .status
        };
        assert_eq!([ask(), ask()], [200, 429], "{method} {more:?}");
    }
}

#[test]
fn cookie_key_has_one_bucket_however_servers_read_it() {
    let upstream = Upstream::hello();
    let gateway = one_each("cookie:s_id", &upstream);
    let ask = |cookie: &str| gateway.request("GET", "/", &[("cookie", cookie)]).status;
    assert_eq!(ask("s_id=abc"), 200);
    // Quotes, escapes of a URL: what any server may take for `abc` is one bucket.
    for same in [
        "s_id=\"abc\"",
        "s_id=%61bc",
        "a=b; s_id = abc ;c=d",
        "s_id=%22abc%22",
        "%73_id=abc",
        "s_id=abc; s_id=abc",
    ] {
        assert_eq!(ask(same), 429, "{same}");
    }
    // What servers read differently is refused.
    for odd in [
        "s_id=\"\\141bc\"",
        "s_id=\"a\\bc\"",
        "s_id=\"\\141bc\"; a=b",
        "s_id=abc; s_id=other",
        "s_id=; s_id=abc",
        "s_id=other; S_ID=abc",
        "S_id=abc",
        "s.id=abc",
        "s_id=other; s.id=abc",
        "s id=abc",
        "s_id=other; a=b s_id=abc",
        "s_id=other; a=b, s_id=abc",
        "s_id=other; a=b,s_id = abc",
        "a=\"; s_id=abc; b=\"",
        "s_id=\"abc; b=c\"",
        "s_id=abc\u{a0}",
    ] {
        assert_eq!(ask(odd), 400, "{odd}");
    }
    assert_eq!(ask("s_id=a+b"), 200);
    assert_eq!(
        [ask("s_id=a%20b"), ask("s_id=a b")],
        [429, 429],
        "a space to the servers that read forms so"
    );
    assert_eq!(
        ask("s_id=a%2fb; other=\"x\\y\"; ref=s_id=abc"),
        200,
        "other cookies may be what they are"
    );
    assert_eq!(gateway.get("/").status, 401);
    assert_eq!(upstream.seen().len(), 3);
}

#[test]
fn query_key_in_other_letters_is_refused() {
    let upstream = Upstream::hello();
    let gateway = one_each("query:api_key", &upstream);
    assert_eq!(gateway.get("/?api_key=a").status, 200);
    for odd in [
        "/?API_KEY=a",
        "/?api_key=b&Api_Key=a",
        "/?api.key=a",
        "/?api+key=a",
        "/?api%5bkey=a",
        "/?[api_key]=a",
        "/?api_key=b&%5Bapi_key%5D=a",
        "/??api_key=a",
    ] {
        assert_eq!(gateway.get(odd).status, 400, "{odd}");
    }
    assert_eq!(gateway.get("/?x_key=a").status, 401);
}

/// The status and what is left.
fn ask(connection: &mut Connection, headers: &[(&str, &str)]) -> (u16, u64) {
    let answer = connection.request("GET", "/", headers);
    let left = answer.left().unwrap_or_else(|| panic!("{answer:?}"));
    (answer.status, left)
}

fn priced(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "[limits.units]\nrate = \"1000/day\"\nper = \"everyone\"\n\
         cost = {{ header = \"x-cost\", default = 1, max = 10 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"units\"]\n",
        upstream.url()
    ))
}

#[test]
fn cost_header_that_cannot_be_read_costs_the_most() {
    let upstream = Upstream::hello();
    let gateway = priced(&upstream);
    let mut connection = gateway.connect();
    let mut left = 1000;
    for (value, cost) in [
        ("5", 5),
        (" 5 ", 5),
        ("005", 5),
        ("+5", 10),
        ("5e0", 10),
        ("5.0", 10),
        ("\"5\"", 10),
        ("-1", 10),
        ("0x1", 10),
        ("1_0", 10),
        ("1, 2", 10),
        ("", 10),
        ("many", 10),
        ("99999999999999999999999", 10),
    ] {
        left -= cost;
        assert_eq!(
            ask(&mut connection, &[("x-cost", value)]),
            (200, left),
            "{value:?}"
        );
    }
    assert_eq!(
        ask(&mut connection, &[("x-cost", "2"), ("x-cost", "x")]),
        (200, left - 10),
        "one of two"
    );
    assert_eq!(
        ask(&mut connection, &[]),
        (200, left - 11),
        "no header is the default"
    );
}

#[test]
fn field_that_looks_like_one_that_decides_is_not_passed_on() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.who]\nkey = \"header:x_org\"\nwhen_missing = \"use:address\"\n\
         [limits.units]\nrate = \"1000/day\"\nper = \"who\"\ncost = {{ header = \"x-cost\", default = 1, max = 10 }}\n\
         [limits.dear]\nrate = \"1000/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n\
         limits = [\"units\", {{ limit = \"dear\", cost = {{ header = \"x-price\", default = 1, max = 10 }} }}]\n\
         [[routes]]\nmatch = {{ path = \"/beta/**\", headers = {{ x-plan-name = \"beta\" }} }}\nupstream = \"{url}\"\n\
         [[routes]]\nmatch = \"/set/**\"\nupstream = \"{url}\"\n\
         request_headers = {{ set = {{ x-tier-name = \"free\" }}, remove = [\"x-internal-id\"] }}\n",
        url = upstream.url()
    ));
    let hidden = [
        "x_cost",
        "X_Cost",
        "x_price",
        "x_plan_name",
        "x-plan_name",
        "x_tier_name",
        "x_tier-name",
        "x_internal_id",
        "x-org",
        "x.cost",
        "x~plan!name",
    ];
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|name| (*name, "1")).collect();
    fields.extend([
        ("x_harmless_one", "1"),
        ("x-harmless-two", "2"),
        ("x_org", "acme"),
    ]);
    assert_eq!(gateway.request("GET", "/", &fields).status, 200);
    let seen = upstream.last();
    for name in hidden {
        assert_eq!(seen.header(name), None, "{name}: {}", seen.head);
    }
    for name in ["x_harmless_one", "x-harmless-two", "x_org"] {
        assert!(seen.header(name).is_some(), "{name}: {}", seen.head);
    }
}

/// A header that decides reaches the upstream, with the one value that it decided by.
#[test]
fn header_that_decides_cannot_be_listed_by_connection_or_stated_twice() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.calls]\nrate = \"100/day\"\nper = \"header:x-api-key\"\nwhen_missing = \"use:address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"calls\"]\n\
         [[routes]]\nmatch = {{ path = \"/**\", headers = {{ x-version = \"2\" }} }}\nupstream = \"{url}\"\n",
        url = upstream.url()
    ));
    for headers in [
        &[("connection", "close, X-Api-Key"), ("x-api-key", "a")][..],
        &[
            ("connection", "keep-alive"),
            ("connection", "x-version"),
            ("x-version", "2"),
        ],
        &[
            ("connection", "content-type"),
            ("content-type", "text/plain"),
        ],
        &[("x-version", "1"), ("x-version", "2")],
    ] {
        assert_eq!(
            gateway.request("GET", "/", headers).status,
            400,
            "{headers:?}"
        );
    }
    assert_eq!(upstream.seen().len(), 0);
    for headers in [
        &[("connection", "x-hop, close"), ("x-hop", "1")][..],
        &[("x-version", "2"), ("x-version", "2")],
        &[("accept", "a/b"), ("accept", "c/d")],
    ] {
        assert_eq!(
            gateway.request("GET", "/", headers).status,
            200,
            "{headers:?}"
        );
    }
}

#[test]
fn trailer_named_like_a_deciding_header_is_not_passed_on() {
    let upstream = Upstream::start(|_| crate::harness::Reply::ok("ok"));
    let gateway = Gateway::start(&format!(
        "[identities.who]\nkey = \"header:x-api-key\"\nwhen_missing = \"use:address\"\n\
         [limits.units]\nrate = \"1000/day\"\nper = \"who\"\ncost = {{ header = \"x-cost\", default = 1, max = 10 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"units\"]\n\
         request_headers = {{ set = {{ x-tier = \"free\" }} }}\n\
         [[routes]]\nmatch = {{ path = \"/beta/**\", headers = {{ x-plan = \"beta\" }} }}\nupstream = \"{url}\"\n",
        url = upstream.url()
    ));
    let trailers = [
        "x-cost",
        "X_Cost",
        "x-api-key",
        "x_api_key",
        "x-tier",
        "x_tier",
        "x-plan",
        "x_plan",
        "x_forwarded_for",
        "content_length",
        "x-http-method-override",
        "x_http_method_override",
    ];
    let mut sent = String::from(
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
    );
    trailers
        .iter()
        .for_each(|name| sent.push_str(&format!("{name}: 1\r\n")));
    sent.push_str("x-checksum: 1\r\nx_checksum_two: 2\r\n\r\n");
    let mut connection = gateway.connect();
    connection.send(sent);
    assert_eq!(connection.answer("POST").status, 200);
    let mut got = upstream.last().trailers;
    got.sort();
    assert_eq!(got, ["x-checksum: 1", "x_checksum_two: 2"]);
}

#[test]
fn expect_repeated_is_refused() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    ));
    for fields in [
        "Expect: 100-continue\r\nExpect: 100-continue",
        "Expect: 100-continue\r\nexpect: x",
        "Expect: \r\nExpect: ",
    ] {
        let mut connection = gateway.connect();
        connection.send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n{fields}\r\n\r\n"
        ));
        assert_eq!(connection.answer("POST").status, 400, "{fields}");
    }
    let mut http2 = Frames::open(gateway.address(), &[]);
    let twice = [("expect", "100-continue"), ("expect", "100-continue")];
    http2.send(frame(
        HEADERS,
        END_STREAM | END_HEADERS,
        1,
        frames::request("POST", "/", &twice),
    ));
    assert_eq!(http2.fate(1).status, Some(400));
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn encoded_slash_is_a_character_of_its_segment() {
    let upstream = Upstream::hello();
    let routes = format!(
        "[limits.one]\nrate = \"1/hour\"\nburst = 1\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/api/projects/{{id}}\"\nupstream = \"{url}\"\nlimits = [\"one\"]\n\
         [[routes]]\nmatch = \"/api/projects/group/app\"\nupstream = \"builtin:echo\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\n",
        url = upstream.url()
    );
    let gateway = Gateway::start(&routes);
    assert_eq!(gateway.get("/api/projects/group%2Fapp").status, 200);
    assert_eq!(
        gateway.get("/api/projects/group%2fapp").status,
        429,
        "one segment, in either case of the digit"
    );
    assert_eq!(gateway.get("/@scope%2fpackage").status, 200);
    assert_eq!(
        upstream.last().line(),
        "GET /@scope%2fpackage HTTP/1.1",
        "as it came"
    );
    for odd in [
        "/a%2f..%2fb",
        "/..%2fb",
        "/a%5cb",
        "/a%5C..",
        "/a%2f%2e%2e",
        "/a;x%2fb",
    ] {
        assert_eq!(gateway.get(odd).status, 400, "{odd}");
    }
    let strict = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nencoded_slash = \"refuse\"\n{routes}"
    ));
    for path in ["/api/projects/group%2Fapp", "/@scope%2fpackage", "/a%5cb"] {
        assert_eq!(strict.get(path).status, 400, "{path}");
    }
}

#[test]
fn refusal_of_a_request_that_can_be_read_in_two_ways_names_what() {
    let upstream = Upstream::hello();
    let limit = |name: &str, per: &str| {
        format!("[limits.{name}]\nrate = \"100/hour\"\nper = \"{per}\"\nwhen_missing = \"skip\"\n")
    };
    let gateway = Gateway::start(&format!(
        "[address]\ntrusted_proxies = [\"127.0.0.1/32\"]\n{}{}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"key\", \"user\"]\n",
        limit("key", "header:x-key"),
        limit("user", "basic"),
        upstream.url()
    ));
    for (headers, detail) in [
        (
            &[
                ("x-forwarded-for", "192.0.2.1"),
                ("forwarded", "for=192.0.2.2"),
            ][..],
            "trusted proxies name different clients",
        ),
        (&[("host", "x,y")], "Host must be a host name or address"),
        (&[("x-key", "a"), ("x-key", "b")], "is given twice"),
        (
            &[("authorization", "Basic !!!")],
            "cannot be decoded in one way",
        ),
    ] {
        let told = gateway.connect().request("GET", "/", headers);
        assert_eq!(told.status, 400, "{headers:?}");
        let text = told.text();
        assert!(text.contains(detail), "{headers:?}: {text}");
    }
    assert!(upstream.seen().is_empty());
}

/// JSON in a query, as scripts send it: NGINX, HAProxy, Caddy and Envoy forward it.
#[test]
fn target_with_raw_quotes_is_forwarded_and_its_key_is_that_of_the_encoded_one() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.filter]\nrate = \"1/hour\"\nper = \"query:filter\"\nwhen_missing = \"refuse\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"filter\"]\n",
        upstream.url()
    ));
    assert_eq!(gateway.get("/x?filter={\"a\":1}").status, 200);
    assert_eq!(
        upstream.seen()[0].line(),
        "GET /x?filter={%22a%22:1} HTTP/1.1"
    );
    assert_eq!(gateway.get("/x?filter=%7B%22a%22:1%7D").status, 429);
    assert_eq!(gateway.get("/x?filter={\"a\":1}&filter]=x").status, 400);
}

#[test]
fn form_field_behind_a_semicolon_is_refused_however_it_is_spelt() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.user]\nrate = \"9/hour\"\nper = \"form:user\"\nwhen_missing = \"refuse\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"user\"]\n",
        upstream.url()
    ));
    let post = |body: &str| {
        let mut client = gateway.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        client.answer("POST").status
    };
    assert_eq!(post("user=decoy&x"), 200);
    for body in [
        "user=decoy&x;user]=victim",
        "user=decoy&x; user=victim",
        "user=decoy&x;[user]=victim",
        "x;USER=victim",
    ] {
        assert_eq!(post(body), 400, "{body}");
    }
}
