//! What a gateway owes both sides beyond passing bytes on: Via, Max-Forwards, TRACE, upgrades, encoded slashes, bounds.

use crate::forwarding::open;
use crate::harness::{Gateway, Reply, Upstream, eventually};

/// `key = value` lines of `[server]` before an open gateway.
fn with_server(lines: &str, upstream: &Upstream) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n{lines}\n{}",
        open(upstream)
    )
}

#[track_caller]
fn counted(gateway: &Gateway, reason: &str) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = format!("tollgate_rejections_total{{reason=\"{reason}\"}} ");
    metrics
        .lines()
        .find_map(|found| found.strip_prefix(&line)?.parse().ok())
        .unwrap_or_else(|| panic!("{metrics}"))
}

#[test]
fn via_names_the_gateway_and_the_version_that_was_received_in_both_directions() {
    let upstream = Upstream::start(|_| Reply::new(200, &[("via", "1.0 far")], ""));
    let gateway = Gateway::start(&open(&upstream));
    let mut connection = gateway.connect();
    connection.send("GET / HTTP/1.0\r\nVia: 1.1 near\r\n\r\n");
    let answer = connection.answer("GET");
    let via: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "via")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(via, ["1.0 far", "1.1 tollgate"]);
    let seen = upstream.last();
    let [near, own] = seen.all("via")[..] else {
        panic!("{}", seen.head)
    };
    assert_eq!(
        (near, own.split(" (").next()),
        ("1.1 near", Some("1.0 tollgate"))
    );

    gateway
        .reload(&with_server("via = \"edge\"", &upstream))
        .expect("a good file");
    assert_eq!(
        gateway
            .get("/")
            .headers
            .iter()
            .filter(|(_, value)| value == "1.1 edge")
            .count(),
        1
    );
    gateway
        .reload(&with_server("via = \"off\"", &upstream))
        .expect("a good file");
    assert_eq!(gateway.get("/").header("via"), Some("1.0 far"));
    assert_eq!(upstream.last().header("via"), None);
}

#[test]
fn max_forwards_ends_here_or_is_counted_down() {
    let upstream = Upstream::hello();
    let config = format!(
        "{}[[routes]]\nmatch = \"GET|OPTIONS /listed\"\nupstream = \"{}\"\n",
        open(&upstream),
        upstream.url()
    );
    let gateway = Gateway::start(&config);
    let asked =
        |path: &str, left: &str| gateway.request("OPTIONS", path, &[("Max-Forwards", left)]);
    let last = asked("/", "0");
    assert_eq!((last.status, last.body.len()), (200, 0));
    assert_eq!(
        last.header("allow"),
        Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
    );
    assert_eq!(asked("/listed", "0").header("allow"), Some("GET, OPTIONS"));
    assert_eq!(upstream.seen().len(), 0, "it is not forwarded");
    assert_eq!(asked("/", "3").text(), "hello");
    assert_eq!(upstream.last().header("max-forwards"), Some("2"));
    gateway.request("GET", "/", &[("Max-Forwards", "0")]);
    assert_eq!(
        upstream.last().header("max-forwards"),
        Some("0"),
        "of no meaning for GET"
    );
}

#[test]
fn trace_goes_on_only_where_a_route_names_it() {
    let upstream = Upstream::hello();
    let config = format!(
        "{}[[routes]]\nmatch = \"TRACE /traced\"\nupstream = \"{}\"\n",
        open(&upstream),
        upstream.url()
    );
    let gateway = Gateway::start(&config);
    let refused = gateway.request("TRACE", "/", &[]);
    assert_eq!(refused.status, 405);
    assert!(
        refused
            .header("allow")
            .is_some_and(|allow| allow.contains("GET") && !allow.contains("TRACE"))
    );
    assert_eq!((counted(&gateway, "trace"), upstream.seen().len()), (1, 0));
    assert_eq!(gateway.request("TRACE", "/traced", &[]).text(), "hello");
    let secret = [
        ("Max-Forwards", "0"),
        ("Cookie", "secret"),
        ("X-Key", "secret"),
        ("User-Agent", "curl"),
    ];
    let last = gateway.request("TRACE", "/traced?x", &secret);
    assert_eq!(
        (last.status, last.header("content-type")),
        (200, Some("message/http"))
    );
    assert_eq!(
        last.text(),
        "TRACE /traced?x HTTP/1.1\r\nhost: localhost\r\nmax-forwards: 0\r\nuser-agent: curl\r\n\r\n"
    );
    let with_body = gateway.request("TRACE", "/traced", &[("Content-Length", "1")]);
    assert_eq!(with_body.status, 501, "TRACE has no body");
}

