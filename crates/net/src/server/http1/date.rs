//! The Date header of responses (RFC 9110 6.6.1).

use std::cell::{Cell, RefCell};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes the Date line, which is formatted once a second.
pub(super) fn write_date(out: &mut Vec<u8>) {
    let now = unix_seconds();
    DATE_LINE.with_borrow_mut(|line| {
        if DATED.replace(now) != now {
            let moment = UNIX_EPOCH + Duration::from_secs(now);
            line.clear();
            line.extend_from_slice(b"date: ");
            line.extend_from_slice(httpdate::fmt_http_date(moment).as_bytes());
            line.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(line);
    });
}

thread_local! {
    static DATED: Cell<u64> = const { Cell::new(0) };
    static DATE_LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Seconds since 1970, because Date has no finer resolution.
#[expect(
    clippy::disallowed_methods,
    reason = "Date tells the time of day; nothing is decided by it"
)]
fn unix_seconds() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_line_tells_the_present_second() {
        let before = unix_seconds();
        let mut line = Vec::new();
        write_date(&mut line);
        let line = String::from_utf8(line).expect("text");
        let dated = line
            .strip_prefix("date: ")
            .and_then(|line| line.strip_suffix("\r\n"));
        let dated = httpdate::parse_http_date(dated.expect("one line")).expect("a date");
        let dated = dated
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        assert!((before..=unix_seconds()).contains(&dated), "{line}");
        // A line of an earlier second is not dated again.
        DATED.set(dated - 1);
        DATE_LINE.with_borrow_mut(|line| *line = b"date: old\r\n".to_vec());
        let mut line = Vec::new();
        write_date(&mut line);
        assert_ne!(line, b"date: old\r\n");
    }
}
