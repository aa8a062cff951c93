//! What is fuzzed, and what must hold whatever the bytes: shared by the coverage-guided targets beside this file and
//! by the smoke test that runs with every other test.

#[path = "streams.rs"]
mod streams;

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate_admission::settle::field::{Carrier, FieldScanner};
use tollgate_gateway::framing::{is_host, normalise};
use tollgate_gateway::headers::{RequestHeaders, clean_trailers, set_forwarding, strip_hop_by_hop};
use tollgate_http1::request::{BadHead, Head, Limits, Reader};
use tollgate_limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp,
    WhenDown,
};
use tollgate_net::client::Client;
use tollgate_net::server::proxy_protocol::read;
use tollgate_policy::body::json::{self, Paths};
use tollgate_policy::descriptor::normal_host;
use tollgate_policy::explain::RouteFate;
use tollgate_policy::identity::address::{AddressPolicy, parse_forwarded, parse_hop};
use tollgate_policy::identity::callers::{Callers, parse_digest};
use tollgate_policy::identity::jwt::{Algorithm as Signature, JwtPolicy, JwtSettings};
use tollgate_policy::identity::source::Source;
use tollgate_policy::identity::{Identity, WhenMissing, WhenUnknown};
use tollgate_policy::routes::pattern::Pattern;
use tollgate_policy::routes::template::Template;
use tollgate_policy::routes::{HeaderEdits, ParseError, Route, RouteLimit, Target};
use tollgate_policy::{
    Cost, Count, Peer, Policy, PolicyParts, Reset, Responses, Rule, Scope, ScopePart,
    identity::keys as policy_keys, routes::path as paths,
};
use tollgate_telemetry::access::{Charge, Format, KeyNames, Keys, Record};

#[allow(
    unused_imports,
    reason = "not every test that includes this file runs them"
)]
pub(crate) use streams::{requests, responses};

/// A path has one normal form, which holds nothing an upstream could read in two ways.
pub(crate) fn path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(kept) = paths::normalise_with_slashes(text) {
        assert_eq!(paths::normalise_with_slashes(&kept).as_deref(), Ok(&*kept));
        let decoded = kept.replace("%2F", "/").replace("%5C", "/");
        assert!(
            decoded
                .split('/')
                .skip(1)
                .all(|segment| segment != "." && segment != "..")
        );
    }
    let Ok(normal) = paths::normalise(text) else {
        return;
    };
    assert!(normal.starts_with('/'));
    assert!(normal.len() == 1 || !normal.ends_with('/'));
    assert!(
        !normal
            .bytes()
            .any(|byte| byte.is_ascii_control() || byte == b'\\' || byte == b';')
    );
    assert!(
        normal
            .split('/')
            .skip(1)
            .all(|segment| segment != "." && segment != "..")
    );
    assert!(!normal.contains("//"));
    assert_eq!(paths::normalise(&normal).as_deref(), Ok(&*normal));
    // Where slashes are kept nothing else changes.
    assert_eq!(paths::normalise_with_slashes(text).as_deref(), Ok(&*normal));
}

/// Forwarding headers name addresses or nothing; hosts have one form.
pub(crate) fn addresses(data: &[u8]) {
    let _ = parse_hop(data);
    if let Some(hops) = parse_forwarded(data) {
        assert!(hops.len() <= data.len());
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(host) = normal_host(text)
    {
        assert_eq!(normal_host(&host).as_deref(), Ok(&*host));
    }
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append("x-forwarded-for", value.clone());
            headers.append("forwarded", value);
        }
    }
    let policy = AddressPolicy {
        trusted_proxies: "10.0.0.0/8".parse::<ipnet::IpNet>().into_iter().collect(),
        ipv6_prefix: 64,
        ..AddressPolicy::default()
    };
    // Headers that name different clients are an error.
    assert!(!matches!(
        policy.client("10.0.0.1".parse().ok(), &headers),
        Ok(None)
    ));
    assert_eq!(
        policy
            .client("192.0.2.1".parse().ok(), &headers)
            .ok()
            .flatten(),
        "192.0.2.1".parse().ok()
    );
}

