//! The Date header of responses (RFC 9110 6.6.1).

use std::cell::{Cell, RefCell};
use std::time::{Duration, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

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

/// Seconds since 1970, because Date has no finer resolution. The kernel's coarse clock is a few
/// milliseconds behind, and a seventh as expensive.
fn unix_seconds() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map_or(0, |now| now.tv_sec());
    now.try_into().unwrap_or(0)
}
