//! Rebuilds the request that another program received, from what the program says of it. A fact that
//! is stated twice must be stated equally; none is guessed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, request};

use crate::headers::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use tollgate_net::listener::Address;
use tollgate_net::server::{ConnInfo, TlsInfo};
use tollgate_policy::identity::address::{AddressPolicy, fold, parse_hop};
use tollgate_response::Problem;

const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

pub(crate) struct Original {
    /// Without its body, which the program keeps.
    pub(crate) request: Request<()>,
    /// A connection with the client's address as its peer.
    pub(crate) connection: ConnInfo,
}

/// What is known of such a request besides its headers.
pub(super) struct Facts {
    pub(super) method: Method,
    pub(super) target: Uri,
    /// `None`: it names no host.
    pub(super) host: Option<HeaderValue>,
    pub(super) https: bool,
    /// `None`: it has no address.
    pub(super) client: Option<IpAddr>,
}

impl Original {
    /// The request with these facts and `headers`, without headers that are of the request for the decision.
    pub(super) fn new(facts: Facts, mut headers: HeaderMap, listener: &Arc<Address>) -> Self {
        for name in NOT_OF_THE_ORIGINAL {
            headers.remove(name);
        }
        // A request without a host can only be one of HTTP/1.0.
        let version = match facts.host {
            Some(_) => Version::HTTP_11,
            None => Version::HTTP_10,
        };
        if let Some(host) = facts.host {
            headers.insert(HOST, host);
        }
        let mut request = Request::new(());
        *request.method_mut() = facts.method;
        *request.uri_mut() = facts.target;
        *request.version_mut() = version;
        *request.headers_mut() = headers;
        let peer = facts.client.map(|client| SocketAddr::new(client, 0));
        let connection = ConnInfo {
            peer,
            unnamed: false,
            listener: Arc::clone(listener),
            tls: facts.https.then(TlsInfo::default),
            http2: false,
            interim: None,
            window: None,
        };
        Self {
            request,
            connection,
        }
    }

    /// The request that a proxy asks about, as NGINX, Traefik, Caddy and others state it.
    pub(super) fn of_proxy(
        policy: &AddressPolicy,
        listener: &Arc<Address>,
        asked: request::Parts,
    ) -> Result<Self, Problem> {
        let mut headers = asked.headers;
        let url = once(&headers, &X_ORIGINAL_URL, Problem::ASKED_TARGET)?
            .map(absolute)
            .transpose()?;
        let facts = Facts {
            method: method(&headers)?,
            target: target(&headers, url.as_ref())?,
            host: host(&headers, url.as_ref())?,
            https: is_https(&headers, url.as_ref())?,
            client: Some(client(policy, &headers)?),
        };
        if let Some(name) = policy.header.of_client() {
            headers.remove(name);
        }
        Ok(Self::new(facts, headers, listener))
    }
}

/// Headers that are of the request for a decision, or of its connection. The client's address is
/// that of the connection, so no header names it any more.
const NOT_OF_THE_ORIGINAL: [HeaderName; 18] = [
    X_ORIGINAL_METHOD,
    X_ORIGINAL_URI,
    X_ORIGINAL_URL,
    X_FORWARDED_METHOD,
    X_FORWARDED_URI,
    X_FORWARDED_FOR,
    X_REAL_IP,
    FORWARDED,
    HOST,
    CONNECTION,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    TE,
    TRAILER,
    EXPECT,
    UPGRADE,
    VIA,
    HeaderName::from_static("keep-alive"),
];

fn once<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    problem: Problem,
) -> Result<Option<&'h HeaderValue>, Problem> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (first, None) => Ok(first),
        _ => Err(problem),
    }
}

/// The one value that all of these state, as far as they state any.
fn agreed<T: PartialEq>(
    stated: impl IntoIterator<Item = Option<T>>,
    problem: Problem,
) -> Result<Option<T>, Problem> {
    let mut stated = stated.into_iter().flatten();
    let first = stated.next();
    if stated.any(|other| Some(&other) != first.as_ref()) {
        return Err(problem);
    }
    Ok(first)
}

