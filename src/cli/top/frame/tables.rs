//! The tables of a frame.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::Seen;
use super::text::{Cell, Look, Table, instant, of_day, rate, span};
use crate::admin::figures::{Figures, KeyNow, LimitFigures};
use crate::admin::live::Key;
use tollgate_replay::report::grouped;

/// A key of one gateway, or of several that share its bucket.
pub(super) struct Row<'s> {
    gateway: Cow<'s, str>,
    at: &'s str,
    key: Cow<'s, KeyNow>,
    gateways: usize,
}

/// The keys of all gateways.
pub(super) struct Rows<'s> {
    pub(super) rows: Vec<Row<'s>>,
    /// How often a key of a shared limit is listed once more.
    pub(super) repeated: usize,
}

impl Row<'_> {
    /// Adds what another gateway says of the same bucket.
    fn add(&mut self, other: &KeyNow) {
        self.gateways += 1;
        self.gateway = format!("{} gateways", self.gateways).into();
        let (sum, more) = (&mut self.key.to_mut().count, &other.count);
        sum.count += more.count;
        sum.count_error += more.count_error;
        // Moments are in one form, in which a later one is greater.
        if more.since < sum.since {
            sum.since.clone_from(&more.since);
        }
        if more.until > sum.until {
            sum.until.clone_from(&more.until);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli::top) enum Order {
    /// Those with the most requests first.
    #[default]
    Requests,
    /// Those that wait for longest first.
    Until,
    Name,
}

impl Order {
    pub(in crate::cli::top) fn next(self) -> Self {
        match self {
            Self::Requests => Self::Until,
            Self::Until => Self::Name,
            Self::Name => Self::Requests,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Requests => "by requests",
            Self::Until => "by end",
            Self::Name => "by name",
        }
    }
}

/// The keys of all gateways.
pub(super) fn sorted<'s>(
    seen: &'s [Seen],
    order: Order,
    keys: impl Fn(&'s Figures) -> &'s [KeyNow],
) -> Rows<'s> {
    let mut rows: Vec<Row<'s>> = Vec::new();
    let mut repeated = 0;
    // Where the row of a shared bucket is. Gateways of different stores may have limits and callers
    // of the same names.
    let mut shared: BTreeMap<(&str, &str, Option<&str>, &str), usize> = BTreeMap::new();
    for one in seen {
        let Ok(figures) = &one.reported else { continue };
        for key in keys(figures) {
            let tier = key.count.tier.as_deref();
            if let Some(store) = figures.store_of(&key.limit) {
                let name = key.count.key.identifying();
                match shared.entry((store, &key.limit, tier, name)) {
                    Entry::Occupied(place) => {
                        rows[*place.get()].add(key);
                        repeated += 1;
                        continue;
                    }
                    Entry::Vacant(place) => place.insert(rows.len()),
                };
            }
            rows.push(Row {
                gateway: Cow::Borrowed(&one.name),
                at: &figures.at,
                key: Cow::Borrowed(key),
                gateways: 1,
            });
        }
    }
    rows.sort_by(|one, other| {
        let (one, other) = (&one.key.count, &other.key.count);
        let by = match order {
            Order::Requests => other.count.cmp(&one.count),
            Order::Until => other.until.cmp(&one.until),
            Order::Name => one.key.identifying().cmp(other.key.identifying()),
        };
        by.then_with(|| other.count.cmp(&one.count))
    });
    Rows { rows, repeated }
}

/// The limits of all gateways with their sums, those that refuse most first.
pub(super) fn limits(figures: &[&Figures]) -> Vec<LimitFigures> {
    let mut sums: BTreeMap<(String, Option<String>, bool), LimitFigures> = BTreeMap::new();
    for limit in figures.iter().flat_map(|one| &one.limits) {
        let counts = &limit.counts;
        let name = (counts.limit.clone(), counts.tier.clone(), counts.candidate);
        sums.entry(name)
            .and_modify(|sum| sum.add(limit))
            .or_insert_with(|| limit.clone());
    }
    let mut limits: Vec<LimitFigures> = sums.into_values().collect();
    limits.sort_by_key(|limit| std::cmp::Reverse((limit.counts.refused, limit.counts.allowed)));
    limits
}

