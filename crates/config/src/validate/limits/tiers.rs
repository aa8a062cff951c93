//! `[tiers.*]`, and callers with limits of their own: other numbers for a limit.

use std::collections::HashMap;

use crate::raw::{RawFile, RawTier};
use crate::reading::{At, Context, Field, Place, ShortOr};
use crate::validate::callers::OwnNumbers;
use crate::validate::{check_name, entries_of, entry_of, names_of};
use crate::values::rate::Rate;
use tollgate_policy::identity::callers::own_numbers;

pub(super) type Tier = (At<String>, At<RawTier>);

pub(super) fn check(raw: &RawFile, own: &[OwnNumbers], context: &mut Context<'_>) {
    let names = names_of(&raw.limits);
    for (tier, _) in entries_of(&raw.tiers) {
        check_name(tier, "tier", context);
    }
    let of_tiers = entries_of(&raw.tiers)
        .iter()
        .flat_map(|(_, limits)| &limits.entries);
    let of_callers = own
        .iter()
        .flat_map(|(_, caller)| entries_of(&caller.limits));
    for (limit, _) in of_tiers.chain(of_callers) {
        if !names.contains(&limit.value.as_str()) {
            context.unknown("limit", &limit.value, limit.place, &names);
        }
    }
    let mut seen: HashMap<&str, Place> = HashMap::new();
    for (name, _) in own {
        let first = *seen.entry(name.as_str()).or_insert(name.place);
        if first != name.place {
            let title = format!("caller `{}` has limits of its own twice", name.as_str());
            context
                .twice(title, name.place, first)
                .help("its keys share its buckets: write its limits beside one of them");
        }
    }
}

/// The tiers, and the callers with numbers of their own, that have numbers for `limit`, sorted by name.
pub(super) fn of_limit(limit: &str, raw: &RawFile, own: &[OwnNumbers]) -> Vec<Tier> {
    let mut tiers: Vec<Tier> = Vec::new();
    for (tier, limits) in entries_of(&raw.tiers) {
        let named = limits.entries.iter().find(|(name, _)| name.value == limit);
        tiers.extend(named.map(|(_, numbers)| (tier.clone(), table_of(numbers))));
    }
    let own: Vec<Tier> = own
        .iter()
        .filter_map(|(name, caller)| {
            let own = entry_of(&caller.limits, limit);
            let of_tier = || {
                let tier = caller.tier.get()?;
                let (_, numbers) = tiers.iter().find(|(name, _)| name.value == tier.as_str())?;
                Some(numbers.clone())
            };
            let numbers = own.map(|(_, numbers)| table_of(numbers)).or_else(of_tier)?;
            Some((name.with(own_numbers(name.as_str())), numbers))
        })
        .collect();
    tiers.extend(own);
    tiers.sort_by(|one, other| one.0.value.cmp(&other.0.value));
    tiers
}

fn table_of(numbers: &At<ShortOr<Rate, RawTier>>) -> At<RawTier> {
    let table = match &numbers.value {
        ShortOr::Short(rate) => RawTier {
            rate: Field::Here(numbers.with(*rate)),
            ..RawTier::default()
        },
        ShortOr::Table(table) => table.clone(),
    };
    numbers.with(table)
}
