//! Moments in RFC 3339 form, UTC.

use tollgate_limit::Timestamp;

/// The moment, cut to the second.
pub(crate) fn second(at: Timestamp) -> String {
    shown(at.as_micros(), "%Y-%m-%dT%H:%M:%SZ")
}

/// To the millisecond, rounded up, so that a request at that moment is not too early.
pub(crate) fn moment(at: Timestamp) -> String {
    let micros = at.as_micros().div_ceil(1_000).saturating_mul(1_000);
    shown(micros, "%Y-%m-%dT%H:%M:%S.%3fZ")
}

fn shown(micros: u64, form: &str) -> String {
    let moment = jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(i64::MAX));
    moment
        .unwrap_or(jiff::Timestamp::MAX)
        .strftime(form)
        .to_string()
}