/// Texts of the file: whatever is wrong stands inside the text; what is right says itself back.
pub(crate) fn texts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let inside =
        |error: ParseError| assert!(text.get(error.at.clone()).is_some(), "{text:?}: {error:?}");
    match Pattern::parse(text) {
        Ok(pattern) => {
            // A decoded space or `{` would not parse again; everything else must.
            let again = pattern.to_string();
            if let Ok(parsed) = Pattern::parse(&again) {
                assert_eq!(parsed, pattern);
            }
        }
        Err(error) => inside(error),
    }
    match Template::parse(text, |name| Some(name.len())) {
        Ok(template) => {
            let fill = |_: &_, into: &mut Vec<u8>| into.extend_from_slice(data);
            assert!(
                !template
                    .header_value(fill)
                    .as_bytes()
                    .iter()
                    .any(|byte| *byte == b'\n' || *byte == b'\r')
            );
            assert!(template.location(fill).as_bytes().is_ascii());
        }
        Err(error) => inside(error),
    }
    match Source::parse(text) {
        Ok(source) => assert_eq!(Source::parse(&source.words()), Ok(source)),
        Err(error) => inside(error),
    }
    if let Err(error) = parse_digest(text) {
        inside(error);
    }
}

/// Key files and stored keys never upset anything.
pub(crate) fn keys(data: &[u8]) {
    let _ = policy_keys::words(data, false);
    let _ = policy_keys::words(data, true);
    for algorithms in [
        &[Signature::RS256, Signature::ES256][..],
        &[Signature::HS256],
    ] {
        let settings = JwtSettings {
            algorithms: algorithms.to_vec(),
            ..JwtSettings::default()
        };
        if let Ok(policy) = JwtPolicy::new(settings, data) {
            assert!(policy.verify(data, 0).is_err());
        }
    }
}

/// A whole request, `METHOD URI` and header lines, from its bytes to its claims.
pub(crate) fn request(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let space = first.iter().position(|byte| *byte == b' ').unwrap_or(0);
    let Ok(method) = Method::from_bytes(&first[..space]) else {
        return;
    };
    let Ok(uri) = Uri::try_from(first.get(space + 1..).unwrap_or_default()) else {
        return;
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        let value = line.get(colon + 1..).unwrap_or_default();
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(&line[..colon]),
            HeaderValue::from_bytes(value),
        ) {
            headers.append(name, value);
        }
    }
    let peer = Peer {
        address: "10.0.0.1".parse().ok(),
        port: 1,
        tls: false,
        unnamed: false,
    };
    let policy = &*POLICY;
    let Ok(request) = policy.describe(None, &method, &uri, &headers, peer, None) else {
        return;
    };
    let told = policy.explain(&request, 1_700_000_000, Some(0));
    let Some(matched) = policy.route(&request) else {
        assert!(
            !told
                .routes
                .iter()
                .any(|fate| matches!(fate, RouteFate::Taken | RouteFate::LessSpecific))
        );
        return;
    };
    assert_eq!(told.routes[matched.route], RouteFate::Taken);
    if let Ok(who) = policy.identify(&matched, &request, 1_700_000_000) {
        let claims = policy.claims(&matched, &who, &headers, Some(0));
        assert_eq!(
            claims.list(&policy.limits).len(),
            policy.routes[matched.route].limits.len()
                - told
                    .limits
                    .iter()
                    .filter(|limit| limit.skipped.is_some())
                    .count()
        );
        assert!(
            claims
                .list(&policy.limits)
                .iter()
                .all(|claim| claim.key.len() < 2048)
        );
    }
}

/// What the reader of heads makes of `data` when it comes in pieces of `size`, and how much of it is left.
fn read_head(data: &[u8], size: usize) -> (Result<Option<Head>, BadHead>, usize) {
    let limits = Limits {
        bytes: 2048,
        fields: 32,
        target: 512,
    };
    let (mut reader, mut input, mut fed) = (Reader::new(), bytes::BytesMut::new(), 0);
    for piece in data.chunks(size) {
        input.extend_from_slice(piece);
        fed += piece.len();
        match reader.read(&mut input, limits) {
            Ok(None) => {}
            outcome => return (outcome, input.len() + data.len() - fed),
        }
    }
    (Ok(None), input.len())
}