pub(super) fn refused_table(rows: &[Row<'_>], several: bool) -> Table {
    let heads = ["KEY", "LIMIT", "UNTIL", ">LOST", "SINCE", "IN LOGS"];
    let mut table = Table::new(&heads, several);
    for Row {
        gateway, at, key, ..
    } in rows
    {
        let count = &key.count;
        let by = match count.blocked_by() {
            Some(by) => format!(", blocked by {by}"),
            None => String::new(),
        };
        let until = match &count.until {
            Some(until) => format!(
                "{} (in {}){by}",
                of_day(until),
                span(instant(until) - instant(at))
            ),
            None => format!("not known{by}"),
        };
        table.row(
            gateway,
            vec![
                Cell::new(count.key.identifying(), Look::Plain),
                Cell::new(&variant(&key.limit, count.tier.as_deref()), Look::Plain),
                Cell::new(&until, Look::Bad),
                Cell::new(&lost(count.count, count.count_error), Look::Plain),
                Cell::new(of_day(&count.since), Look::Plain),
                in_logs(&count.key),
            ],
        );
    }
    table
}

pub(super) fn near_table(rows: &[Row<'_>], several: bool) -> Table {
    let mut table = Table::new(&["KEY", "LIMIT", ">LEFT", "FULL IN", "IN LOGS"], several);
    for Row { gateway, key, .. } in rows {
        let count = &key.count;
        let level = count.now.level.as_ref();
        let left = match level {
            None => "?".to_owned(),
            Some(level) if level.currency.is_some() || level.owed > 0 => level.left(),
            Some(level) => grouped(level.remaining),
        };
        let full = level.map_or_else(
            || "not known".to_owned(),
            |level| span(i64::try_from(level.full_in_ms).unwrap_or(i64::MAX)),
        );
        table.row(
            gateway,
            vec![
                Cell::new(count.key.identifying(), Look::Plain),
                Cell::new(&variant(&key.limit, count.tier.as_deref()), Look::Plain),
                Cell::new(&left, Look::Warn),
                Cell::new(&full, Look::Plain),
                in_logs(&count.key),
            ],
        );
    }
    table
}

pub(super) fn limit_table(limits: &[LimitFigures]) -> Table {
    let heads = [
        "LIMIT",
        ">ADMITTED/S",
        ">REFUSED/S",
        ">ADMITTED",
        ">REFUSED",
        ">WOULD REFUSE",
        "MODE",
        "IN WORDS",
    ];
    let mut table = Table::new(&heads, false);
    for limit in limits {
        let (counts, rates) = (&limit.counts, limit.per_second);
        let would = match &counts.agreement {
            Some(agreement) => agreement.only_candidate_refuses,
            None => counts.shadow_refused,
        };
        let mode = if counts.candidate {
            "candidate"
        } else {
            &counts.mode
        };
        let refused = rates.map(|rates| rates.refused);
        let look = if refused.is_some_and(|rate| rate > 0.0) {
            Look::Bad
        } else {
            Look::Plain
        };
        table.row(
            "",
            vec![
                Cell::new(&variant(&counts.limit, counts.tier.as_deref()), Look::Plain),
                Cell::new(&rate(rates.map(|rates| rates.allowed)), Look::Plain),
                Cell::new(&rate(refused), look),
                Cell::new(&grouped(counts.allowed), Look::Plain),
                Cell::new(&grouped(counts.refused), Look::Plain),
                Cell::new(&grouped(would), Look::Plain),
                Cell::new(mode, Look::Plain),
                Cell::new(&counts.words, Look::Faint),
            ],
        );
    }
    table
}

/// The name of a key in logs, or its words where the name stands first already.
fn in_logs(key: &Key) -> Cell {
    let text = match key.identifying() == key.name {
        true => &key.key,
        false => &key.name,
    };
    Cell::new(text, Look::Faint)
}

fn variant(limit: &str, tier: Option<&str>) -> String {
    tier.map_or_else(|| limit.to_owned(), |tier| format!("{limit} (tier {tier})"))
}

fn lost(count: u64, error: u64) -> String {
    match error {
        0 => grouped(count),
        _ => format!(
            "{}-{}",
            grouped(count.saturating_sub(error)),
            grouped(count)
        ),
    }
}
