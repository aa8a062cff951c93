//! A policy that is put to a log: what each request would draw from, and what the log lacks to tell.

mod needs;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use http::header::HeaderName;
use smallvec::SmallVec;

use crate::classes::{Interner, small};
use crate::log::{Kind, Own, Record};
use crate::request::{Names, Request};
use needs::Needs;
use tollgate_limit::key::is_within_share;
use tollgate_limit::{Limit, Mode};
use tollgate_policy::identity::keys;
use tollgate_policy::{Cost, Match, Peer, Policy, Rule};

/// A policy, and the keys that requests have under each of its rules.
#[derive(Debug)]
pub(crate) struct Subject<'p> {
    pub(crate) policy: &'p Policy,
    /// By rule; a key's place is its number.
    pub(crate) keys: Vec<Interner>,
    /// Whether every rule counts requests, so that a mapped cost is what the user wants charged.
    fixed: bool,
    needs: Vec<Needs>,
    /// Limits that Tollgate's own log has named so far.
    named: BTreeSet<String>,
    /// Requests that no route takes.
    pub(crate) unrouted: u64,
    /// By rule: requests of its routes, and those without one of the headers that hold its key.
    pub(crate) keyless: Vec<[u64; 2]>,
}

/// What one request draws from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Side {
    /// The route; `None`: none takes it, or it never came as far as the limits.
    pub(crate) route: Option<u32>,
    pub(crate) charges: SmallVec<[Charge; 2]>,
}

/// One limit that a request is charged on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) rule: u32,
    /// The variant, by index in the policy's limits.
    pub(crate) limit: u32,
    /// The key, by its number under the rule.
    pub(crate) key: u32,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

impl<'p> Subject<'p> {
    pub(crate) fn new(policy: &'p Policy) -> Self {
        let is_fixed = |rule: &Rule| rule.settle.is_none() && matches!(rule.cost, Cost::Fixed(_));
        let priced = policy.routes.iter().flat_map(|route| &route.limits);
        let fixed = priced
            .clone()
            .all(|limit| matches!(limit.cost, None | Some(Cost::Fixed(_))));
        Self {
            policy,
            keys: policy.rules.iter().map(|_| Interner::default()).collect(),
            fixed: fixed && policy.rules.iter().all(is_fixed),
            needs: (0..policy.rules.len())
                .map(|rule| Needs::new(policy, rule))
                .collect(),
            named: BTreeSet::new(),
            unrouted: 0,
            keyless: vec![[0; 2]; policy.rules.len()],
        }
    }

    pub(crate) fn wanted(&self) -> HashSet<HeaderName> {
        let mut wanted: HashSet<HeaderName> = HashSet::new();
        for needs in &self.needs {
            wanted.extend(needs.headers.iter().cloned());
            wanted.extend(needs.price.clone());
        }
        for route in &self.policy.routes {
            wanted.extend(route.pattern.headers.iter().map(|(name, _)| name.clone()));
        }
        if self.policy.address.trusts(None) || !self.policy.address.trusted_proxies.is_empty() {
            wanted.extend(self.policy.address.header.names());
        }
        wanted
    }

