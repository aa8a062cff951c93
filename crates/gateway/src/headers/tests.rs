use super::*;
use tollgate_policy::{Guarded, Peer};

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a field name");
        headers.append(name, HeaderValue::from_str(value).expect("a field value"));
    }
    headers
}

fn peer(address: &str) -> Peer {
    Peer {
        address: Some(address.parse().expect("an address")),
        port: 1,
        tls: false,
        unnamed: false,
    }
}

#[test]
fn connection_header_removes_listed_headers_on_all_lines() {
    let mut headers = map(&[
        ("connection", "close, X-One"),
        ("connection", ",x-two,,"),
        ("x-one", "1"),
        ("x-two", "2"),
        ("x-three", "3"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip, trailers;q=1"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQ"),
    ]);
    let hop = strip_hop_by_hop(&mut headers);
    assert_eq!(
        hop,
        Hop {
            upgrade: None,
            trailers: true
        }
    );
    assert_eq!(headers, map(&[("x-three", "3")]));
}

#[test]
fn framing_and_routing_cannot_be_listed_away() {
    let mut headers = map(&[
        ("connection", "Host, Content-Length"),
        ("host", "a"),
        ("content-length", "3"),
    ]);
    strip_hop_by_hop(&mut headers);
    assert_eq!(headers, map(&[("host", "a"), ("content-length", "3")]));
}

#[test]
fn an_upgrade_is_asked_for_by_connection_and_names_one_protocol() {
    let asked = |fields: &[(&str, &str)]| strip_hop_by_hop(&mut map(fields)).upgrade.is_some();
    assert!(asked(&[
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket")
    ]));
    assert!(!asked(&[("upgrade", "websocket")]));
    assert!(!asked(&[("connection", "upgrade")]));
    assert!(!asked(&[("connection", "upgrade"), ("upgrade", "")]));
    assert!(!asked(&[
        ("connection", "upgrade"),
        ("upgrade", "websocket, h2c")
    ]));
    assert!(!asked(&[
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("upgrade", "h2c")
    ]));
}

#[test]
fn forwarding_headers_of_untrusted_peers_are_replaced() {
    let mut headers = map(&[
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("x_forwarded_for", "2.2.2.2"),
        ("x-forwarded_host", "evil"),
        ("x_forwarded-port", "1"),
        ("content_length", "7"),
        ("transfer_encoding", "chunked"),
        ("x_trace", "kept: it looks like nothing that is there"),
        ("x-user", "a"),
        ("x_user", "b"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
    ]);
    let present = RequestHeaders::of(&headers).present;
    let host = HeaderValue::from_static("a.example");
    let mut others = headers.clone();
    let from = peer("::ffff:203.0.113.9");
    let origin = Origin::of_stranger(&mut others, present, &from, Some(host.clone()), None);
    set_forwarding(&mut headers, present, &from, Some(host), false);
    let mut written = Vec::new();
    origin.write(&mut written);
    for line in String::from_utf8(written).expect("text").lines() {
        let (name, value) = line.split_once(": ").expect("a field");
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        assert_eq!(
            others.insert(name, HeaderValue::from_str(value).expect("a value")),
            None,
            "what claims it is gone"
        );
    }
    assert_eq!(others, headers, "written or set, it is the same");
    let expected = map(&[
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "a.example"),
        ("x_trace", "kept: it looks like nothing that is there"),
        ("x-user", "a"),
    ]);
    assert_eq!(headers, expected);
    let mut encrypted = from;
    encrypted.tls = true;
    let mut written = Vec::new();
    Origin::of_stranger(&mut others, present, &encrypted, None, None).write(&mut written);
    let written = String::from_utf8(written).expect("text");
    assert!(
        written.contains("x-forwarded-proto: https\r\n"),
        "{written}"
    );
}

#[test]
fn forwarding_headers_can_all_be_dropped() {
    let mut headers = map(&[
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "2.2.2.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "inside"),
        ("x-forwarded-port", "1"),
        ("x-real-ip", "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x_forwarded_for", "1.1.1.1"),
        ("content_length", "7"),
        ("x_trace", "kept"),
        ("accept", "kept"),
    ]);
    drop_forwarding(&mut headers);
    assert_eq!(headers, map(&[("x_trace", "kept"), ("accept", "kept")]));
}