/// A head on the wire is the same however its bytes are cut.
fn wire(data: &[u8]) -> Option<Head> {
    let told = |outcome: &Result<Option<Head>, BadHead>| format!("{outcome:?}");
    let (whole, left) = read_head(data, data.len().max(1));
    for size in [1, 7] {
        let (pieces, rest) = read_head(data, size);
        assert_eq!(told(&pieces), told(&whole), "in pieces of {size}");
        assert!(rest == left || !matches!(whole, Ok(Some(_))));
    }
    whole.ok()?
}

/// A request's head as it is read: what is admitted has one Host, a target in origin form, and after the hop-by-hop fields
/// are gone nothing that speaks of framing.
pub(crate) fn head(data: &[u8]) {
    wire(data);
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let version = match first.first() {
        Some(b'2') => Version::HTTP_2,
        Some(b'0') => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    if version != Version::HTTP_2 {
        let line = first.get(1..).unwrap_or_default();
        let number: &[u8] = if version == Version::HTTP_10 {
            b" HTTP/1.0"
        } else {
            b" HTTP/1.1"
        };
        let mut text = [line, number].concat();
        for field in lines {
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(field);
        }
        text.extend_from_slice(b"\r\n\r\n");
        if let Some(head) = wire(&text) {
            admitted(Request::from_parts(head.parts, ()));
        }
        return;
    }
    let space = first.iter().position(|byte| *byte == b' ').unwrap_or(0);
    let mut request = Request::new(());
    *request.version_mut() = version;
    let Ok(method) = Method::from_bytes(first.get(1..space).unwrap_or_default()) else {
        return;
    };
    let Ok(uri) = Uri::try_from(first.get(space + 1..).unwrap_or_default()) else {
        return;
    };
    (*request.method_mut(), *request.uri_mut()) = (method, uri);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        let value = line.get(colon + 1..).unwrap_or_default();
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(&line[..colon]),
            HeaderValue::from_bytes(value),
        ) {
            request.headers_mut().append(name, value);
        }
    }
    admitted(request);
}

fn admitted(mut request: Request<()>) {
    let version = request.version();
    let mut trailers = request.headers().clone();
    clean_trailers(&mut trailers);
    assert!(
        [
            "content-length",
            "transfer-encoding",
            "host",
            "authorization"
        ]
        .iter()
        .all(|n| !trailers.contains_key(*n))
    );
    let seen = RequestHeaders::of(request.headers());
    if normalise(&mut request, &seen).is_err() {
        return;
    }
    let hosts: Vec<&HeaderValue> = request.headers().get_all("host").iter().collect();
    assert!(hosts.len() == 1 || (version == Version::HTTP_10 && hosts.is_empty()));
    assert!(hosts.iter().all(|host| is_host(host.as_bytes())));
    assert!(request.uri().authority().is_none());
    assert!(request.uri().path().starts_with('/') || request.uri().path() == "*");
    let mut again = Request::new(());
    (*again.version_mut(), *again.method_mut()) = (version, request.method().clone());
    (*again.uri_mut(), *again.headers_mut()) = (request.uri().clone(), request.headers().clone());
    let seen = RequestHeaders::of(again.headers());
    assert!(
        normalise(&mut again, &seen).is_ok(),
        "what is admitted is admitted again"
    );
    assert_eq!(again.headers(), request.headers());

    let host = request.headers().get("host").cloned();
    strip_hop_by_hop(request.headers_mut());
    assert_eq!(
        request.headers().get("host"),
        host.as_ref(),
        "no peer lists Host away"
    );
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ] {
        assert!(!request.headers().contains_key(name), "{name}");
    }
    let peer = Peer {
        address: "192.0.2.1".parse().ok(),
        port: 1,
        tls: false,
        unnamed: false,
    };
    let present = RequestHeaders::of(request.headers()).present;
    set_forwarding(request.headers_mut(), present, &peer, host, false);
    assert_eq!(request.headers()["x-forwarded-for"], "192.0.2.1");
    assert!(!request.headers().contains_key("forwarded"));
    assert!(
        !request
            .headers()
            .keys()
            .any(|name| matches!(name.as_str(), "x_forwarded_for" | "content_length"))
    );
}

