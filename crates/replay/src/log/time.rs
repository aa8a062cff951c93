//! Moments as logs write them, in microseconds since the Unix epoch, with what they are rounded to.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::record::decimal;

/// A moment, and what it is rounded down to (microseconds).
pub(crate) type Moment = (u64, u32);

/// Reads stamps; what takes a calendar is worked out once a minute.
#[derive(Debug)]
pub(crate) struct Times {
    /// The zone of stamps that name none.
    pub(crate) zone: TimeZone,
    /// The last stamp of the common format up to its minute, with its zone, and when that minute began.
    minute: ([u8; MINUTE + ZONE], u64),
    /// As many others, each whole, up to its second.
    second: (Vec<u8>, u64),
}

impl Times {
    pub(crate) fn new(zone: TimeZone) -> Self {
        Self {
            zone,
            minute: ([0; MINUTE + ZONE], 0),
            second: (Vec::new(), 0),
        }
    }

    #[inline]
    pub(crate) fn common(&mut self, text: &[u8]) -> Option<Moment> {
        let text: &[u8; 26] = text.try_into().ok()?;
        let mut key = [0; MINUTE + ZONE];
        key[..MINUTE].copy_from_slice(&text[..MINUTE]);
        key[MINUTE..].copy_from_slice(&text[21..]);
        if key != self.minute.0 {
            self.minute = (key, start_of_minute(text)?);
        }
        let second = two_digits(&text[18..20])?;
        // A leap second is written as 60.
        (text[17] == b':' && text[20] == b' ' && second <= 60)
            .then(|| (self.minute.1 + second * SECOND, 1_000_000))
    }

    /// RFC 3339 and its like: `T` or a blank between, any decimals, a zone or none.
    pub(crate) fn iso(&mut self, text: &[u8]) -> Option<Moment> {
        let text = text.trim_ascii();
        if text.len() < 19 {
            return None;
        }
        let (whole, rest) = text.split_at(19);
        let digits = match rest.strip_prefix(b".").or(rest.strip_prefix(b",")) {
            Some(digits) => digits
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count(),
            None => 0,
        };
        let behind = if digits == 0 {
            rest
        } else {
            &rest[1 + digits..]
        };
        let mut key = Vec::with_capacity(32);
        key.extend_from_slice(whole);
        key.extend_from_slice(behind);
        if key != self.second.0 {
            let start = self.start_of_second(whole, behind)?;
            self.second = (key, start);
        }
        let (micros, resolution) = fraction(rest.get(1..1 + digits).unwrap_or_default())?;
        Some((self.second.1 + micros, resolution))
    }

    fn start_of_second(&self, whole: &[u8], zone: &[u8]) -> Option<u64> {
        let mut text = std::str::from_utf8(whole).ok()?.to_owned();
        text.replace_range(10..11, "T");
        let zone = std::str::from_utf8(zone.trim_ascii()).ok()?;
        let moment = match zone {
            "" => self.local(text.parse().ok()?)?,
            "Z" | "z" | "UTC" | "+00:00" | "+0000" => {
                text.push('Z');
                text.parse().ok()?
            }
            zone => {
                text.push_str(zone);
                text.parse().ok()?
            }
        };
        micros(moment)
    }

    /// HAProxy's `06/Feb/2009:12:14:14.655`, in the zone of the machine that wrote it.
    pub(crate) fn haproxy(&mut self, text: &[u8]) -> Option<Moment> {
        let text = text.strip_suffix(b"]").unwrap_or(text);
        let (whole, rest) = text.split_at_checked(20)?;
        if whole != self.second.0.as_slice() {
            let moment = self.local(civil(whole)?)?;
            self.second = (whole.to_vec(), micros(moment)?);
        }
        let (micros, resolution) = fraction(rest.strip_prefix(b".").unwrap_or_default())?;
        Some((self.second.1 + micros, resolution))
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

    pub(crate) fn any(&mut self, text: &[u8]) -> Option<Moment> {
        let text = text.trim_ascii();
        if text
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b'.')
            && !text.is_empty()
        {
            return Self::unix(text);
        }
        self.iso(text).or_else(|| {
            let inside = text.strip_prefix(b"[").unwrap_or(text);
            self.common(inside.strip_suffix(b"]").unwrap_or(inside))
        })
    }

