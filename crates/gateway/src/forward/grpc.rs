//! Reads the deadline of a gRPC call.

use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::headers::{GRPC_TIMEOUT, grpc_timeout};

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
    grpc_timeout(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit_of_a_grpc_call() {
        let read = |kind: &str, value: &str| {
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
            assert_eq!(read("application/grpc+proto", value), Some(expected));
        }
        for value in ["", "S", "1", "123456789S", "1s", "-1S", "1.5S", "1 S"] {
            assert_eq!(read("application/grpc", value), None, "{value}");
        }
        assert_eq!(read("application/json", "1S"), None);
    }
}
