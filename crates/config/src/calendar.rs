//! Computes the boundaries of calendar windows: days, weeks and months of a time zone, as moments
//! that the core can compare.

use std::sync::Arc;

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};

use super::raw::RawWindow;
use super::reading::{Context, Place, Read, near_or};
use super::values::rate::Unit;
use tollgate_limit::{Calendar, Micros, Timestamp};

/// The boundaries of `window` for a rate per `unit`, from a few years before `now` (and from the
/// start of `[[tests]]`) to thirty years after.
pub(crate) fn windows(
    window: &RawWindow,
    rate: Place,
    period: Micros,
    unit: Unit,
    now: Timestamp,
    context: &mut Context<'_>,
) -> Option<Arc<Calendar>> {
    let zone = window.zone();
    let name = zone.as_str();
    let Ok(zone) = TimeZone::get(name) else {
        let known: Vec<String> = jiff::tz::db()
            .available()
            .map(|zone| zone.to_string())
            .collect();
        let otherwise = "names of the IANA database are known";
        let label = near_or(name, known.iter().map(String::as_str), otherwise);
        let place = window.zone.place().unwrap_or(rate);
        context
            .error(format!("unknown time zone `{name}`"), place, label)
            .help("\"Europe/Berlin\", \"America/New_York\" and \"UTC\" are zones");
        return None;
    };
    let most = match unit {
        Unit::Day if period == DAY => 1,
        Unit::Week if period == Micros(7 * DAY.0) => 7,
        Unit::Month => 31,
        _ => {
            let title = "a calendar has days, weeks and months";
            context.error(title, rate, "this period is none of them").help(
                "write \"1000/day\", \"1000/week\" or \"1000/month\"; for other periods use align = \"clock\"",
            );
            return None;
        }
    };
    let anchor = window.anchor_day();
    let written = window.anchor_day.place();
    if let (Unit::Day, Some(place)) = (unit, written) {
        context.error("a day has no anchor day", place, "for weeks and months");
        return None;
    }
    if let (Some(label), Some(place)) = (u64::outside(&anchor.value, &(1..=most)), written) {
        context.error("`anchor_day` is out of bounds", place, label);
    }
    let anchor = anchor.value.clamp(1, most);
    let anchor = i8::try_from(anchor).unwrap_or(1).max(1);
    let boundaries = boundaries(&zone, unit, anchor, now);
    let words = match unit {
        Unit::Week => format!(
            "week from {} in {name}",
            WEEKDAYS[usize::try_from(anchor - 1).unwrap_or(0)]
        ),
        Unit::Month if anchor > 1 => format!("month from day {anchor} in {name}"),
        Unit::Month => format!("month in {name}"),
        _ => format!("day in {name}"),
    };
    Some(Arc::new(Calendar { boundaries, words }))
}

fn boundaries(zone: &TimeZone, unit: Unit, anchor: i8, now: Timestamp) -> Vec<Timestamp> {
    let today = i64::try_from(now.as_micros())
        .ok()
        .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    let today = today.map_or(date(2025, 1, 1), |moment| {
        moment.to_zoned(zone.clone()).date()
    });
    let this_year = today.year().clamp(1973, 9_900);
    let first = date((this_year - YEARS_BACK).min(YEAR_OF_TESTS), 1, 1);
    let last = date(this_year.max(YEAR_OF_TESTS) + YEARS_AHEAD, 1, 1);
    let day = match unit {
        Unit::Week => {
            let offset = (i64::from(anchor) - i64::from(first.weekday().to_monday_one_offset()))
                .rem_euclid(7);
            first.saturating_add(offset.days())
        }
        _ => first,
    };
    let step: Span = match unit {
        Unit::Week => 7.days(),
        Unit::Month => 1.month(),
        _ => 1.day(),
    };
    let days = std::iter::successors(Some(day), |day| Some(day.saturating_add(step)));
    let start = |day: Date| match unit {
        Unit::Month => date(day.year(), day.month(), anchor.min(day.days_in_month())),
        _ => day,
    };
    let mut boundaries: Vec<Timestamp> = days
        .take_while(|day| *day <= last)
        .map(start)
        // The first moment of the day. It is not midnight if the zone skips midnight.
        .filter_map(|day| day.to_zoned(zone.clone()).ok())
        .filter_map(|moment| u64::try_from(moment.timestamp().as_microsecond()).ok())
        .map(Timestamp::from_micros)
        .collect();
    // In a zone that skipped a whole day (Samoa, 2011) two dates begin at the same moment.
    boundaries.dedup();
    boundaries
}

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const DAY: Micros = Micros(86_400_000_000);

/// How far back boundaries reach: a clock that is slightly behind must find its window.
const YEARS_BACK: i16 = 2;

/// The result of a test must not depend on the year it runs in: no test begins before the end of
/// this year.
const YEAR_OF_TESTS: i16 = 2024;

const YEARS_AHEAD: i16 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(zone: &str, unit: Unit, anchor: i8) -> Vec<String> {
        let now = Timestamp::from_micros(1_767_225_600_000_000); // 2026-01-01T00:00:00Z
        let zone = TimeZone::get(zone).expect("a known zone");
        boundaries(&zone, unit, anchor, now)
            .iter()
            .map(|start| {
                jiff::Timestamp::from_microsecond(i64::try_from(start.as_micros()).expect("fits"))
                    .expect("fits")
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn days_of_a_zone_are_23_to_25_hours_long() {
        let days = starts("Europe/Berlin", Unit::Day, 1);
        let at = days
            .iter()
            .position(|day| day == "2026-03-28T23:00:00Z")
            .expect("the day of the change");
        assert_eq!(days[at + 1], "2026-03-29T22:00:00Z", "23 hours later");
        assert!(days.len() > 30 * 365);
    }

    #[test]
    fn months_begin_on_their_anchor_or_on_their_last_day() {
        let months = starts("UTC", Unit::Month, 31);
        assert!(months.contains(&"2026-01-31T00:00:00Z".to_owned()));
        assert!(months.contains(&"2026-02-28T00:00:00Z".to_owned()));
        assert!(months.contains(&"2028-02-29T00:00:00Z".to_owned()));
    }

    #[test]
    fn weeks_begin_on_their_anchor() {
        let weeks = starts("UTC", Unit::Week, 1);
        assert!(
            weeks.contains(&"2026-01-05T00:00:00Z".to_owned()),
            "a Monday"
        );
        let weeks = starts("UTC", Unit::Week, 7);
        assert!(
            weeks.contains(&"2026-01-04T00:00:00Z".to_owned()),
            "a Sunday"
        );
    }

    #[test]
    fn boundaries_ascend() {
        for zone in ["UTC", "Pacific/Apia", "America/Sao_Paulo"] {
            for unit in [Unit::Day, Unit::Week, Unit::Month] {
                let days = starts(zone, unit, 1);
                assert!(
                    days.windows(2).all(|pair| pair[0] < pair[1]),
                    "{zone} {unit:?}"
                );
            }
        }
    }
}
