//! The headers in which a request states a deadline, each with the function that reads its value.

use std::time::Duration;

use http::HeaderName;

use tollgate_policy::looks_like;

/// Reads the value of a header: how long its client waits; `None`: it is no such value.
pub type ReadDeadline = fn(&[u8]) -> Option<Duration>;

/// The headers in which a request states a deadline: gRPC's, Connect's, Envoy's. `HeaderSet` knows
/// each of these names.
pub const DEADLINES: [(&str, ReadDeadline); 6] = [
    (GRPC, grpc_timeout),
    ("connect-timeout-ms", milliseconds),
    ("x-envoy-upstream-rq-timeout-ms", milliseconds),
    ("x-envoy-upstream-rq-per-try-timeout-ms", milliseconds),
    ("x-envoy-expected-rq-timeout-ms", milliseconds),
    ("x-envoy-upstream-stream-duration-ms", milliseconds),
];

/// The reader of the header with this name, or with one that some servers read as this one;
/// `None`: it states no deadline.
pub fn reads_deadline(name: &str) -> Option<ReadDeadline> {
    let mut known = DEADLINES.iter();
    let (_, read) = known.find(|(known, _)| looks_like(known, name))?;
    Some(*read)
}

/// The value of `grpc-timeout`: one to eight digits and a unit (gRPC over HTTP/2).
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let count = number(digits, 8)?;
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

/// At most ten digits (Connect protocol).
fn milliseconds(value: &[u8]) -> Option<Duration> {
    number(value, 10).map(Duration::from_millis)
}

/// The number that these digits say; `None`: there are other characters, no digit, or more than
/// `most`, which is at most 19.
fn number(digits: &[u8], most: usize) -> Option<u64> {
    let plain = (1..=most).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let add = |sum, digit: &u8| sum * 10 + u64::from(digit - b'0');
    plain.then(|| digits.iter().fold(0, add))
}

pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static(GRPC);
const GRPC: &str = "grpc-timeout";