#[test]
fn forwarding_headers_of_trusted_peers_are_extended() {
    let mut headers = map(&[
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "2.2.2.2, 3.3.3.3"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=1.1.1.1"),
    ]);
    let present = RequestHeaders::of(&headers).present;
    let host = HeaderValue::from_static("a.example");
    set_forwarding(
        &mut headers,
        present,
        &peer("2001:db8::9"),
        Some(host),
        true,
    );
    let expected = map(&[
        ("x-forwarded-for", "1.1.1.1, 2.2.2.2, 3.3.3.3, 2001:db8::9"),
        ("x-forwarded-proto", "https"),
        (
            "forwarded",
            "for=1.1.1.1, for=\"[2001:db8::9]\";proto=http;host=\"a.example\"",
        ),
        ("x-forwarded-host", "a.example"),
    ]);
    assert_eq!(headers, expected);
}

#[test]
fn cookies_are_joined() {
    let mut headers = map(&[("cookie", "a=1"), ("cookie", "b=2"), ("x", "y")]);
    join_cookies(&mut headers);
    assert_eq!(headers, map(&[("cookie", "a=1; b=2"), ("x", "y")]));
}

#[test]
fn trailers_have_no_framing() {
    let mut trailers = map(&[
        ("grpc-status", "0"),
        ("content-length", "5"),
        ("authorization", "x"),
        ("host", "h"),
    ]);
    clean_trailers(&mut trailers);
    assert_eq!(trailers, map(&[("grpc-status", "0")]));
}

#[test]
fn trailers_have_no_forwarding_headers() {
    let says = ["forwarded", "via", "x-real-ip"];
    let forwarded = [
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
    ];
    for name in says.into_iter().chain(forwarded) {
        let mut trailers = map(&[(name, "6.6.6.6"), ("x-check", "7")]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("x-check", "7")]), "{name}");
    }
}

#[test]
fn headers_one_pass_finds_the_known_ones() {
    let seen = RequestHeaders::of(&map(&[
        ("host", "a"),
        ("te", "x"),
        ("referer", "r"),
        ("host", "b"),
        ("user-agent", "u"),
    ]));
    let text = |value: &Option<HeaderValue>| {
        value
            .as_ref()
            .map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(text(&seen.host).as_deref(), Some("a"));
    assert_eq!(text(&seen.user_agent).as_deref(), Some("u"));
    assert_eq!(text(&seen.referer).as_deref(), Some("r"));
    assert!(seen.present.has(HeaderSet::HOSTS) && seen.present.has(HeaderSet::USER_AGENT));
    assert!(!seen.present.has(HeaderSet::UNUSUAL) && !seen.present.has(HeaderSet::VIA));
    assert!(
        RequestHeaders::of(&map(&[("x_y", "1")]))
            .present
            .has(HeaderSet::UNUSUAL)
    );
    assert!(
        !RequestHeaders::of(&map(&[("host", "a")]))
            .present
            .has(HeaderSet::HOSTS)
    );
}

#[test]
fn deadline_headers_all_set_their_bit() {
    for (name, _) in DEADLINES {
        let present = HeaderSet::of(&map(&[(name, "1")]));
        let known = HeaderSet::GRPC_TIMEOUT.and(HeaderSet::TIMEOUT_MS);
        assert!(present.has(known), "{name}");
    }
}

#[test]
fn connection_header_reports_removed_headers() {
    let mut headers = map(&[
        ("connection", "expect, close"),
        ("expect", "100-continue"),
        ("via", "1.1 a"),
    ]);
    let mut present = HeaderSet::of(&headers);
    strip_present(&mut headers, &mut present);
    assert!(!present.has(HeaderSet::EXPECT) && present.has(HeaderSet::VIA));
}

#[test]
fn trailers_that_modify_a_request_are_dropped() {
    let mut trailers = map(&[
        ("accept-encoding", "gzip"),
        ("accept_encoding", "gzip"),
        ("range", "bytes=0-1"),
        ("if-range", "x"),
        ("if-none-match", "*"),
        ("if_none_match", "*"),
        ("if-modified-since", "x"),
        ("if-match", "*"),
        ("if-unmodified-since", "x"),
        ("grpc-timeout", "1n"),
        ("connect_timeout_ms", "1"),
        ("x-sum", "1"),
    ]);
    clean_request_trailers(&mut trailers, &Guarded::default());
    assert_eq!(trailers, map(&[("x-sum", "1")]));
}
