//! What the descriptors of a request draw from, and which quotas a draw spares.
//!
//! Quotas refuse a request only together. A draw grants all of its claims or none, so those that are
//! used up are left out of its verdict while another one has units left: a refused request charges
//! nothing at any instant.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{DescriptorAsked, DescriptorStatus, StatusOfLimit};
use tollgate_limit::{Limit, Micros, Standing, UNITS_MAX, Verdict};
use tollgate_limiter::{Denied, Outcome};
use tollgate_policy::claims::domains::DescriptorMatch;
use tollgate_policy::{Claims, Policy, TooManyBuckets};

pub(super) enum Applies<'p> {
    /// Nothing: it matches no rule, or a rule that another one replaces.
    Nothing,
    Unlimited,
    Refuses(&'p Arc<str>, bool),
    /// Limits: the positions of their charges.
    Limits(DescriptorMatch<'p>, SmallVec<[usize; 2]>),
    GivesBack(DescriptorMatch<'p>, u64),
}

/// The descriptors of a request whose quota does not refuse in a draw, one bit each.
pub(super) type Spared = u64;

/// What a request draws from. Every quota refuses in it; a draw spares some.
pub(super) struct Plan<'p> {
    pub(super) descriptors: Vec<Applies<'p>>,
    pub(super) claims: Claims,
    /// How many descriptors with limits refuse only together.
    pub(super) quotas: usize,
    pub(super) client: Option<IpAddr>,
}

impl<'p> Plan<'p> {
    /// `spared`: descriptors whose quota is used up, and does not refuse by itself.
    pub(super) fn of(
        policy: &'p Policy,
        domain: &str,
        asked: &[DescriptorAsked<'_>],
        spared: Spared,
    ) -> Result<Self, TooManyBuckets> {
        let mut found: SmallVec<[Option<DescriptorMatch<'p>>; 4]> = asked
            .iter()
            .map(|one| {
                policy
                    .domains
                    .find(domain, &one.entries, one.numbers.is_some())
            })
            .collect();
        let client = found.iter().flatten().find_map(DescriptorMatch::client);
        let rules = found.iter().flatten().map(|found| found.rule);
        let replaced: SmallVec<[&Arc<str>; 4]> = rules.flat_map(|rule| &rule.replaces).collect();
        // A rule that another one replaces does not apply.
        for one in &mut found {
            let _ = one.take_if(|found| {
                let name = found.rule.name.as_ref();
                name.is_some_and(|name| replaced.contains(&name))
            });
        }
        let rules = found.iter().flatten().map(|found| found.rule);
        let quotas = rules
            .filter(|rule| rule.quota && !rule.limits.is_empty())
            .count();
        let mut plan = Self {
            descriptors: Vec::with_capacity(asked.len()),
            claims: Claims::default(),
            quotas,
            client,
        };
        let several = quotas > 1;
        for (place, (one, found)) in asked.iter().zip(found).enumerate() {
            let applies = match found {
                None => Applies::Nothing,
                Some(found) if found.rule.refuses => {
                    Applies::Refuses(found.rule.called(), found.rule.quota)
                }
                Some(found) if found.rule.limits.is_empty() => Applies::Unlimited,
                Some(found) if one.gives_back => Applies::GivesBack(found, one.hits),
                Some(found) => {
                    let enforced = !(several && found.rule.quota && is_set(spared, place));
                    let hits = one.hits.min(UNITS_MAX);
                    let places =
                        policy.charge(&mut plan.claims, &found, hits, one.numbers, enforced)?;
                    Applies::Limits(found, places)
                }
            };
            plan.descriptors.push(applies);
        }
        Ok(plan)
    }

    /// The name of a rule of zero that refuses the request: one does, and all that refuse only
    /// together do if there is no other quota.
    pub(super) fn refused_by(&self) -> Option<&'p Arc<str>> {
        self.descriptors.iter().find_map(|one| match one {
            Applies::Refuses(name, quota) if !quota || self.quotas == 0 => Some(*name),
            _ => None,
        })
    }

    /// The places of the descriptors whose quotas refuse only together, with their charges.
    fn quotas(&self) -> impl Iterator<Item = (usize, &SmallVec<[usize; 2]>)> {
        let quotas = self.descriptors.iter().enumerate();
        quotas.filter_map(|(place, one)| match one {
            Applies::Limits(found, charges) if found.rule.quota && self.quotas > 1 => {
                Some((place, charges))
            }
            _ => None,
        })
    }

    /// The quotas to spare in a draw, by how their buckets stand: those that are used up, if one has
    /// units left. If all are used up, the one that has units first refuses the request, so that the
    /// wait it names is that of the request.
    pub(super) fn to_spare(&self, outcomes: &[Outcome]) -> Spared {
        let (mut used_up, mut all, mut first) = (0, true, None);
        for (place, charges) in self.quotas() {
            let waits = charges.iter().filter_map(|charge| {
                let enforced = self.claims.charges()[*charge].enforced;
                let standing = &outcomes.get(*charge)?.standing;
                let refuses = enforced && !standing.verdict.is_allow();
                refuses.then(|| wait(standing))
            });
            match waits.max() {
                Some(wait) => {
                    used_up |= bit(place);
                    let sooner = |(least, _): (Micros, usize)| wait < least;
                    if first.is_none_or(sooner) {
                        first = Some((wait, place));
                    }
                }
                None => all = false,
            }
        }
        match first {
            Some((_, place)) if all => used_up & !bit(place),
            _ => used_up,
        }
    }

    /// Whether a quota refused alone, and not any other limit.
    pub(super) fn is_refused_by_quotas(&self, denied: &Denied) -> bool {
        let is_quota = |place| self.quotas().any(|(_, charges)| charges.contains(&place));
        !denied.is_blocked() && denied.refused().all(is_quota)
    }

    /// How each descriptor stands. `outcomes` of the claims are empty if nothing was drawn.
    pub(super) fn statuses(&self, policy: &Policy, outcomes: &[Outcome]) -> Vec<DescriptorStatus> {
        let status = |one: &Applies<'_>| match one {
            Applies::Nothing | Applies::GivesBack(..) => DescriptorStatus::default(),
            Applies::Unlimited => DescriptorStatus {
                unlimited: true,
                ..DescriptorStatus::default()
            },
            Applies::Refuses(..) => DescriptorStatus {
                over_limit: true,
                ..DescriptorStatus::default()
            },
            Applies::Limits(found, places) => {
                let known = places.iter().filter_map(|place| {
                    let standing = outcomes.get(*place)?.asked()?;
                    let charge = &self.claims.charges()[*place];
                    let limit = &*policy.limits[charge.limit];
                    let refuses = charge.enforced && !standing.verdict.is_allow();
                    Some((refuses, standing, limit))
                });
                // The one that refuses for the longest time, or leaves the least.
                let nearest = known.max_by_key(|(refuses, standing, _)| {
                    let least = std::cmp::Reverse(standing.remaining());
                    (*refuses, refuses.then_some(wait(standing)), least)
                });
                let over_limit = nearest.is_some_and(|(refuses, ..)| refuses);
                DescriptorStatus {
                    over_limit,
                    limit: nearest.and_then(|(refuses, standing, limit)| {
                        StatusOfLimit::of(found.rule.name.as_ref(), refuses, standing, limit)
                    }),
                    unlimited: places.is_empty(),
                }
            }
        };
        self.descriptors.iter().map(status).collect()
    }
}

/// How long a refused request has to wait; the longest where no wait helps.
fn wait(standing: &Standing) -> Micros {
    match standing.verdict {
        Verdict::Allow { .. } => Micros::ZERO,
        Verdict::Deny { retry_after } => retry_after.unwrap_or(Micros(u64::MAX)),
    }
}

const fn bit(place: usize) -> Spared {
    // (A request has at most 64 descriptors.)
    if place < 64 { 1 << place } else { 0 }
}

const fn is_set(spared: Spared, place: usize) -> bool {
    spared & bit(place) != 0
}

impl StatusOfLimit {
    fn of(
        name: Option<&Arc<str>>,
        refuses: bool,
        standing: &Standing,
        limit: &Limit,
    ) -> Option<Self> {
        let quota = limit.algorithm.quota()?;
        let reset = match standing.verdict {
            Verdict::Deny { retry_after } if refuses => retry_after,
            _ => Some(standing.reset),
        };
        Some(Self {
            name: Arc::clone(name.unwrap_or(&limit.name)),
            amount: quota.amount,
            period: quota.period,
            remaining: standing.remaining(),
            reset,
        })
    }
}
