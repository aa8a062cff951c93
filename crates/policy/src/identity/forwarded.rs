//! Parses forwarding headers: `X-Forwarded-For`, and `Forwarded` (RFC 7239). Does not decide
//! whether they are trusted.

use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use crate::routes::path::Malformed;

/// The entries of X-Forwarded-For over all its lines, nearest (rightmost) first; `None` for an
/// entry that is not an address. Empty elements are skipped (RFC 9110 section 5.6.1).
pub(crate) fn listed_hops(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers
        .get_all(X_FORWARDED_FOR)
        .iter()
        .rev()
        .flat_map(|line| {
            line.as_bytes()
                .rsplit(|byte| *byte == b',')
                .map(<[u8]>::trim_ascii)
                .filter(|entry| !entry.is_empty())
                .map(parse_hop)
        })
}

/// The address of a header that has one alone; `None`: it is absent or no address.
/// Lines that differ are an error: a proxy has passed on a line from outside beside its own.
pub(crate) fn only_hop(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Option<IpAddr>, Malformed> {
    let mut lines = headers.get_all(name).iter();
    let Some(first) = lines.next() else {
        return Ok(None);
    };
    if lines.any(|other| other != first) {
        return Err(Malformed::Client);
    }
    Ok(parse_hop(first.as_bytes()))
}

/// The same for `Forwarded`. Elements are separated outside quotes, so a line is parsed from its
/// start; a malformed line is a single entry that is not an address.
pub(crate) fn forwarded_hops(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers.get_all(FORWARDED).iter().rev().flat_map(|line| {
        parse_forwarded(line.as_bytes())
            .unwrap_or_else(|| vec![None])
            .into_iter()
            .rev()
    })
}

/// The `for` of each element of one Forwarded line (RFC 7239 section 4), in its order; `None` when the line does not
/// parse. Never panics, whatever the bytes.
pub fn parse_forwarded(line: &[u8]) -> Option<Vec<Option<IpAddr>>> {
    let mut hops = Vec::new();
    let mut element = ForwardedElement::default();
    let mut rest = line.trim_ascii_start();
    loop {
        // A pair, or an empty element before a separator.
        if let Some((&first, _)) = rest.split_first()
            && first != b','
            && first != b';'
        {
            let name_end = rest.iter().position(|&byte| !is_token(byte))?;
            let (name, after) = rest.split_at(name_end);
            let after = after.strip_prefix(b"=")?;
            let (value, after) = parse_value(after)?;
            if name.is_empty() {
                return None;
            }
            element.add(name, &value);
            rest = after.trim_ascii_start();
        }
        match rest.split_first() {
            None => {
                hops.extend(element.finish());
                return Some(hops);
            }
            Some((b',', after)) => {
                hops.extend(std::mem::take(&mut element).finish());
                rest = after.trim_ascii_start();
            }
            Some((b';', after)) => rest = after.trim_ascii_start(),
            Some(_) => return None,
        }
    }
}

#[derive(Default)]
struct ForwardedElement {
    pairs: usize,
    fors: usize,
    hop: Option<IpAddr>,
}

impl ForwardedElement {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.pairs += 1;
        if name.eq_ignore_ascii_case(b"for") {
            self.fors += 1;
            self.hop = parse_hop(value);
        }
    }

    /// The element's entry: none for an empty element; not an address without `for` or with two.
    fn finish(self) -> Option<Option<IpAddr>> {
        match (self.pairs, self.fors) {
            (0, _) => None,
            (_, 1) => Some(self.hop),
            _ => Some(None),
        }
    }
}

/// A token or a quoted string, unquoted, and the text after it.
fn parse_value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        let end = text
            .iter()
            .position(|&byte| !is_token(byte))
            .unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_vec(), &text[end..]));
    };
    let mut value = Vec::new();
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((value, rest)),
            b'\\' => {
                let (&escaped, after) = rest.split_first()?;
                value.push(escaped);
                rest = after;
            }
            _ => value.push(byte),
        }
    }
}

/// A token character (RFC 9110 section 5.6.2), and `:` `[` `]`, which senders leave unquoted.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:[]".contains(&byte)
}

/// An entry of a forwarding header: an address, with or without a port, IPv6 with or without brackets; `None` for
/// `unknown`, an obfuscated identifier, a zone or anything else.
pub fn parse_hop(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim_ascii();
    if let Some(inside) = text.strip_prefix('[') {
        let (address, port) = inside.split_once(']')?;
        let is_right = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        let address = address.parse().ok().filter(|_| is_right);
        return address.map(IpAddr::V6);
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => {
            let address = address.parse().ok().filter(|_| is_port(port));
            address.map(IpAddr::V4)
        }
        _ => text.parse().ok(),
    }
}

/// Digits, or an obfuscated port (`_x`), which some senders add.
fn is_port(text: &str) -> bool {
    let obfuscated = text.strip_prefix('_');
    let digits =
        text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    digits || obfuscated.is_some_and(|name| !name.is_empty() && name.bytes().all(is_token))
}

/// The list of hops that no RFC defines and every proxy writes.
pub(crate) const X_FORWARDED_FOR: &str = "x-forwarded-for";
