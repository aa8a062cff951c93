//! A record as the policy wants to see a request: a URI, headers, an address.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Uri};

use crate::classes::Interner;
use crate::log::Record;
use tollgate_policy::descriptor::normal_host;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) host: String,
    pub(crate) headers: HeaderMap,
    pub(crate) client: Option<IpAddr>,
    pub(crate) body: Option<u64>,
}

/// Clients that a log calls by name: each name has an address of its own.
#[derive(Debug, Default)]
pub(crate) struct Names(Interner);

impl Names {
    pub(crate) fn address(&mut self, client: &[u8]) -> IpAddr {
        if let Some(address) = std::str::from_utf8(client)
            .ok()
            .and_then(|text| text.parse().ok())
        {
            return address;
        }
        let index = self.0.number(client);
        // No client has an address in 100::/8; the name's number is in bits that every prefix length keeps apart.
        let index = index & 0xff_ffff;
        IpAddr::V6(Ipv6Addr::from(u128::from(0x0100_0000 | index) << 96))
    }

    /// The name to which an address was given.
    pub(crate) fn name(&self, address: Ipv6Addr) -> Option<String> {
        let bits = u128::from(address);
        if bits >> 120 != 1 || bits << 32 != 0 {
            return None;
        }
        let index = u32::try_from((bits >> 96) & 0xff_ffff).ok()?;
        let name = (index as usize) < self.0.len();
        let name = name.then(|| self.0.text(index))?;
        Some(String::from_utf8_lossy(name).into_owned())
    }
}

impl Request {
    /// `wanted`: the headers that some policy looks at.
    pub(crate) fn new(
        record: &Record<'_>,
        wanted: &HashSet<HeaderName>,
        names: &mut Names,
    ) -> Option<Self> {
        let mut headers = HeaderMap::new();
        if !wanted.is_empty() {
            for (name, value) in &record.headers {
                if let Ok(name) = HeaderName::from_bytes(name)
                    && wanted.contains(&name)
                    && let Ok(value) = HeaderValue::from_bytes(value)
                {
                    headers.append(name, value);
                }
            }
            if let Some(user) = &record.user
                && wanted.contains(&AUTHORIZATION)
                && !headers.contains_key(AUTHORIZATION)
            {
                headers.insert(AUTHORIZATION, basic(user)?);
            }
        }
        let host = record.host.as_deref().unwrap_or_default();
        let host = std::str::from_utf8(host).ok()?;
        let client = record.client.as_ref().or(record.key.as_ref());
        Some(Self {
            method: Method::from_bytes(&record.method).ok()?,
            uri: uri(&record.target)?,
            host: normal_host(host).ok()?.into_owned(),
            headers,
            client: client.map(|client| names.address(client)),
            body: record.received,
        })
    }
}

/// The target as a URI; what cannot stand in one is escaped, as browsers do.
fn uri(target: &[u8]) -> Option<Uri> {
    let target = if target.starts_with(b"/") || target == b"*" {
        Cow::Borrowed(target)
    } else {
        let (_, path) = crate::log::split_url(target);
        if !path.starts_with(b"/") {
            return None;
        }
        Cow::Owned(path.to_vec())
    };
    if let Ok(path) = PathAndQuery::try_from(&*target) {
        return Some(Uri::from(path));
    }
    let mut escaped = Vec::with_capacity(target.len() + 16);
    for &byte in &*target {
        if byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'"' | b'<' | b'>' | b'`' | b'#' | b'{' | b'}' | b'|' | b'\\' | b'^'
            )
        {
            escaped.push(byte);
        } else {
            let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
            escaped.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    PathAndQuery::try_from(escaped).ok().map(Uri::from)
}

/// The header of a user whose password is not known.
fn basic(user: &[u8]) -> Option<HeaderValue> {
    let text = format!("Basic {}", STANDARD.encode([user, b":"].concat()));
    HeaderValue::try_from(text).ok()
}
