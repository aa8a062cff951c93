use http::header::HOST;

use super::*;

/// Most tests ask only whether it is admitted.
fn admit<B>(request: &mut Request<B>) -> Result<(), Malformed> {
    admitted(request).map(drop)
}

fn admitted<B>(request: &mut Request<B>) -> Result<RequestTarget, Malformed> {
    let seen = RequestHeaders::of(request.headers());
    super::normalise(request, &seen)
}

fn request(version: Version, target: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder().version(version).uri(target);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(()).expect("a request that http accepts")
}

fn http1(headers: &[(&str, &str)]) -> Result<(), Malformed> {
    admit(&mut request(Version::HTTP_11, "/x", headers))
}

#[test]
fn framing_transfer_encoding_other_than_one_chunked_is_refused() {
    let with = |value: &str| http1(&[("host", "a"), ("transfer-encoding", value)]);
    assert_eq!(with("chunked"), Ok(()));
    assert_eq!(with("Chunked"), Ok(()));
    for odd in [
        "chunked, chunked",
        "identity, chunked",
        "identity",
        ",chunked",
        "chunked,",
        "",
    ] {
        assert_eq!(with(odd), Err(Malformed::TransferEncoding), "{odd}");
    }
    for odd in [
        "x, chunked",
        "gzip, chunked",
        "gzip",
        "chunked;q=1",
        "xchunked",
        "chunked\t x",
    ] {
        assert_eq!(with(odd), Err(Malformed::TransferCoding), "{odd}");
    }
    let two = http1(&[
        ("host", "a"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "chunked"),
    ]);
    assert_eq!(two, Err(Malformed::TransferEncoding));
    let mut old = request(
        Version::HTTP_10,
        "/",
        &[("host", "a"), ("transfer-encoding", "chunked")],
    );
    assert_eq!(admit(&mut old), Err(Malformed::TransferEncoding));
}

#[test]
fn framing_host_missing_or_repeated_is_refused() {
    assert_eq!(http1(&[("host", "a.example")]), Ok(()));
    assert_eq!(http1(&[]), Err(Malformed::Host));
    assert_eq!(http1(&[("host", "a"), ("host", "a")]), Err(Malformed::Host));
    assert_eq!(admit(&mut request(Version::HTTP_10, "/", &[])), Ok(()));
}

#[test]
fn framing_host_invalid_is_refused() {
    for good in [
        "a",
        "a.b:80",
        "[::1]",
        "[2001:db8::1]:443",
        "a:",
        "127.0.0.1:1",
        "xn--a",
        "a_b",
        "%41",
    ] {
        assert!(is_host(good.as_bytes()), "{good}");
    }
    for bad in [
        "", "a b", "a/b", "a?b", "a\\b", "u@a", "a:b", "a:123456", "a:65536", "[::1", "[x]", "::1",
        "[::1]x", "a:1:2", "%4", "é", ":80",
    ] {
        assert!(!is_host(bad.as_bytes()), "{bad}");
        if let Ok(value) = HeaderValue::from_str(bad) {
            let mut request = request(Version::HTTP_11, "/", &[]);
            request.headers_mut().insert(HOST, value);
            assert_eq!(admit(&mut request), Err(Malformed::HostSyntax), "{bad}");
        }
    }
}

#[test]
fn framing_authority_in_target_replaces_host() {
    let mut absolute = request(
        Version::HTTP_11,
        "http://real.example/x?y",
        &[("host", "other.example")],
    );
    assert_eq!(admit(&mut absolute), Ok(()));
    assert_eq!(absolute.headers()[HOST], "real.example");
    assert_eq!(absolute.uri(), "/x?y");
    let mut rootless = request(
        Version::HTTP_11,
        "http://real.example?y",
        &[("host", "real.example")],
    );
    assert_eq!(admit(&mut rootless), Ok(()));
    assert_eq!(
        rootless.uri().path_and_query().map(PathAndQuery::as_str),
        Some("/?y"),
        "the empty path is written as /"
    );
    assert_eq!(
        admit(&mut request(Version::HTTP_11, "http://real.example/", &[])),
        Err(Malformed::Host)
    );
    assert_eq!(
        admit(&mut request(
            Version::HTTP_11,
            "http://u:p@a/",
            &[("host", "a")]
        )),
        Err(Malformed::HostSyntax)
    );
}

#[test]
fn framing_http2_host_unlike_authority_is_refused() {
    let mut alone = request(Version::HTTP_2, "https://a.example/x", &[]);
    assert_eq!(admit(&mut alone), Ok(()));
    assert_eq!(alone.headers()[HOST], "a.example");
    assert_eq!(alone.uri(), "/x");
    assert_eq!(
        admit(&mut request(
            Version::HTTP_2,
            "https://a.example/",
            &[("host", "A.example")]
        )),
        Ok(())
    );
    assert_eq!(
        admit(&mut request(
            Version::HTTP_2,
            "https://a.example/",
            &[("host", "b")]
        )),
        Err(Malformed::Host)
    );
    assert_eq!(
        admit(&mut request(Version::HTTP_2, "/", &[])),
        Err(Malformed::Host)
    );
}

