//! Reads what the headers of a message say about the end of its body. Refuses what two recipients
//! could read differently.

use http::Version;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};

use crate::{Malformed, tokens};

/// The framing that the headers of a message announce (RFC 9112 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Whether Transfer-Encoding is exactly one `chunked`.
    pub chunked: bool,
    /// The value of the Content-Length header.
    pub length: Option<u64>,
    /// Whether a Connection header lists `close`.
    pub close: bool,
    /// Whether a Connection header lists `keep-alive`.
    pub keep_alive: bool,
    /// The seconds in `Keep-Alive: timeout=N`: the sender keeps an idle connection for so long.
    pub idle_timeout: Option<u64>,
}

impl Framing {
    /// Reads the framing from `headers`.
    ///
    /// # Errors
    /// [`Malformed::ContentLength`] if it is not one number, [`Malformed::TransferEncoding`] if it
    /// is not exactly one `chunked`.
    pub fn of(headers: &HeaderMap) -> Result<Self, Malformed> {
        let mut framing = Self::default();
        let (mut lengths, mut codings) = (0, 0);
        for (name, value) in headers {
            if *name == CONTENT_LENGTH {
                lengths += 1;
                framing.length = Some(number(value.as_bytes()).ok_or(Malformed::ContentLength)?);
            } else if *name == TRANSFER_ENCODING {
                codings += 1;
                framing.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
            } else if *name == CONNECTION {
                for token in tokens(value.as_bytes()) {
                    framing.close |= token.eq_ignore_ascii_case(b"close");
                    framing.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if *name == KEEP_ALIVE {
                framing.idle_timeout = idle_timeout(value.as_bytes());
            }
        }
        if codings > 1 || (codings == 1 && !framing.chunked) {
            return Err(Malformed::TransferEncoding);
        }
        if lengths > 1 {
            return Err(Malformed::ContentLength);
        }
        Ok(framing)
    }

    /// Whether the headers announce a body.
    pub const fn announces_body(self) -> bool {
        self.chunked || matches!(self.length, Some(1..))
    }

    /// Whether its sender keeps the connection after the message (RFC 9112 9.3).
    pub fn persists(&self, version: Version) -> bool {
        !self.close && (version >= Version::HTTP_11 || self.keep_alive)
    }
}

/// The seconds in a value of Keep-Alive: `timeout=5, max=100`.
pub fn idle_timeout(value: &[u8]) -> Option<u64> {
    let mut named = tokens(value).filter_map(|one| one.split_at_checked(TIMEOUT.len()));
    let (_, seconds) = named.find(|(name, _)| name.eq_ignore_ascii_case(TIMEOUT))?;
    number(seconds)
}

/// The parameter of Keep-Alive with the time.
const TIMEOUT: &[u8] = b"timeout=";
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Parses a number that consists only of digits, if it fits.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::idle_timeout;

    #[test]
    fn idle_timeout_is_read_among_other_parameters() {
        for (value, expected) in [
            ("timeout=5", Some(5)),
            ("max=100, Timeout=72", Some(72)),
            (" timeout=5 ,max", Some(5)),
            ("timeout", None),
            ("timeout=", None),
            ("timeout=-1", None),
            ("timeout=5s", None),
            ("xtimeout=5", None),
            ("", None),
        ] {
            assert_eq!(idle_timeout(value.as_bytes()), expected, "{value:?}");
        }
    }
}
