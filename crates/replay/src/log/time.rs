//! Moments as logs write them, in microseconds since the Unix epoch, with what they are rounded to.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use super::record::decimal;

/// A moment, and what it is rounded down to (microseconds).
pub(crate) type Moment = (u64, u32);

/// Reads stamps; those that name no zone are of this one.
#[derive(Debug)]
pub(crate) struct Times(pub(crate) TimeZone);

impl Times {
    /// The common format: `17/May/2015:10:05:03 +0000`.
    pub(crate) fn common(&self, text: &[u8]) -> Option<Moment> {
        let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
        // No zone of the world is further from UTC than 14 hours.
        let is_real = time.offset()?.seconds().abs() <= 14 * 3_600;
        let at = is_real.then(|| time.to_timestamp().ok())??;
        Some((micros(at)?, 1_000_000))
    }

    /// RFC 3339 and its like: `T` or a blank between, any decimals, a zone or none.
    pub(crate) fn iso(&self, text: &[u8]) -> Option<Moment> {
        let text = std::str::from_utf8(text).ok()?.trim();
        if text.len() < "2015-05-17T10:05:03".len() {
            return None;
        }
        let time = text.get(11..)?.replace(' ', "").replace("UTC", "Z");
        let text = format!("{}T{time}", text.get(..10)?);
        let at = match text.parse::<jiff::Timestamp>() {
            Ok(at) => at,
            Err(_) => self.local(text.parse().ok()?)?,
        };
        Some((micros(at)?, resolution(text.as_bytes())))
    }

    /// HAProxy's `06/Feb/2009:12:14:14.655`, in the zone of the machine that wrote it.
    pub(crate) fn haproxy(&self, text: &[u8]) -> Option<Moment> {
        let time = strtime::parse("%d/%b/%Y:%H:%M:%S%.f", text).ok()?;
        let at = self.local(time.to_datetime().ok()?)?;
        Some((micros(at)?, resolution(text)))
    }

    /// A number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size.
    pub(crate) fn unix(text: &[u8]) -> Option<Moment> {
        let point = memchr::memchr(b'.', text).unwrap_or(text.len());
        let decimals = text.len().saturating_sub(point + 1);
        let (places, unit) = match point {
            0..=11 => (6, 1_000_000),
            12..=14 => (3, 1_000),
            15..=17 => (0, 1),
            _ => return Some((decimal(&text[..point], 0)? / 1_000, 1)),
        };
        let resolution = (0..decimals.min(places)).fold(unit, |unit, _| unit / 10);
        Some((decimal(text, places)?, resolution))
    }

    pub(crate) fn any(&self, text: &[u8]) -> Option<Moment> {
        let text = text.trim_ascii();
        if text
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b'.')
            && !text.is_empty()
        {
            return Self::unix(text);
        }
        if text.get(4) == Some(&b'-') {
            return self.iso(text);
        }
        let inside = text.strip_prefix(b"[").unwrap_or(text);
        self.common(inside.strip_suffix(b"]").unwrap_or(inside))
    }

    /// A civil time in the zone of stamps that name none.
    fn local(&self, time: DateTime) -> Option<jiff::Timestamp> {
        let zoned = self.0.to_ambiguous_zoned(time).compatible().ok()?;
        Some(zoned.timestamp())
    }
}

/// What a stamp with decimals of a second is rounded to, microseconds.
fn resolution(stamp: &[u8]) -> u32 {
    let mut parts = stamp.split(|byte| matches!(byte, b'.' | b','));
    let decimals = parts.nth(1).unwrap_or_default().iter();
    let digits = decimals.take_while(|byte| byte.is_ascii_digit()).count();
    (0..digits.min(6)).fold(1_000_000, |unit, _| unit / 10)
}

fn micros(moment: jiff::Timestamp) -> Option<u64> {
    u64::try_from(moment.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_every_format_is_read_with_its_resolution() {
        let times = Times(TimeZone::UTC);
        let common = |text: &str| times.common(text.as_bytes());
        assert_eq!(
            common("17/May/2015:10:05:03 +0000"),
            Some((1_431_857_103_000_000, 1_000_000))
        );
        assert_eq!(
            common("01/Jul/1995:00:00:01 -0400"),
            Some((804_571_201_000_000, 1_000_000))
        );
        assert_eq!(
            common("01/Jul/1995:00:00:02 +0000").map(|moment| moment.0),
            Some(804_556_802_000_000)
        );
        for bad in [
            "01/Jul/1995:00:00:xx +0000",
            "32/Jul/1995:00:00:00 +0000",
            "",
            "x",
        ] {
            assert_eq!(common(bad), None, "{bad}");
        }
        for (text, expected) in [
            (
                "2023-11-16 18:15:46.6805900",
                Some((1_700_158_546_680_590, 1)),
            ),
            (
                "2023-11-16T18:15:46.680Z",
                Some((1_700_158_546_680_000, 1_000)),
            ),
            (
                "2023-11-16T19:15:46+01:00",
                Some((1_700_158_546_000_000, 1_000_000)),
            ),
            (
                "2023-11-16T18:15:46 UTC",
                Some((1_700_158_546_000_000, 1_000_000)),
            ),
            (
                "2023-11-16 18:15:46.680 +0000",
                Some((1_700_158_546_680_000, 1_000)),
            ),
            ("1700158546.680", Some((1_700_158_546_680_000, 1_000))),
            ("1700158546680", Some((1_700_158_546_680_000, 1_000))),
            ("1700158546680590123", Some((1_700_158_546_680_590, 1))),
            ("1700158546", Some((1_700_158_546_000_000, 1_000_000))),
            ("2023-13-16T19:15:46Z", None),
            ("-", None),
        ] {
            assert_eq!(times.any(text.as_bytes()), expected, "{text}");
        }
        let berlin = TimeZone::get("Europe/Berlin").unwrap_or(TimeZone::fixed(jiff::tz::offset(1)));
        let times = Times(berlin);
        assert_eq!(
            times.haproxy(b"06/Feb/2009:12:14:14.655"),
            Some((1_233_918_854_655_000, 1_000))
        );
    }
}