#[test]
fn framing_target_takes_origin_form() {
    let mut star = request(Version::HTTP_11, "*", &[("host", "a")]);
    assert_eq!(admit(&mut star), Err(Malformed::Target));
    *star.method_mut() = Method::OPTIONS;
    *star.uri_mut() = Uri::from_static("*");
    assert_eq!(admit(&mut star), Ok(()));
    assert_eq!(
        admit(&mut request(
            Version::HTTP_11,
            "a.example",
            &[("host", "a.example")]
        )),
        Err(Malformed::Target)
    );
    assert_eq!(
        admit(&mut request(
            Version::HTTP_11,
            "ftp://a/x",
            &[("host", "a")]
        )),
        Err(Malformed::Target)
    );
    let mut exact = request(Version::HTTP_11, "/%2e%2E//a;b?c=%20", &[("host", "a")]);
    assert_eq!(admit(&mut exact), Ok(()));
    assert_eq!(exact.uri(), "/%2e%2E//a;b?c=%20");
}

#[test]
fn framing_method_or_expectation_unsupported_is_refused() {
    let mut connect = request(Version::HTTP_11, "a:443", &[("host", "a:443")]);
    *connect.method_mut() = Method::CONNECT;
    assert_eq!(admit(&mut connect), Err(Malformed::Connect));
    let mut long = request(Version::HTTP_11, "/", &[("host", "a")]);
    *long.method_mut() = Method::from_bytes(&[b'A'; 33]).expect("a token");
    assert_eq!(admit(&mut long), Err(Malformed::Method));
    assert_eq!(http1(&[("host", "a"), ("expect", "100-Continue")]), Ok(()));
    assert_eq!(
        http1(&[("host", "a"), ("expect", "tea")]),
        Err(Malformed::Expectation)
    );
    let twice = [
        ("host", "a"),
        ("expect", "100-continue"),
        ("expect", "100-continue"),
    ];
    assert_eq!(http1(&twice), Err(Malformed::Expectations));
    let mut small = request(Version::HTTP_11, "/", &[("host", "a")]);
    *small.method_mut() = Method::from_bytes(b"GEt").expect("a token");
    assert_eq!(admit(&mut small), Err(Malformed::MethodCase));
}

#[test]
fn framing_request_target_is_described() {
    let form = |version, target, headers: &[(&str, &str)]| {
        admitted(&mut request(version, target, headers)).expect("a good request")
    };
    let absolute = form(
        Version::HTTP_11,
        "https://a.example:8443/x",
        &[("host", "b.example"), ("via", "1.1 b")],
    );
    assert_eq!(absolute.absolute, Some(Absolute { https: true }));
    assert!(absolute.via && !absolute.bridged && !absolute.last_hop);
    let host = |form: &RequestTarget| {
        (
            form.host
                .clone()
                .map(|host| host.to_str().expect("text").to_owned()),
            form.plain_host,
        )
    };
    assert_eq!(
        host(&absolute),
        (Some("a.example:8443".to_owned()), Some(9)),
        "the authority of the target replaces the header"
    );
    assert_eq!(
        form(Version::HTTP_11, "/x", &[("host", "a")]).absolute,
        None
    );
    let bare = form(Version::HTTP_2, "http://a/x", &[]);
    assert_eq!(
        bare.absolute, None,
        "over HTTP/2 every request names its authority"
    );
    assert_eq!(host(&bare), (Some("a".to_owned()), Some(1)));
    let odd = form(Version::HTTP_11, "/x", &[("host", "A_b.:80")]);
    assert_eq!(
        host(&odd),
        (Some("A_b.:80".to_owned()), None),
        "it is not in normal form"
    );
}

#[test]
fn framing_max_forwards_counts_for_options_and_trace_only() {
    let counted = |method: Method, said: &str| {
        let mut request = request(
            Version::HTTP_11,
            "/x",
            &[("host", "a"), ("max-forwards", said)],
        );
        *request.method_mut() = method;
        let form = admitted(&mut request).expect("a good request");
        (
            form.last_hop,
            request.headers()["max-forwards"]
                .to_str()
                .expect("text")
                .to_owned(),
        )
    };
    assert_eq!(counted(Method::OPTIONS, "0"), (true, "0".to_owned()));
    assert_eq!(counted(Method::OPTIONS, "1"), (false, "0".to_owned()));
    assert_eq!(counted(Method::TRACE, "10"), (false, "9".to_owned()));
    assert_eq!(counted(Method::GET, "0"), (false, "0".to_owned()));
    assert_eq!(counted(Method::OPTIONS, "x"), (false, "x".to_owned()));
}

#[test]
fn framing_http2_value_with_outer_whitespace_is_refused() {
    for odd in [" a", "a ", "\ta", "a\t"] {
        let headers = [("x-key", odd)];
        for (version, expected) in [
            (Version::HTTP_2, Err(Malformed::FieldValue)),
            (Version::HTTP_11, Ok(())),
        ] {
            let mut request = request(version, "http://a/x", &[("host", "a"), headers[0]]);
            assert_eq!(admit(&mut request), expected, "{odd:?} {version:?}");
        }
    }
    let mut request = request(
        Version::HTTP_2,
        "http://a/x",
        &[("x-key", "a b"), ("x", "")],
    );
    assert_eq!(admit(&mut request), Ok(()));
}

#[test]
fn framing_options_of_absolute_target_keeps_its_path() {
    for (target, path) in [("http://a", "/"), ("http://a/", "/"), ("http://a?x", "/?x")] {
        let mut request = request(Version::HTTP_11, "/", &[("host", "a")]);
        *request.uri_mut() = target.parse().expect("a target");
        *request.method_mut() = Method::OPTIONS;
        assert_eq!(admit(&mut request), Ok(()), "{target}");
        assert_eq!(request.uri(), path, "{target}");
    }
}
