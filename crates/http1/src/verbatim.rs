//! Passes the headers of a response on as the server wrote them: checked in place, and copied once.
//! It does not handle responses with headers that must be inspected; those are parsed by
//! [`Lines::fields`], but most responses have none.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;

use super::Lines;
use super::head::{Framing, idle_timeout, is_control, number};

/// Header lines with their ends, without framing and hop-by-hop headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verbatim {
    /// The lines, with their line ends.
    pub lines: Bytes,
    /// Whether the lines include a Date header.
    pub dated: bool,
    /// The value that is added to Via, after them.
    pub via: Option<HeaderValue>,
}

/// How a header is treated when it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is passed on unchanged.
    Plain,
    Date,
    Connection,
    KeepAlive,
    ContentLength,
    TransferEncoding,
    /// It is removed, changed or replaced, so the head must be parsed.
    Special,
}

impl Kind {
    /// The kind of a name in lower case.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "date" => Self::Date,
            "connection" => Self::Connection,
            "keep-alive" => Self::KeepAlive,
            "content-length" => Self::ContentLength,
            "transfer-encoding" => Self::TransferEncoding,
            "te" | "upgrade" | "proxy-connection" | "http2-settings" => Self::Special,
            // The gateway's own headers replace these.
            _ if name.starts_with("ratelimit") || name.starts_with("x-ratelimit") => Self::Special,
            _ => Self::Plain,
        }
    }
}

impl Lines {
    /// Returns the headers of `head`, whose lines these are, unparsed, with the framing that they
    /// announce. `None`: `head` is unchanged and must be parsed, which also finds all of its errors.
    pub fn verbatim(&mut self, head: &mut BytesMut) -> Option<(Verbatim, Framing)> {
        let (mut framing, mut dated) = (Framing::default(), false);
        let (mut gaps, mut gap) = ([(0, 0); GAPS], 0);
        let first = *self.ends.first()? as usize + 1;
        let mut start = first;
        for (index, &end) in self.ends.iter().enumerate().skip(1) {
            let end = end as usize;
            let line = head[start..end].strip_suffix(b"\r")?;
            let (kind, colon) = self.names.kind(index - 1, line).ok()?;
            let value = || line[colon + 1..].trim_ascii();
            match kind {
                Kind::Plain => {}
                Kind::Date => dated = true,
                Kind::Special => return None,
                hop => {
                    match hop {
                        Kind::Connection if value().eq_ignore_ascii_case(b"keep-alive") => {
                            framing.keep_alive = true
                        }
                        Kind::Connection if value().eq_ignore_ascii_case(b"close") => {
                            framing.close = true
                        }
                        Kind::KeepAlive => framing.idle_timeout = idle_timeout(value()),
                        Kind::ContentLength if framing.length.is_none() => {
                            framing.length = Some(number(value())?)
                        }
                        Kind::TransferEncoding
                            if !framing.chunked && value().eq_ignore_ascii_case(b"chunked") =>
                        {
                            framing.chunked = true;
                        }
                        _ => return None,
                    }
                    *gaps.get_mut(gap)? = (start, end + 1);
                    gap += 1;
                }
            }
            start = end + 1;
        }
        // Every line ends in CR LF, and there are no other control characters.
        let ends = head[..first].ends_with(b"\r\n") && head[start..] == *b"\r\n";
        if !ends
            || controls(head) != 2 * (self.ends.len() + 1)
            || (framing.chunked && framing.length.is_some())
        {
            return None;
        }
        let mut to = if gap == 0 { start } else { gaps[0].0 };
        for (index, &(_, from)) in gaps[..gap].iter().enumerate() {
            let until = gaps[..gap].get(index + 1).map_or(start, |next| next.0);
            head.copy_within(from..until, to);
            to += until - from;
        }
        self.names.met = true;
        let mut lines = std::mem::take(head);
        lines.truncate(to);
        lines.advance(first);
        Some((
            Verbatim {
                lines: lines.freeze(),
                dated,
                via: None,
            },
            framing,
        ))
    }
}

/// The number of control characters except tabs. Counted in pieces whose count fits in a byte, so
/// that the compiler can vectorise the loop.
fn controls(bytes: &[u8]) -> usize {
    let count = |piece: &[u8]| {
        let controls = piece.iter().map(|&byte| u8::from(is_control(byte)));
        controls.sum::<u8>()
    };
    let pieces = bytes.chunks(128);
    pieces.map(|piece| usize::from(count(piece))).sum()
}

