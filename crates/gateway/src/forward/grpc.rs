//! Reads the deadline of a gRPC call.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName};

/// How long the client of a gRPC call waits for the complete response; `None` if it is no gRPC
/// call, or if the value cannot be parsed (gRPC over HTTP/2: `grpc-timeout` is one to eight digits
/// and a unit).
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(GRPC_TIMEOUT)?.as_bytes();
    if !headers
        .get(CONTENT_TYPE)?
        .as_bytes()
        .starts_with(b"application/grpc")
    {
        return None;
    }
    duration(value)
}

/// The value of `grpc-timeout`: one to eight digits and a unit.
pub(super) fn duration(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = number(digits);
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The number that these digits say; at most 19 of them.
pub(super) fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit_of_a_grpc_call() {
        let told = |kind: &str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().expect("a value"));
            headers.insert(GRPC_TIMEOUT, value.parse().expect("a value"));
            timeout(&headers)
        };
        for (value, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("250m", Duration::from_millis(250)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("5n", Duration::from_nanos(5)),
        ] {
            assert_eq!(told("application/grpc+proto", value), Some(expected));
        }
        for value in ["", "S", "1", "123456789S", "1s", "-1S", "1.5S", "1 S"] {
            assert_eq!(told("application/grpc", value), None, "{value}");
        }
        assert_eq!(told("application/json", "1S"), None);
    }
}