fn method(headers: &HeaderMap) -> Result<Method, Problem> {
    const PROBLEM: Problem = Problem::ASKED_METHOD;
    let stated = [
        once(headers, &X_ORIGINAL_METHOD, PROBLEM)?,
        once(headers, &X_FORWARDED_METHOD, PROBLEM)?,
    ];
    let stated = agreed(stated, PROBLEM)?.ok_or(PROBLEM)?;
    let method = Method::from_bytes(stated.as_bytes()).map_err(|_| PROBLEM)?;
    // A tunnel is not a request that limits could be applied to.
    if method == Method::CONNECT {
        return Err(PROBLEM);
    }
    Ok(method)
}

fn target(headers: &HeaderMap, url: Option<&Uri>) -> Result<Uri, Problem> {
    const PROBLEM: Problem = Problem::ASKED_TARGET;
    let path = |name| -> Result<Option<Uri>, Problem> {
        once(headers, name, PROBLEM)?
            .map(|value| origin_form(value.as_bytes()))
            .transpose()
    };
    let of_url = url.map(|url| {
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        // The path of a URL may be empty before its query.
        let path = if path.starts_with('?') {
            format!("/{path}")
        } else {
            path.to_owned()
        };
        origin_form(path.as_bytes())
    });
    let stated = [
        path(&X_ORIGINAL_URI)?,
        path(&X_FORWARDED_URI)?,
        of_url.transpose()?,
    ];
    agreed(stated, PROBLEM)?.ok_or(PROBLEM)
}

/// A target in origin form whose path begins with one slash, or `*`.
pub(super) fn origin_form(text: &[u8]) -> Result<Uri, Problem> {
    // The proxy forwards the target itself, and to many servers `//a/login` is `/login` on a host `a`.
    let has_form = text.starts_with(b"/") && !text.starts_with(b"//") || text == b"*";
    // Parsing would remove a fragment, which belongs in no request.
    if !has_form || text.contains(&b'#') {
        return Err(Problem::ASKED_TARGET);
    }
    let uri = target_of(text)?;
    if uri.authority().is_some() {
        return Err(Problem::ASKED_TARGET);
    }
    Ok(uri)
}

fn target_of(text: &[u8]) -> Result<Uri, Problem> {
    let text = Bytes::copy_from_slice(text);
    tollgate_http1::request::target(text).ok_or(Problem::ASKED_TARGET)
}

fn absolute(text: &HeaderValue) -> Result<Uri, Problem> {
    let uri = target_of(text.as_bytes())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_http && uri.authority().is_some() && !text.as_bytes().contains(&b'#') {
        Ok(uri)
    } else {
        Err(Problem::ASKED_TARGET)
    }
}

fn host(headers: &HeaderMap, url: Option<&Uri>) -> Result<Option<HeaderValue>, Problem> {
    const PROBLEM: Problem = Problem::ASKED_HOST;
    let stated = once(headers, &X_FORWARDED_HOST, PROBLEM)?.cloned();
    let authority = url
        .and_then(Uri::authority)
        .map(|authority| HeaderValue::from_str(authority.as_str()).map_err(|_| PROBLEM));
    agreed([stated, authority.transpose()?], PROBLEM)
}

fn is_https(headers: &HeaderMap, url: Option<&Uri>) -> Result<bool, Problem> {
    const PROBLEM: Problem = Problem::ASKED_SCHEME;
    let stated = once(headers, &X_FORWARDED_PROTO, PROBLEM)?.map(|scheme| {
        match scheme.as_bytes() {
            // Traefik has these words for a WebSocket.
            b"http" | b"ws" => Ok(false),
            b"https" | b"wss" => Ok(true),
            _ => Err(PROBLEM),
        }
    });
    let of_url = url.map(|url| url.scheme_str() == Some("https"));
    Ok(agreed([stated.transpose()?, of_url], PROBLEM)?.unwrap_or(false))
}

/// The client's address: from the forwarding headers that `[address]` names, of which the program
/// wrote the last entry; or from X-Real-IP. Both must name the same client.
fn client(policy: &AddressPolicy, headers: &HeaderMap) -> Result<IpAddr, Problem> {
    const PROBLEM: Problem = Problem::ASKED_CLIENT;
    let real = once(headers, &X_REAL_IP, PROBLEM)?
        .map(|value| parse_hop(value.as_bytes()).map(fold).ok_or(PROBLEM))
        .transpose()?;
    let forwarded = policy.client_of(None, headers).map_err(|_| PROBLEM)?;
    // A header that is there and names no address must not be passed over.
    if forwarded.is_none() && policy.is_told(headers) {
        return Err(PROBLEM);
    }
    agreed([forwarded, real], PROBLEM)?.ok_or(PROBLEM)
}
