//! `/v1/decide`: decisions about several requests of a program, each by itself or all together.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::json::Refused;
use super::original::{Facts, Original, origin_form};
use tollgate_net::listener::Address;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    requests: Vec<Written>,
    #[serde(default)]
    pub(super) together: bool,
}

/// One request as written: by what its client sent, or by the limit it is charged on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    method: Option<String>,
    scheme: Option<String>,
    host: Option<String>,
    path: Option<String>,
    headers: Option<Headers>,
    client: Option<IpAddr>,
    limit: Option<String>,
    key: Option<Values>,
    cost: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a key is a text or a list of texts")]
enum Values {
    One(String),
    Several(Vec<String>),
}

impl Values {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(value) => vec![value],
            Self::Several(values) => values,
        }
    }
}

pub(super) enum Item {
    Request(Box<Original>),
    Limit(OfLimit),
}

#[derive(Debug)]
pub(super) struct OfLimit {
    pub(super) limit: String,
    /// The values of the caller's key; none for a limit that all callers share.
    pub(super) key: Vec<String>,
    /// `None`: what the limit says.
    pub(super) cost: Option<u64>,
}

impl Batch {
    pub(super) fn items(self, listener: &Arc<Address>) -> Result<Vec<Item>, Refused> {
        if self.requests.is_empty() || self.requests.len() > REQUESTS_MAX {
            let detail = format!("`requests` must have 1 to {REQUESTS_MAX} entries.");
            return Err(Refused::bad(detail));
        }
        let numbered = self.requests.into_iter().enumerate();
        numbered
            .map(|(place, written)| {
                written
                    .item(listener)
                    .map_err(|what| Refused::bad(format!("requests[{place}]: {what}.")))
            })
            .collect()
    }
}

impl Written {
    fn item(self, listener: &Arc<Address>) -> Result<Item, String> {
        match (self.limit, self.method) {
            (Some(_), Some(_)) => Err("`limit` and `method` exclude each other".to_owned()),
            (None, None) => Err("`method` and `path` are missing, or `limit`".to_owned()),
            (Some(limit), None) => {
                let of_request = [
                    (self.path.is_some(), "path"),
                    (self.scheme.is_some(), "scheme"),
                    (self.host.is_some(), "host"),
                    (self.headers.is_some(), "headers"),
                    (self.client.is_some(), "client"),
                ];
                if let Some((_, name)) = of_request.into_iter().find(|(present, _)| *present) {
                    return Err(format!("`{name}` has no meaning beside `limit`"));
                }
                Ok(Item::Limit(OfLimit {
                    limit,
                    key: self.key.map(Values::list).unwrap_or_default(),
                    cost: self.cost,
                }))
            }
            (None, Some(method)) => {
                if self.key.is_some() || self.cost.is_some() {
                    return Err("`key` and `cost` belong to `limit`".to_owned());
                }
                let method = Method::from_bytes(method.as_bytes())
                    .ok()
                    .filter(|method| *method != Method::CONNECT);
                let path = self.path.ok_or("`path` is missing")?;
                let host = self
                    .host
                    .map(|host| HeaderValue::from_str(&host))
                    .transpose();
                let https = match self.scheme.as_deref() {
                    None | Some("http") => false,
                    Some("https") => true,
                    Some(_) => return Err("`scheme` must be `http` or `https`".to_owned()),
                };
                let facts = Facts {
                    method: method.ok_or("`method` is not a method of HTTP")?,
                    target: origin_form(path.as_bytes())
                        .map_err(|_| "`path` must begin with one slash; a query may follow")?,
                    host: host.map_err(|_| "`host` is not a host")?,
                    https,
                    client: self.client,
                };
                let headers = self.headers.map(|headers| headers.0).unwrap_or_default();
                let original = Original::new(facts, headers, listener);
                Ok(Item::Request(Box::new(original)))
            }
        }
    }
}

/// Headers of a request: a value or several for each name.
#[derive(Debug)]
struct Headers(HeaderMap);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = HeaderMap::new();
                while let Some((name, values)) = map.next_entry::<String, Values>()? {
                    if headers.keys_len() >= HEADERS_MAX {
                        return Err(A::Error::custom("too many headers"));
                    }
                    let name = HeaderName::from_bytes(name.as_bytes()).map_err(A::Error::custom)?;
                    if headers.contains_key(&name) {
                        let twice = format!("the header `{name}` is written twice");
                        return Err(A::Error::custom(twice));
                    }
                    for value in values.list() {
                        let value = HeaderValue::from_str(value.trim_matches([' ', '\t']))
                            .map_err(A::Error::custom)?;
                        let added = headers.try_append(&name, value).map_err(A::Error::custom);
                        added?;
                    }
                }
                Ok(Headers(headers))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

const HEADERS_MAX: usize = 1_000;

const REQUESTS_MAX: usize = 100;