    /// A civil time in the zone of stamps that name none.
    fn local(&self, time: DateTime) -> Option<jiff::Timestamp> {
        let zoned = self.zone.to_ambiguous_zoned(time).compatible().ok()?;
        Some(zoned.timestamp())
    }
}

/// Decimals of a second in microseconds, and what they are rounded to.
fn fraction(digits: &[u8]) -> Option<Moment> {
    let mut micros = 0_u64;
    for place in 0..6 {
        let digit = digits.get(place).map_or(0, |byte| byte.wrapping_sub(b'0'));
        micros = micros * 10 + u64::from((digit < 10).then_some(digit)?);
    }
    let resolution = (0..digits.len().min(6)).fold(1_000_000, |unit, _| unit / 10);
    Some((micros, resolution))
}

fn micros(moment: jiff::Timestamp) -> Option<u64> {
    u64::try_from(moment.as_microsecond()).ok()
}

/// When the minute of a common stamp began.
fn start_of_minute(text: &[u8; 26]) -> Option<u64> {
    let mut whole = *text;
    whole[18..20].copy_from_slice(b"00");
    let time = civil(&whole[..20])?;
    let sign = match text[21] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (two_digits(&text[22..24])?, two_digits(&text[24..])?);
    // No zone of the world is further from UTC than 14 hours.
    if hours > 14 || minutes > 59 {
        return None;
    }
    let offset = hours * 3_600 + minutes * 60;
    let offset = i32::try_from(offset).ok()? * sign;
    let offset = jiff::tz::Offset::from_seconds(offset).ok()?;
    micros(offset.to_timestamp(time).ok()?)
}

fn civil(text: &[u8]) -> Option<DateTime> {
    let marks = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':')];
    if text.len() != 20 || marks.iter().any(|(at, mark)| text[*at] != *mark) {
        return None;
    }
    let month = MONTHS
        .iter()
        .position(|month| text[3..6].eq_ignore_ascii_case(*month))?;
    let small = |at: usize| i8::try_from(two_digits(&text[at..at + 2])?).ok();
    let year = two_digits(&text[7..9])? * 100 + two_digits(&text[9..11])?;
    DateTime::new(
        i16::try_from(year).ok()?,
        i8::try_from(month + 1).ok()?,
        small(0)?,
        small(12)?,
        small(15)?,
        // A leap second counts as the one before.
        small(18)?.min(59),
        0,
    )
    .ok()
}

fn two_digits(text: &[u8]) -> Option<u64> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))
        }
        _ => None,
    }
}

const SECOND: u64 = 1_000_000;
/// Bytes of a common stamp up to its minute, and of its zone.
const MINUTE: usize = 17;
const ZONE: usize = 5;
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_every_format_is_read_with_its_resolution() {
        let mut times = Times::new(TimeZone::UTC);
        let common = |times: &mut Times, text: &str| times.common(text.as_bytes());
        assert_eq!(
            common(&mut times, "17/May/2015:10:05:03 +0000"),
            Some((1_431_857_103_000_000, 1_000_000))
        );
        assert_eq!(
            common(&mut times, "01/Jul/1995:00:00:01 -0400"),
            Some((804_571_201_000_000, 1_000_000))
        );
        // The minute is remembered; the zone is part of it.
        assert_eq!(
            common(&mut times, "01/Jul/1995:00:00:02 +0000").map(|moment| moment.0),
            Some(804_556_802_000_000)
        );
        for bad in [
            "01/Jul/1995:00:00:xx +0000",
            "32/Jul/1995:00:00:00 +0000",
            "",
            "x",
        ] {
            assert_eq!(common(&mut times, bad), None, "{bad}");
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
        let mut times = Times::new(berlin);
        assert_eq!(
            times.haproxy(b"06/Feb/2009:12:14:14.655"),
            Some((1_233_918_854_655_000, 1_000))
        );
    }
}