/// An upstream's answer, however it is cut, is the same answer or none; what is one says in one way where it ends.
pub(crate) fn answer(data: &[u8]) {
    let Some((first, said)) = data.split_first() else {
        return;
    };
    let (size, head_only) = (usize::from(first & 63) + 1, first & 64 != 0);
    let whole = read_answer(said, said.len().max(1), head_only, false);
    let pieces = read_answer(said, size, head_only, false);
    assert_eq!(whole, pieces);
    let verbatim = read_answer(said, size, head_only, true);
    let meant = |(status, _, body): &(u16, HeaderMap, Vec<u8>)| (*status, body.clone());
    assert_eq!(
        whole.as_ref().map(meant),
        verbatim.as_ref().map(meant),
        "whether fields are taken apart or not"
    );
    let Some((status, headers, body)) = whole else {
        return;
    };
    assert!(
        status == 101 || status >= 200,
        "interim answers are passed over"
    );
    assert!(headers.get_all("content-length").iter().count() <= 1);
    assert!(
        headers
            .values()
            .all(|value| !value.as_bytes().iter().any(|byte| b"\r\n\0".contains(byte)))
    );
    let bodiless = head_only || matches!(status, 101 | 204 | 304);
    let length = headers
        .get("content-length")
        .filter(|_| !bodiless && !headers.contains_key("transfer-encoding"));
    if let Some(length) = length {
        assert_eq!(
            length.to_str().ok().and_then(|length| length.parse().ok()),
            Some(body.len())
        );
    }
    assert!(!bodiless || body.is_empty());
}

/// The final answer in `said`, read in pieces of `size` bytes; `None` if there is none.
fn read_answer(
    said: &[u8],
    size: usize,
    head_only: bool,
    verbatim: bool,
) -> Option<(u16, HeaderMap, Vec<u8>)> {
    let mut context = Context::from_waker(Waker::noop());
    let mut client = Client::<_, http_body_util::Empty<bytes::Bytes>>::new(Pieces(said, size));
    let method = if head_only { Method::HEAD } else { Method::GET };
    client.ask(
        &method,
        &Uri::from_static("/"),
        &mut HeaderMap::new(),
        None,
        false,
    );
    if verbatim {
        client.allow_verbatim();
    }
    let Poll::Ready(outcome) =
        client.poll_response(&mut context, |status, _| assert!(status.is_informational()))
    else {
        panic!("bytes at hand are never awaited")
    };
    let head = outcome.ok()?;
    let mut body = Vec::new();
    loop {
        match client.poll_body(&mut context, true) {
            Poll::Pending => panic!("bytes at hand are never awaited"),
            Poll::Ready(None) => return Some((head.status.as_u16(), head.headers, body)),
            Poll::Ready(Some(frame)) => body.extend(frame.ok()?.into_data().unwrap_or_default()),
        }
    }
}

/// Bytes that come so many at a time, and then end. What is written to it is gone.
struct Pieces<'d>(&'d [u8], usize);

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let length = self.1.min(self.0.len()).min(buf.remaining());
        let (piece, rest) = self.0.split_at(length);
        buf.put_slice(piece);
        self.0 = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A PROXY protocol header is read to its end and not beyond, whatever follows.
pub(crate) fn proxy_protocol(data: &[u8]) {
    let (outcome, length) = read_header(data);
    let Ok(source) = outcome else { return };
    assert!(length <= 16 + 4096);
    let behind = [&data[..length], b"GET / HTTP/1.1\r\n\r\n"].concat();
    let (again, same) = read_header(&behind);
    assert_eq!((again.expect("the same header"), same), (source, length));
}

/// What a header tells, and how many bytes it took.
fn read_header(data: &[u8]) -> (std::io::Result<Option<std::net::SocketAddr>>, usize) {
    let mut rest = data;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let outcome = std::pin::pin!(read(&mut rest)).as_mut().poll(&mut context);
    let std::task::Poll::Ready(outcome) = outcome else {
        panic!("bytes at hand are never awaited")
    };
    (outcome, data.len() - rest.len())
}