    pub(crate) fn side(&mut self, request: Option<&Request>, record: &Record<'_>, at: u64) -> Side {
        let mut side = Side::default();
        let Some(request) = request else {
            self.unrouted += 1;
            return side;
        };
        if let Some(own) = &record.own
            && own.refused
            && own.limits.is_empty()
            && !REASONS_OF_ROUTES.contains(&own.reason.as_str())
        {
            // It never came as far as the limits, and would not under another file.
            return side;
        }
        // Tollgate's own log names the client: its forwarding headers have been read already.
        let peer = Peer {
            address: request.client,
            port: 0,
            tls: false,
            unnamed: record.kind == Kind::Tollgate,
        };
        let host = Some(request.host.as_str());
        let (method, uri, headers) = (&request.method, &request.uri, &request.headers);
        let policy = self.policy;
        let Ok(described) = policy.describe(host, method, uri, headers, peer, None) else {
            self.unrouted += 1;
            return side;
        };
        let Some(matched) = policy.route(&described) else {
            self.unrouted += 1;
            return side;
        };
        side.route = u32::try_from(matched.route).ok();
        // Where the log names keys itself, headers are not what it lacks.
        if record.own.is_none() && record.key.is_none() {
            for limit in &policy.routes[matched.route].limits {
                let wanted = &self.needs[limit.rule].headers;
                if !wanted.is_empty() {
                    let is_absent = wanted.iter().any(|name| !headers.contains_key(name));
                    let [requests, absent] = &mut self.keyless[limit.rule];
                    *requests += 1;
                    *absent += u64::from(is_absent);
                }
            }
        }
        let seconds = at / 1_000_000;
        let who = match policy.identify(&matched, &described, seconds) {
            Ok(who) if policy.preflight(&described).is_none() => who,
            _ => {
                let mut who = tollgate_policy::Identified::default();
                policy.place_into(&mut who, &matched, &described, seconds);
                who
            }
        };
        let claims = policy.claims(&matched, &who, headers, request.body);
        for charge in claims.charges() {
            if record.own.is_some() && self.needs[charge.rule].is_identity() {
                // The log says which bucket it was, below.
                continue;
            }
            let mut key: SmallVec<[u8; 40]> = SmallVec::from_slice(claims.key(charge));
            if let Some(given) = &record.key
                && self.needs[charge.rule].is_identity()
            {
                key = opaque(given);
            }
            let cost = self.cost(charge.rule, charge.cost, record);
            self.charge(
                &mut side,
                [charge.rule, charge.limit],
                &key,
                cost,
                charge.enforced,
            );
        }
        if record.key.is_some() {
            self.mapped(&mut side, &matched, record);
        }
        if let Some(own) = record.own.as_ref().filter(|_| !who.exempt) {
            for limit in &own.limits {
                if !self.named.contains(&limit.name) {
                    self.named.insert(limit.name.clone());
                }
            }
            self.logged(&mut side, &matched, own, record, request);
        }
        side
    }

    fn charge(
        &mut self,
        side: &mut Side,
        [rule, limit]: [usize; 2],
        key: &[u8],
        cost: u64,
        enforced: bool,
    ) {
        let key = self.keys[rule].number(key);
        side.charges.push(Charge {
            rule: small(rule),
            limit: small(limit),
            key,
            cost,
            enforced,
        });
    }

    /// The price: as the policy reads it, as the mapping says, or as the log has it.
    fn cost(&self, rule: usize, priced: u64, record: &Record<'_>) -> u64 {
        let is_fixed = matches!(self.policy.rules[rule].cost, Cost::Fixed(_));
        match record.cost {
            Some(cost) if self.fixed || !is_fixed || self.policy.rules[rule].settle.is_some() => {
                cost
            }
            _ => priced,
        }
    }

    /// Limits by an identity whose key is the field of `--fields key=`, because no header of the log has it.
    fn mapped(&mut self, side: &mut Side, matched: &Match<'_>, record: &Record<'_>) {
        let Some(given) = &record.key else { return };
        let key = opaque(given);
        let route = &self.policy.routes[matched.route];
        for limit in &route.limits {
            let rule = &self.policy.rules[limit.rule];
            let done = side
                .charges
                .iter()
                .any(|charge| charge.rule as usize == limit.rule);
            if done || !self.needs[limit.rule].is_identity() || rule.is_off() {
                continue;
            }
            let price = rule.price(
                &rule.live,
                limit.cost.as_ref(),
                &http::HeaderMap::new(),
                record.received.into(),
                rule.model_price(route, 0, matched, record.received.into()),
            );
            let cost = self.cost(limit.rule, price, record);
            self.variants(side, limit.rule, &rule.live, &key, cost);
        }
    }

