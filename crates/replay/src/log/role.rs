//! What a value of a line stands for, where a format, a mapping or a first line names its columns.

use super::clf::unescaped;
use super::record::{
    Kind, Record, Text, given, number, request_line, seconds, split_url, status, without_port,
};
use super::text::last_hop;
use super::time::Times;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time,
    Client,
    /// `$proxy_add_x_forwarded_for`: X-Forwarded-For with the client behind it.
    Forwarded,
    User,
    Method,
    /// A path or a URL.
    Path,
    Query,
    Request,
    Host,
    Status,
    Sent,
    Received,
    /// How long it took, in seconds with decimals.
    Duration,
    Cost,
    Key,
    Header(String),
    Cookie(String),
    /// An argument of the query.
    Argument(String),
    Other,
}

/// A record whose values are taken one by one.
#[derive(Default)]
pub(super) struct Draft<'a> {
    pub(super) record: Record<'a>,
    query: Option<Text<'a>>,
    /// The host of the URL, where no column has one.
    url_host: Option<Text<'a>>,
    arguments: Vec<u8>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(kind: Kind) -> Self {
        let mut draft = Self::default();
        draft.record.kind = kind;
        draft
    }

    /// Takes a value over; `None`: it is none of its kind.
    pub(super) fn take(&mut self, role: &Role, value: &[u8], times: &Times) -> Option<()> {
        let record = &mut self.record;
        let owned = |value: &[u8]| given(value).map(|value| Text::Owned(value.into_owned()));
        let whole = |value: &[u8]| Text::Owned(unescaped(value).into_owned());
        match role {
            Role::Time => {
                let (at, resolution) = times.any(value)?;
                if record.resolution == 0 || resolution < record.resolution {
                    (record.at, record.resolution) = (at, resolution);
                }
            }
            Role::Client => record.client = owned(value),
            Role::Forwarded => {
                record.client = last_hop(value);
                let before = memchr::memrchr(b',', value).map_or(&[][..], |comma| &value[..comma]);
                record.header("x-forwarded-for", owned(before));
            }
            Role::User => record.user = owned(value),
            Role::Request => {
                let (method, target) = request_line(value)?;
                record.method = method.to_vec().into();
                record.target = whole(target);
            }
            Role::Method => record.method = value.to_vec().into(),
            Role::Path if record.target.is_empty() => {
                let (host, path) = split_url(value);
                record.target = whole(path);
                self.url_host = host.and_then(|host| owned(without_port(host)));
            }
            Role::Query => self.query = owned(value),
            Role::Host if record.host.is_none() => record.host = owned(without_port(value)),
            Role::Status => record.status = Some(status(value)?),
            Role::Sent if record.sent.is_none() => record.sent = number(value),
            Role::Received => record.received = number(value),
            Role::Duration => record.duration = seconds(value),
            Role::Cost => record.cost = Some(number(value)?),
            Role::Key => record.key = owned(value),
            Role::Header(name) if given(value).is_some() => {
                let name = name.clone().into_bytes();
                record.headers.push((name.into(), whole(value)));
            }
            Role::Cookie(name) if given(value).is_some() => {
                let cookie = [name.as_bytes(), b"=", value].concat();
                record.header("cookie", Some(cookie.into()));
            }
            Role::Argument(name) if given(value).is_some() => {
                let mark: &[u8] = if self.arguments.is_empty() { b"" } else { b"&" };
                let argument = [mark, name.as_bytes(), b"=", value].concat();
                self.arguments.extend(argument);
            }
            _ => {}
        }
        Some(())
    }

    /// The record; a query that is logged apart from its path joins it.
    pub(super) fn finished(mut self) -> Record<'a> {
        let query = self.query.as_deref().unwrap_or(&self.arguments);
        let target = &mut self.record.target;
        if !query.is_empty() && !target.contains(&b'?') {
            *target = [&**target, &b"?"[..], query].concat().into();
        }
        self.record.host = self.record.host.or(self.url_host);
        self.record
    }
}