/// The largest number of headers that are removed.
const GAPS: usize = 4;

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::super::Bounds;
    use super::*;

    const BOUNDS: Bounds = Bounds {
        bytes: 4096,
        lines: 40,
        bare_lf: true,
    };

    fn pass(lines: &mut Lines, text: &str) -> Option<(String, Framing, bool)> {
        lines.reset();
        let length = lines
            .find(text.as_bytes(), BOUNDS)
            .expect("within bounds")
            .expect("a whole head");
        let mut head = BytesMut::from(&text.as_bytes()[..length]);
        let Some((verbatim, framing)) = lines.verbatim(&mut head) else {
            assert_eq!(head, text.as_bytes()[..length], "as it was");
            return None;
        };
        // Taken apart the head says the same, but for what was taken out.
        let mut headers = HeaderMap::new();
        lines
            .fields(
                &Bytes::copy_from_slice(&text.as_bytes()[..length]),
                1,
                &mut headers,
            )
            .expect("well-formed");
        assert_eq!(Framing::of(&headers), Ok(framing));
        for name in [
            "connection",
            "keep-alive",
            "content-length",
            "transfer-encoding",
        ] {
            headers.remove(name);
        }
        let text = format!(
            "S\r\n{}\r\n",
            std::str::from_utf8(&verbatim.lines).expect("text")
        );
        let mut again = Lines::new();
        let length = again
            .find(text.as_bytes(), BOUNDS)
            .expect("within bounds")
            .expect("a whole head");
        let mut passed = HeaderMap::new();
        again
            .fields(
                &Bytes::copy_from_slice(&text.as_bytes()[..length]),
                1,
                &mut passed,
            )
            .expect("well-formed");
        assert_eq!((length, passed), (text.len(), headers));
        Some((
            String::from_utf8(verbatim.lines.to_vec()).expect("text"),
            framing,
            verbatim.dated,
        ))
    }

    #[test]
    fn verbatim_framing_and_hop_by_hop_headers_are_removed() {
        let mut lines = Lines::new();
        let plain = [
            "Server: a",
            "Date:\t b ",
            "X-C: d, e",
            "Via: 1.0 f",
            "X-Latin: \u{e4}",
        ];
        let hops = [
            "Content-Length: 12",
            "connection: Keep-Alive",
            "Keep-Alive: timeout=5",
            "CONNECTION: close",
        ];
        let mut dice = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let mut all = Vec::new();
            for of in [&hops[..], &plain] {
                let some = dice.usize(..=of.len());
                all.extend(dice.choose_multiple(of.iter().copied(), some));
            }
            dice.shuffle(&mut all);
            let text: String = all.iter().map(|line| format!("{line}\r\n")).collect();
            let (passed, framing, dated) =
                pass(&mut lines, &format!("HTTP/1.1 200 OK\r\n{text}\r\nrest")).expect("passed");
            let expected: String = all
                .iter()
                .filter(|line| plain.contains(line))
                .map(|line| format!("{line}\r\n"))
                .collect();
            assert_eq!(passed, expected);
            assert_eq!(framing.length, all.contains(&hops[0]).then_some(12));
            assert_eq!(
                (framing.keep_alive, framing.close),
                (all.contains(&hops[1]), all.contains(&hops[3]))
            );
            assert_eq!(dated, all.contains(&plain[1]));
        }
        let (passed, framing, _) =
            pass(&mut lines, "S\r\nTransfer-Encoding: chunked\r\n\r\n").expect("passed");
        assert!(passed.is_empty() && framing.chunked);
    }

    #[test]
    fn verbatim_unusual_head_is_parsed_line_by_line() {
        let mut lines = Lines::new();
        // Names that were met before are looked at as closely as new ones.
        for _ in 0..2 {
            for text in [
                "A: 1\n\r\n",
                "A: 1\r\n\n",
                "A : 1\r\n\r\n",
                "A\r\n\r\n",
                ": 1\r\n\r\n",
                "A: 1\r\n b\r\n\r\n",
                "A: 1\r2\r\n\r\n",
                "A: 1\r\r\n\r\n",
                "A: 1\0\r\n\r\n",
                "A: \x7f\r\n\r\n",
                "A\u{e4}: 1\r\n\r\n",
                "Connection: upgrade\r\n\r\n",
                "Connection: A\r\nA: 1\r\n\r\n",
                "Connection: close, A\r\n\r\n",
                "Upgrade: a\r\n\r\n",
                "TE: a\r\n\r\n",
                "Proxy-Connection: close\r\n\r\n",
                "RateLimit: a\r\n\r\n",
                "x-RateLimit-Limit: 1\r\n\r\n",
                "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
                "Content-Length: 1, 1\r\n\r\n",
                "Content-Length:\r\n\r\n",
                "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "Transfer-Encoding: gzip, chunked\r\n\r\n",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            ] {
                assert_eq!(pass(&mut lines, &format!("S\r\n{text}")), None, "{text:?}");
                assert_eq!(
                    pass(&mut lines, &format!("S\r\nServer: a\r\n{text}")),
                    None,
                    "{text:?}"
                );
            }
        }
        assert_eq!(pass(&mut lines, "S\nA: 1\r\n\r\n"), None);
    }
}