    /// Limits by identity, whose buckets Tollgate's own log names.
    fn logged(
        &mut self,
        side: &mut Side,
        matched: &Match<'_>,
        own: &Own,
        record: &Record<'_>,
        request: &Request,
    ) {
        let policy = self.policy;
        let named = |rule: &Rule| {
            let same = |limit: &&crate::log::OwnLimit| limit.name == *rule.name && !limit.candidate;
            own.limits.iter().find(same)
        };
        // What the log charged and the policy prices by a header: the log's word.
        for charge in &mut side.charges {
            let rule = &policy.rules[charge.rule as usize];
            if self.needs[charge.rule as usize].price.is_some()
                && let Some(logged) = named(rule)
            {
                charge.cost = logged.cost;
            }
        }
        if !own.limits.is_empty() && matches!(record.status, Some(400 | 401)) {
            // Charged for who it did not say it was: only what the log names.
            side.charges
                .retain(|charge| named(&policy.rules[charge.rule as usize]).is_some());
        }
        for limit in &policy.routes[matched.route].limits {
            let rule = &policy.rules[limit.rule];
            if !self.needs[limit.rule].is_identity() || rule.is_off() {
                continue;
            }
            let logged = named(rule);
            let mut key: SmallVec<[u8; 40]> = match logged {
                // A bucket by address, which the log may have written as text that lost bytes.
                Some(logged) if logged.key.starts_with('\0') => opaque(b""),
                Some(logged) => opaque(logged.key.as_bytes()),
                None if !own.caller.is_empty() && !self.named.contains(&*rule.name) => {
                    opaque(own.caller.as_bytes())
                }
                None => continue,
            };
            let by_address = logged.is_some_and(|logged| logged.key.starts_with('\0'));
            if (self.needs[limit.rule].address || by_address)
                && let Some(client) = request.client
            {
                key.extend_from_slice(&policy.address.key(client));
            }
            let tier: Option<Arc<str>> = (!own.tier.is_empty()).then(|| own.tier.as_str().into());
            let live = rule.variant(tier.as_ref());
            let of_route = limit.cost.as_ref();
            let body = request.body.into();
            let route = &policy.routes[matched.route];
            let model = rule.model_price(route, 0, matched, body);
            let price = rule.price(live, of_route, &request.headers, body, model);
            let is_read = self.needs[limit.rule].price.is_some();
            let cost = logged
                .filter(|_| is_read)
                .map_or(price, |logged| logged.cost);
            self.variants(side, limit.rule, live, &key, cost);
        }
    }

    fn variants(&mut self, side: &mut Side, rule: usize, live: &Arc<Limit>, key: &[u8], cost: u64) {
        if live.mode == Mode::Off {
            return;
        }
        let candidate = self.policy.rules[rule].candidate.as_ref();
        for (limit, is_live) in [(Some(live), true), (candidate, false)] {
            if let Some(limit) = limit
                && limit.mode != Mode::Off
            {
                let enforced = is_live
                    && limit.mode == Mode::Enforce
                    && is_within_share(key, limit.enforce_for);
                self.charge(side, [rule, limit.index], key, cost, enforced);
            }
        }
    }

    pub(crate) fn key_words(&self, rule: usize, key: u32, names: &Names) -> String {
        key_words(self.keys[rule].text(key), names)
    }
}

pub(crate) fn key_words(key: &[u8], names: &Names) -> String {
    if let Some(text) = key.strip_prefix(&[OPAQUE]) {
        // Written as they are, keys have the policy's form.
        return match text.first() {
            Some(0..=6) => keys::words(text, false),
            _ => String::from_utf8_lossy(text).into_owned(),
        };
    }
    let words = keys::words(key, false);
    let Some(address) = words.strip_prefix("address ") else {
        return words;
    };
    match address.parse() {
        Ok(address) => names.name(address).unwrap_or_else(|| address.to_string()),
        Err(_) => address.to_owned(),
    }
}

/// A key that the log gives: its tag keeps it apart from every key that a policy makes.
fn opaque(text: &[u8]) -> SmallVec<[u8; 40]> {
    let mut key = SmallVec::new();
    key.push(OPAQUE);
    key.extend_from_slice(text);
    key
}

/// Turned away because of the routes, which may be others in the file that is judged.
const REASONS_OF_ROUTES: [&str; 3] = ["no_route", "method_not_allowed", "host_not_listed"];
/// The tag of keys that the log gives; the policy's begin with lower ones.
const OPAQUE: u8 = 0xff;
