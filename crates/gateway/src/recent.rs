//! A bounded memory of recent requests, against which a new configuration is judged before it takes
//! effect.
//!
//! A request takes three words, and two for each limit that it draws from: its time, a hash of its
//! client's address, numbers of its route and of the caller's tier, and the hash of the key and the
//! cost of each charge. It holds no path and no header. A few keys are kept beside the requests, so
//! that a refused reload can name callers.

mod requests;
mod ring;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use ring::{Ring, Rings};
use tollgate_limit::key::stable_hash;
use tollgate_limit::{KeyBytes, Role, Timestamp};
use tollgate_policy::{Claims, Identified, Policy, Scope, ScopePart, keys};

pub use requests::{Requests, Seen, SeenCharge};

/// The recent requests of a gateway: one ring for each worker.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Mutex<Rings>>);

/// The numbers under which requests of one policy are recorded.
#[derive(Debug)]
pub struct Numbers {
    generation: u32,
    routes: Vec<u16>,
    rules: Vec<u16>,
    tiers: HashMap<Arc<str>, u16>,
    /// By rule: whether its key is the client's address alone.
    by_address: Vec<bool>,
}

/// Records the requests of one worker.
#[derive(Debug)]
pub struct Recorder(Arc<Mutex<Ring>>);

/// A request that is about to draw from its limits.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'r> {
    /// The time.
    pub at: Timestamp,
    /// Its route, by index.
    pub route: usize,
    /// Its client.
    pub client: Option<IpAddr>,
    /// Its caller.
    pub who: &'r Identified,
    /// The buckets that it draws from.
    pub claims: &'r Claims,
}

impl Recent {
    /// The numbers for `policy`, whose requests may take `bytes` in memory; `None`: 0 bytes.
    pub fn numbers(&self, policy: &Policy, bytes: usize) -> Option<Arc<Numbers>> {
        let mut rings = self.0.lock();
        if rings.bytes != bytes {
            rings.bytes = bytes;
            rings.resize();
        }
        if bytes == 0 {
            rings.numbers = HashMap::new();
            return None;
        }
        let words = policy.routes.len() + 2 * policy.limits.len();
        if rings.numbers.len() + words > usize::from(u16::MAX) {
            // Many reloads with ever new names: what was recorded under the old ones is given up.
            rings.numbers.clear();
            rings.resize();
        }
        if words >= usize::from(u16::MAX) {
            return None;
        }
        rings.generation = (rings.generation + 1) & GENERATION;
        let mut number = |words: String| {
            let next = u16::try_from(rings.numbers.len() + 1).unwrap_or(u16::MAX);
            *rings.numbers.entry(words.into()).or_insert(next)
        };
        let routes = policy.routes.iter().map(|route| route_words(&route.name));
        let routes: Vec<u16> = routes.map(&mut number).collect();
        let rules = (0..policy.rules.len()).map(|rule| rule_words(policy, rule));
        let rules: Vec<u16> = rules.map(&mut number).collect();
        let tiers = policy.rules.iter().flat_map(|rule| &rule.tiers);
        let tiers = tiers.map(|(tier, _)| (Arc::clone(tier), number(tier_words(tier))));
        let tiers = tiers.collect();
        Some(Arc::new(Numbers {
            generation: rings.generation,
            routes,
            rules,
            tiers,
            by_address: policy
                .rules
                .iter()
                .map(|rule| is_by_address(&rule.scope))
                .collect(),
        }))
    }

    /// The recorder of one more worker.
    pub fn recorder(&self) -> Recorder {
        let ring = Arc::new(Mutex::new(Ring::new(0)));
        let mut rings = self.0.lock();
        rings.rings.push(Arc::downgrade(&ring));
        rings.resize();
        Recorder(ring)
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        let rings = self.0.lock();
        let mut requests = Requests {
            streams: Vec::new(),
            numbers: rings.numbers.clone(),
            generation: rings.generation,
            keys: HashMap::from([(stable_hash(&[]), KeyBytes::new())]),
        };
        for ring in rings.rings.iter().filter_map(Weak::upgrade) {
            let ring = ring.lock();
            let mut stream: Vec<Arc<Vec<u64>>> = ring.full.iter().map(Arc::clone).collect();
            stream.push(Arc::new(ring.open.clone()));
            requests.streams.push(stream);
            let used = ring.keys.iter().filter(|(hash, _)| *hash != 0);
            requests.keys.extend(used.cloned());
        }
        requests
    }
}

impl Recorder {
    /// Records a request that is about to be judged.
    pub fn record(&self, numbers: &Numbers, policy: &Policy, drawing: &Drawing<'_>) {
        let Drawing {
            at,
            route,
            client,
            who,
            claims,
        } = *drawing;
        let mut request: SmallVec<[u64; 16]> = SmallVec::from_slice(&[at.as_micros(), 0, 0]);
        let mut address = None;
        let mut ring = self.0.lock();
        for charge in claims.charges() {
            if policy.limits[charge.limit].role == Role::Candidate {
                continue;
            }
            let key = claims.key(charge);
            let hash = stable_hash(key);
            if numbers.by_address[charge.rule] {
                address = Some(hash);
            }
            ring.name(hash, key);
            let rule = u64::from(numbers.rules[charge.rule]);
            request.push(hash);
            request.push(rule << 48 | charge.cost.min(COST));
        }
        request[1] = address.unwrap_or_else(|| {
            let key = keys::of_address(client.map(|client| policy.address.key(client)));
            let hash = stable_hash(&key);
            ring.name(hash, &key);
            hash
        });
        let tier = who.numbers().and_then(|tier| numbers.tiers.get(tier));
        let charges = (request.len() - HEAD) as u64 / 2;
        request[2] = u64::from(numbers.routes[route]) << 48
            | u64::from(tier.copied().unwrap_or(0)) << 32
            | u64::from(numbers.generation) << 8
            | charges.min(0xff);
        request.truncate(HEAD + 2 * 0xff);
        ring.push(&request);
    }
}

/// A route as it is recorded.
pub fn route_words(name: &str) -> String {
    format!("route {name}")
}

/// A tier as it is recorded.
pub fn tier_words(name: &str) -> String {
    format!("tier {name}")
}

/// A limit as it is recorded: its name and how it is split. Requests recorded under equal words draw
/// from the same buckets.
pub fn rule_words(policy: &Policy, rule: usize) -> String {
    let rule = &policy.rules[rule];
    format!(
        "limit {} per {}",
        rule.name,
        scope_words(policy, &rule.scope)
    )
}

/// How a limit is split, with the sources of its identities: two that differ have other keys.
pub fn scope_words(policy: &Policy, scope: &Scope) -> String {
    let Scope::Identities(parts) = scope else {
        return String::new();
    };
    let part = |part: &ScopePart| match part {
        ScopePart::Identity(index) => {
            let identity = &policy.identities[*index];
            format!(
                "{} {:?} {} {:?}",
                identity.name, identity.sources, identity.first_of, identity.when_missing
            )
        }
        other => format!("{other:?}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(" + ")
}

/// Whether the client's address alone is the key.
pub fn is_by_address(scope: &Scope) -> bool {
    matches!(scope, Scope::Identities(parts) if parts.as_slice() == [ScopePart::Address])
}

/// Words of a request before its charges.
const HEAD: usize = 3;
/// The highest cost that is recorded.
const COST: u64 = (1 << 48) - 1;
const GENERATION: u32 = (1 << 24) - 1;