/// A number in a body is found wherever the body is cut, and where it is JSON it is the number there.
pub(crate) fn tail(data: &[u8]) {
    let Some((cut, body)) = data.split_first() else {
        return;
    };
    let path = Arc::new(Paths::one(vec!["usage".to_owned(), "total".to_owned()]));
    for carrier in [Carrier::Json, Carrier::Events] {
        let mut whole = FieldScanner::new(carrier, &path, &[]);
        whole.feed(body);
        let mut pieces = FieldScanner::new(carrier, &path, &[]);
        body.chunks(usize::from(*cut).max(1))
            .for_each(|piece| pieces.feed(piece));
        let found = whole.finish()[0];
        assert_eq!(pieces.finish()[0], found);
        // A name may be spelt with escapes: then it is passed over.
        if carrier == Carrier::Json
            && !body.contains(&b'\\')
            && let Ok(value) = serde_json::from_slice::<serde_json::Value>(body)
            && let Some(number) = value["usage"]["total"].as_u64()
        {
            assert_eq!(found, Some(number), "{}", String::from_utf8_lossy(body));
        }
    }
}

/// A request's body is accepted where it is valid JSON, and says the same wherever it is cut.
pub(crate) fn request_json(data: &[u8]) {
    let Some((cut, body)) = data.split_first() else {
        return;
    };
    let paths = Arc::new(Paths::one(vec!["a".to_owned(), "b".to_owned()]));
    let read = |size: usize| {
        let mut reader = json::Reader::request(&paths, paths.all(), paths.all());
        body.chunks(size.max(1))
            .for_each(|piece| reader.feed(piece));
        // Of several flaws the first that is reached is reported, which depends on the cut.
        reader.finish().ok()
    };
    let whole = read(body.len());
    assert_eq!(read(usize::from(*cut)), whole);
    if whole.is_some() {
        let valid = serde_json::from_slice::<serde::de::IgnoredAny>(body);
        assert!(valid.is_ok(), "{}", String::from_utf8_lossy(body));
    }
}

/// A line of the access log is one line of valid text, whatever strangers send.
pub(crate) fn log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let charges = [Charge {
        limit: &text,
        key: data,
        candidate: true,
        cost: 1,
        settled: Some(5),
        remaining: 0,
        outcome: "deny",
    }];
    let record = Record {
        id: "0",
        method: "GET",
        path: &text,
        host: data,
        protocol: "HTTP/1.1",
        route: &text,
        status: 429,
        caller: &text,
        tier: &text,
        charges: &charges,
        upstream: &text,
        user_agent: data,
        referer: data,
        ..Record::default()
    };
    for keys in [Keys::Plain, Keys::Hashed(KeyNames::new([7; 16]))] {
        let line = record.line(Format::Json, &keys);
        assert_eq!(
            line.iter().position(|byte| *byte == b'\n'),
            Some(line.len() - 1)
        );
        let value: serde_json::Value = serde_json::from_slice(&line).expect("valid JSON");
        assert_eq!(value["path"].as_str().unwrap_or_default(), text);
    }
    let line = record.line(Format::Combined, &Keys::Plain);
    assert_eq!(
        line.iter().position(|byte| *byte == b'\n'),
        Some(line.len() - 1)
    );
    assert!(
        line[..line.len() - 1]
            .iter()
            .all(|byte| (0x20..0x7f).contains(byte))
    );
    assert_eq!(
        line.iter().filter(|byte| **byte == b'"').count(),
        6,
        "three quoted fields"
    );
}

/// A file is read or refused with its mistakes; it never upsets anything.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // Other files are none of this.
    if ["include", "file", "path", "certificate", "key", "ca"]
        .iter()
        .any(|word| text.contains(word))
    {
        return;
    }
    let env = |name: &str| (name == "SET").then(|| "value".to_owned());
    match tollgate_config::parse(
        text,
        "gateway.toml",
        &env,
        Timestamp::from_micros(1_700_000_000_000_000),
    ) {
        Ok(_) => {}
        Err(error) => {
            assert!(error.errors() > 0);
            assert!(error.render(false).contains("error"));
        }
    }
}

/// The policy requests are fuzzed against.
pub(crate) fn policy() -> &'static Policy {
    &POLICY
}