#[test]
fn only_listed_upgrades_pass() {
    let upstream = Upstream::start(|seen| {
        match seen.header("upgrade") {
        Some(protocol) => Reply::Bytes(
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n").into(),
        ),
        None => Reply::ok("not upgraded"),
    }
    });
    let gateway = Gateway::start(&with_server(
        "upgrades = [\"websocket\", \"Raw\"]",
        &upstream,
    ));
    let ask = |method: &str, protocol: &str| {
        gateway.request(
            method,
            "/",
            &[("Connection", "Upgrade"), ("Upgrade", protocol)],
        )
    };
    for (method, protocol) in [("GET", "WebSocket"), ("GET", "raw"), ("POST", "raw/2")] {
        let answer = ask(method, protocol);
        assert_eq!(
            (answer.status, answer.header("upgrade")),
            (101, Some(protocol)),
            "{method} {protocol}"
        );
    }
    for (method, protocol) in [
        ("GET", "h2c"),
        ("GET", "other"),
        ("POST", "websocket"),
        ("GET", "raw, websocket"),
    ] {
        assert_eq!(
            ask(method, protocol).text(),
            "not upgraded",
            "{method} {protocol}"
        );
        assert_eq!(upstream.last().header("connection"), None);
    }
    gateway
        .reload(&with_server("upgrades = []", &upstream))
        .expect("a good file");
    assert_eq!(ask("GET", "websocket").text(), "not upgraded");
}

#[test]
fn a_tunnel_in_which_nothing_moves_ends_after_its_own_time() {
    let upstream = Upstream::start(|_| {
        Reply::Bytes(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".to_vec())
    });
    let gateway = Gateway::start(&with_server(
        "timeouts = { upgrade_idle = \"50ms\" }",
        &upstream,
    ));
    let mut connection = gateway.connect();
    let asked = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    assert_eq!(connection.request("GET", "/", &asked).status, 101);
    assert!(connection.is_closed());
}

#[test]
fn no_more_requests_are_under_way_than_the_bound() {
    let upstream = Upstream::start(|seen| {
        if seen.line().contains("slow") {
            Reply::Silence
        } else {
            Reply::ok("done")
        }
    });
    let gateway = Gateway::start(&with_server("bounds = { requests = 2 }", &upstream));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 200, "places come free");
    }
    let mut held: Vec<_> = (0..2).map(|_| gateway.connect()).collect();
    for connection in &mut held {
        connection.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    eventually("both are under way", || upstream.seen().len() == 7);
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(counted(&gateway, "overloaded"), 1);
    drop(held);
    eventually("their places are free again", || {
        gateway.get("/").status == 200
    });
}

#[test]
fn an_encoded_slash_is_refused_or_kept_and_never_a_slash() {
    let (one, all) = (Upstream::hello(), Upstream::hello());
    let config = |slash: &str| {
        format!(
            "{}[[routes]]\nmatch = \"/projects/{{name}}/files\"\nupstream = \"{}\"\nstrip_prefix = \"/projects\"\n",
            with_server(&format!("encoded_slash = \"{slash}\""), &all),
            one.url()
        )
    };
    let gateway = Gateway::start(&config("refuse"));
    assert_eq!(gateway.get("/projects/a%2Fb/files").status, 400);
    assert_eq!(counted(&gateway, "bad_path"), 1);
    gateway.reload(&config("keep")).expect("a good file");
    assert_eq!(gateway.get("/projects/a%2Fb%2fc/files").status, 200);
    assert_eq!(
        one.last().line(),
        "GET /a%2Fb%2fc/files HTTP/1.1",
        "one segment, byte for byte"
    );
    assert_eq!(gateway.get("/projects%2fa/files").status, 200);
    assert_eq!(
        all.last().line(),
        "GET /projects%2fa/files HTTP/1.1",
        "no route sees a slash in it"
    );
    for climbing in [
        "/projects/a%2f..%2f..%2fb/files",
        "/projects/..%2f/files",
        "/projects/a;b%2fc/files",
        "/a\\b",
        "/a%5Cb",
    ] {
        assert_eq!(gateway.get(climbing).status, 400, "{climbing}");
    }
}

