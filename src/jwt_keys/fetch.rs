//! Fetches the keys of an issuer over HTTP/1.1: the JWKS document, found through the issuer's OpenID
//! configuration where that is written. Certificates are always verified; where a provider leads to
//! is checked before each connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, LOCATION};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::outbound::{Stream, exchange, over_tls};
use tollgate_policy::identity::jwt::{KeysUrl, is_of_this_machine, may_be_fetched, without_query};

pub(super) async fn keys(from: &KeysUrl, tls: &Arc<ClientConfig>) -> Result<Bytes, String> {
    let document = get(&from.url, from, tls).await?;
    let Some(issuer) = &from.issuer else {
        return Ok(document);
    };
    let url = jwks_uri(issuer, &document)
        .map_err(|why| format!("{}: {why}", without_query(&from.url)))?;
    get(&url, from, tls).await
}

/// The URL of the keys, as an OpenID configuration says it.
fn jwks_uri(issuer: &str, document: &[u8]) -> Result<Uri, String> {
    let configuration: Value = serde_json::from_slice(document)
        .map_err(|error| format!("no OpenID configuration: {error}"))?;
    let text = |key: &str| configuration[key].as_str().unwrap_or_default();
    let (named, url) = (text("issuer"), text("jwks_uri"));
    // OpenID Connect Discovery 4.3: otherwise one issuer could speak for another.
    if named != issuer {
        return Err(format!("it is the configuration of `{named}`"));
    }
    url.parse()
        .map_err(|_| format!("`{url}` is no URL of keys"))
}

enum Answer {
    Document(Bytes),
    Redirect(Uri),
}

/// The document at a URL, or where it redirects to.
async fn get(first: &Uri, from: &KeysUrl, tls: &Arc<ClientConfig>) -> Result<Bytes, String> {
    let mut url = first.clone();
    for _ in 0..=REDIRECTS_MAX {
        let answer = ask(&url, from, tls).await;
        match answer.map_err(|why| format!("{}: {why}", without_query(&url)))? {
            Answer::Document(document) => return Ok(document),
            Answer::Redirect(to) => url = to,
        }
    }
    Err(format!(
        "{}: more than {REDIRECTS_MAX} redirects",
        without_query(first)
    ))
}

async fn ask(url: &Uri, from: &KeysUrl, tls: &Arc<ClientConfig>) -> Result<Answer, String> {
    may_be_fetched(url)?;
    let authority = url.authority().ok_or("it has no host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let written = from.url.host().map(|host| host.trim_matches(['[', ']']));
    let mut others = from.settings.hosts.iter();
    if !written.is_some_and(|one| one.eq_ignore_ascii_case(host))
        && !others.any(|one| one.eq_ignore_ascii_case(host))
    {
        return Err(format!(
            "`{host}` is another host, which `fetch.hosts` does not list"
        ));
    }
    let is_tls = url.scheme_str() == Some("https");
    let port = authority
        .port_u16()
        .unwrap_or(if is_tls { 443 } else { 80 });
    let stream = connect(host, port, from.settings.private_addresses).await?;
    let stream: Stream = if is_tls {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        over_tls(stream, tls, name).await.map_err(in_words)?
    } else {
        Box::pin(stream)
    };
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let request = Request::get(target)
        .header(ACCEPT, "application/json")
        .body(Full::default())
        .map_err(in_words)?;
    let (response, _connection) = exchange(stream, authority.as_str(), request).await?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let to = location.and_then(|location| redirected(url, location));
            return to.map(Answer::Redirect).ok_or_else(|| {
                format!("it responded with {status}, and with no location that can be followed")
            });
        }
        status => return Err(format!("it responded with {status}")),
    }
    let body = Limited::new(response.into_body(), DOCUMENT_MAX)
        .collect()
        .await;
    let body = body.map_err(
        |error| match error.is::<http_body_util::LengthLimitError>() {
            true => format!("its document has more than {} KiB", DOCUMENT_MAX >> 10),
            false => error.to_string(),
        },
    )?;
    Ok(Answer::Document(body.to_bytes()))
}

/// Where a redirect leads: to a whole URL, or to a path of the same server.
fn redirected(url: &Uri, location: &str) -> Option<Uri> {
    let is_path = location.starts_with('/') && !location.starts_with("//");
    let location = location.split('#').next()?;
    let whole = match is_path {
        true => format!("{}://{}{location}", url.scheme_str()?, url.authority()?),
        false => location.to_owned(),
    };
    let is_whole = |to: &Uri| to.scheme().is_some() && to.host().is_some();
    whole.parse::<Uri>().ok().filter(is_whole)
}

/// A connection to one of the addresses of a host. A name that resolves to a private address is
/// refused, unless the file allows it: whoever answers for the name could let the gateway ask
/// servers that are not reachable from outside.
async fn connect(host: &str, port: u16, private: bool) -> Result<TcpStream, String> {
    let found = tokio::net::lookup_host((host, port)).await;
    let found: Vec<SocketAddr> = found
        .map_err(|error| format!("`{host}` is not found: {error}"))?
        .collect();
    let is_written = is_of_this_machine(host) || host.parse::<IpAddr>().is_ok();
    let inside = found.iter().find(|address| is_private(address.ip()));
    if let (Some(address), false, false) = (inside, is_written, private) {
        let address = address.ip();
        return Err(format!(
            "`{host}` is {address}, a private address: fetch.private_addresses = true allows that"
        ));
    }
    let mut why = format!("`{host}` has no address");
    for address in found {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // 0.0.0.0/8 is this machine, 100.64.0.0/10 the inside of a provider (RFC 6598).
            let is_shared = first == 100 && second & 0xc0 == 64;
            first == 0 || is_shared || v4.is_loopback() || v4.is_private() || v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
        }
    }
}

fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const REDIRECTS_MAX: usize = 3;
/// The largest document that is read: far more than 32 keys take, with their certificates.
pub(super) const DOCUMENT_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jwt_keys_addresses_inside_a_network_are_private() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "::",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(
                is_private(private.parse().expect("an address")),
                "{private}"
            );
        }
        for public in ["93.184.216.34", "100.128.0.1", "2606:2800::1", "172.32.0.1"] {
            assert!(!is_private(public.parse().expect("an address")), "{public}");
        }
    }

    #[test]
    fn jwt_keys_redirect_leads_to_a_url_or_to_a_path_of_the_same_server() {
        let url = "https://id.example.com:8443/a/keys".parse().expect("a URL");
        let to = |location| redirected(&url, location).map(|to| to.to_string());
        let other = "https://cdn.example.com/keys?v=1";
        assert_eq!(to(other), Some(other.to_owned()));
        let path = "https://id.example.com:8443/b";
        assert_eq!(to("/b#part"), Some(path.to_owned()));
        for none in ["", "b", "//cdn.example.com/keys", "mailto:a"] {
            assert_eq!(to(none), None, "{none}");
        }
    }
}