/// Every kind of source, host and segment.
static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let sources = [
        "address",
        "header:x-api-key",
        "bearer",
        "basic",
        "cookie:sid",
        "query:key",
        "path:id",
        "jwt:sub",
    ];
    let mut identities: Vec<Identity> = sources
        .iter()
        .map(|source| Identity {
            name: (*source).into(),
            sources: vec![Source::parse(source).expect("a source")],
            when_missing: WhenMissing::UseAddress,
            when_unknown: WhenUnknown::Accept,
            first_of: false,
            address_tier: None,
            callers: (*source == "header:x-api-key")
                .then(|| arc_swap::ArcSwap::from_pointee(Callers::default())),
            jwt: None,
        })
        .collect();
    let settings = JwtSettings {
        algorithms: vec![Signature::HS256],
        ..JwtSettings::default()
    };
    identities[7].jwt = JwtPolicy::new(settings, &[b'k'; 32]).ok();
    identities[5].when_missing = WhenMissing::Skip;
    let rules: Vec<Rule> = (0..identities.len())
        .map(|index| rule(index, &sources))
        .collect();
    let route = |pattern: &str, limits: std::ops::Range<usize>| Route {
        name: pattern.into(),
        pattern: Pattern::parse(pattern).expect("a pattern"),
        target: Target::Echo,
        limits: limits.map(|rule| RouteLimit { rule, cost: None }).collect(),
        over_limit: Vec::new(),
        strip_prefix: None,
        add_prefix: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        refusal: None,
        body_max: None,
    };
    let routes = vec![
        route("/{id}", 0..8),
        route("GET /a/{id}/c", 0..7),
        route("/a/b/**", 0..3),
        route("*.example.com/**", 0..2),
        route("example.com/{x}/{id}", 0..8),
        route("POST /**", 0..1),
    ];
    let address = AddressPolicy {
        trusted_proxies: "10.0.0.0/8".parse::<ipnet::IpNet>().into_iter().collect(),
        ipv6_prefix: 64,
        ..AddressPolicy::default()
    };
    let responses = Responses {
        headers: Vec::new(),
        reset: Reset::Seconds,
        refusal: None,
    };
    let parts = PolicyParts {
        address,
        identities,
        rules,
        upstreams: Vec::new(),
        routes,
        domains: tollgate_policy::Domains::default(),
        responses,
        egress: false,
        keeps_slashes: false,
        body: tollgate_policy::BodySettings::default(),
    };
    Policy::build(parts).expect("a policy")
});

fn rule(identity: usize, names: &[&str]) -> Rule {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount: 10,
        period: Micros::from_secs(60),
        burst: None,
        align: Align::default(),
        debt: 0,
        max_wait: Micros::ZERO,
        shared: false,
    };
    let live = Limit {
        name: names[identity].into(),
        index: 0,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(&terms).expect("ten a minute"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::Allow,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    };
    Rule {
        name: names[identity].into(),
        live: Arc::new(live),
        tiers: Vec::new(),
        candidate: None,
        scope: Scope::Identities(if identity == 0 {
            vec![ScopePart::Address]
        } else {
            vec![ScopePart::Identity(identity), ScopePart::Address]
        }),
        cost: Cost::Fixed(1),
        settle: None,
        prices: None,
        count: Count::All,
        refund_on: Vec::new(),
        ceiling: false,
        refuse_status: http::StatusCode::TOO_MANY_REQUESTS,
        max_wait: Micros::ZERO,
    }
}

/// Files of other gateways: the first byte says whose. What is made of them is a good configuration; a defect of the
/// translation is the only error that is none of the file's.
pub(crate) fn import(data: &[u8]) {
    use tollgate_import::{ImportError, Peer, SourceFile, import};
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let peers = [
        Peer::Nginx,
        Peer::Ingress,
        Peer::Traefik,
        Peer::Kong,
        Peer::Envoy,
    ];
    let text = String::from_utf8_lossy(rest);
    let source = SourceFile {
        name: if first & 8 == 0 { "a.yaml" } else { "a.toml" }.to_owned(),
        // The smoke test runs thousands of these.
        text: text.chars().take(2_000).collect(),
    };
    let peer = peers[usize::from(first & 7) % peers.len()];
    match import(&[source], peer, &|_| Ok(Vec::new())) {
        Ok(made) => assert!(!made.report().contains(['\u{202e}', '\u{1b}'])),
        Err(ImportError::Unsound(what)) => panic!("{what}"),
        Err(_) => {}
    }
}