#[test]
fn interim_responses_pass_where_configured() {
    let upstream = Upstream::start(|_| {
        let hints =
            "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n";
        Reply::Bytes(
            format!("{hints}HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").into(),
        )
    });
    let with = |hints: bool| {
        format!(
            "[upstreams.app]\nservers = [\"{}\"]\nearly_hints = {hints}\n[[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&with(true));
    let everything = |request: &str| {
        let mut connection = gateway.connect();
        connection.send(request);
        connection.rest()
    };
    let asked = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let said = everything(asked);
    let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert!(said.starts_with(expected), "{said}");
    let twice = everything(&format!(
        "{}{asked}",
        asked.replace("Connection: close\r\n", "")
    ));
    assert_eq!(twice.matches("HTTP/1.1 200 OK").count(), 2, "{twice}");
    assert!(
        everything("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 OK"),
        "HTTP/1.0 knows none"
    );
    gateway.reload(&with(false)).expect("a good file");
    assert!(everything(asked).starts_with("HTTP/1.1 200 OK"));
}

/// A WebSocket over HTTP/2 (RFC 8441) takes the way of every request: routed and limited as the GET that it becomes.
#[test]
fn an_extended_connect_is_routed_and_limited_as_its_upgrade() {
    use http::{Method, Request};
    use http_body_util::Empty;
    use hyper::body::Bytes;
    use hyper::client::conn::http2;
    use hyper::ext::Protocol;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::AsyncReadExt;

    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly";
    let upstream = Upstream::start(move |seen| match seen.header("upgrade") {
        Some("websocket") => Reply::Bytes(switched.into()),
        _ => Reply::ok("plain"),
    });
    let gateway = Gateway::start(&format!(
        "[limits.sockets]\nrate = \"1/hour\"\nper = \"address\"\n[[routes]]\nmatch = \"GET /ws\"\nupstream = \"{}\"\nlimits = [\"sockets\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        upstream.url()
    ));
    let address = gateway.address();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let told = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("connected");
        let (mut client, connection) =
            http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("HTTP/2");
        tokio::spawn(connection);
        let hello = Request::get(format!("http://{address}/hello"))
            .body(Empty::new())
            .expect("a request");
        assert_eq!(
            client
                .send_request(hello)
                .await
                .expect("an answer")
                .status(),
            200,
            "and with it the settings"
        );
        let mut told = Vec::new();
        for path in ["/ws", "/ws", "/elsewhere"] {
            let connect = Request::builder()
                .method(Method::CONNECT)
                .uri(format!("http://{address}{path}"))
                .extension(Protocol::from_static("websocket"))
                .body(Empty::new())
                .expect("a request");
            let answer = client.send_request(connect).await.expect("an answer");
            told.push(answer.status().as_u16());
            if answer.status() == 200 {
                let mut tunnel = TokioIo::new(hyper::upgrade::on(answer).await.expect("a tunnel"));
                let mut early = [0; 5];
                tunnel
                    .read_exact(&mut early)
                    .await
                    .expect("what the upstream said");
                assert_eq!(&early, b"early");
            }
        }
        told
    });
    assert_eq!(
        told,
        [200, 429, 501],
        "admitted, refused by its limit, and no tunnel to what is no upstream"
    );
    assert!(upstream.last().line().starts_with("GET /ws HTTP/1.1"));
}
