//! A bounded memory of recent requests, against which a new configuration is judged before it takes
//! effect.
//!
//! A request takes three words, and two for each limit that it draws from: its time, a hash of its
//! client's address, numbers of its route and of the caller's tier, and the hash of the key and the
//! cost of each charge. It holds no path and no header. A few keys are kept beside the requests, so
//! that a refused reload can name callers.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use tollgate_limit::key::stable_hash;
use tollgate_limit::{KeyBytes, Role, Timestamp};
use tollgate_policy::{Claims, Identified, Policy, Scope, ScopePart, keys};

/// The recent requests of a gateway: one ring for each worker.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Mutex<Rings>>);

#[derive(Debug, Default)]
struct Rings {
    /// Bytes that all rings may take together; 0: nothing is recorded.
    bytes: usize,
    rings: Vec<Weak<Mutex<Ring>>>,
    /// Numbers of routes, limits and tiers by their words.
    numbers: HashMap<Box<str>, u16>,
    /// The number of policies so far.
    generation: u32,
}

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

/// One worker's end.
#[derive(Debug)]
pub struct Recorder(Arc<Mutex<Ring>>);

/// A request that is about to draw from its limits.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'r> {
    /// When.
    pub at: Timestamp,
    /// Its route, by index.
    pub route: usize,
    /// Its client.
    pub client: Option<IpAddr>,
    /// Its caller.
    pub who: &'r Identified,
    /// What it draws from.
    pub claims: &'r Claims,
}

/// The requests of one worker, in chunks: a reader takes the full ones without copying them.
#[derive(Debug)]
struct Ring {
    full: VecDeque<Arc<Vec<u64>>>,
    open: Vec<u64>,
    /// Words of a chunk, and full chunks that are kept.
    chunk: usize,
    chunks: usize,
    /// Keys by their hash, each in the one place that its hash gives it.
    keys: Vec<(u64, KeyBytes)>,
}

/// The recent requests at one moment.
#[derive(Debug)]
pub struct Requests {
    /// By worker, in the order of time: requests one after another.
    streams: Vec<Vec<Arc<Vec<u64>>>>,
    /// Numbers of routes, limits and tiers by their words.
    pub numbers: HashMap<Box<str>, u16>,
    /// The policy that is in force.
    pub generation: u32,
    keys: HashMap<u64, KeyBytes>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'r> {
    /// Its time.
    pub at: Timestamp,
    /// The hash of the key by its client's address.
    pub address: u64,
    /// Route, tier, generation and number of charges: equal words mean the same.
    pub kind: u64,
    charges: &'r [u64],
}

/// One limit that a request drew from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenCharge {
    /// The hash of its key.
    pub key: u64,
    /// The number of the limit's words.
    pub rule: u16,
    /// Units.
    pub cost: u64,
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
            rings.forget();
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

impl Rings {
    fn resize(&mut self) {
        self.rings.retain(|ring| ring.strong_count() > 0);
        let bytes = self.bytes / self.rings.len().max(1);
        for ring in self.rings.iter().filter_map(Weak::upgrade) {
            *ring.lock() = Ring::new(bytes);
        }
    }

    fn forget(&mut self) {
        self.resize();
    }
}

impl Ring {
    /// A ring that takes at most `bytes`.
    fn new(bytes: usize) -> Self {
        if bytes == 0 {
            return Self {
                full: VecDeque::new(),
                open: Vec::new(),
                chunk: 0,
                chunks: 0,
                keys: Vec::new(),
            };
        }
        let places = (bytes / 16 / size_of::<(u64, KeyBytes)>()).min(KEYS);
        let words = (bytes - places * size_of::<(u64, KeyBytes)>()) / size_of::<u64>();
        let chunk = (words / 8).min(CHUNK);
        Self {
            full: VecDeque::new(),
            open: Vec::with_capacity(chunk),
            chunk,
            chunks: (words / chunk.max(1)).saturating_sub(1),
            keys: vec![(0, KeyBytes::new()); places],
        }
    }

    fn push(&mut self, request: &[u64]) {
        if self.open.len() + request.len() > self.chunk {
            if request.len() > self.chunk {
                return;
            }
            while self.full.len() >= self.chunks {
                self.full.pop_front();
            }
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(self.chunk));
            self.full.push_back(Arc::new(full));
        }
        self.open.extend_from_slice(request);
    }

    fn name(&mut self, hash: u64, key: &KeyBytes) {
        let places = self.keys.len() as u64;
        if places == 0 || key.spilled() {
            return;
        }
        // A few keys per set, so that two keys seldom compete for one place.
        let sets = (places / WAYS as u64).max(1);
        let first = usize::try_from(hash % sets).unwrap_or(0) * WAYS;
        let end = self.keys.len().min(first + WAYS);
        let set = &mut self.keys[first..end];
        if set.iter().any(|(known, _)| *known == hash) {
            return;
        }
        let free = set.iter().position(|(known, _)| *known == 0);
        let replaced = usize::try_from(hash >> 32).unwrap_or(0) % set.len();
        set[free.unwrap_or(replaced)] = (hash, key.clone());
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

impl Requests {
    /// Hands every request on, in the order of time.
    pub fn each(&self, mut each: impl FnMut(Seen<'_>)) {
        let mut streams: Vec<Reader<'_>> = self
            .streams
            .iter()
            .map(|chunks| Reader::new(chunks))
            .collect();
        let mut heads: Vec<Option<Seen<'_>>> = streams.iter_mut().map(Iterator::next).collect();
        loop {
            // Workers are few.
            let first = heads.iter().enumerate();
            let first = first.filter_map(|(place, head)| Some((head.as_ref()?.at, place)));
            let Some((_, place)) = first.min() else {
                return;
            };
            let rival = heads.iter().enumerate();
            let rival = rival.filter(|(other, _)| *other != place);
            let rival = rival.filter_map(|(_, head)| Some(head.as_ref()?.at)).min();
            // A stream is read on while it is not later than the others.
            while let Some(seen) = heads[place]
                && rival.is_none_or(|rival| seen.at <= rival)
            {
                each(seen);
                heads[place] = streams[place].next();
            }
        }
    }

    /// The key of this hash, if it was kept.
    pub fn key(&self, hash: u64) -> Option<&KeyBytes> {
        self.keys.get(&hash)
    }
}

struct Reader<'r> {
    chunks: &'r [Arc<Vec<u64>>],
    rest: &'r [u64],
}

impl<'r> Reader<'r> {
    fn new(chunks: &'r [Arc<Vec<u64>>]) -> Self {
        Self { chunks, rest: &[] }
    }
}

impl<'r> Iterator for Reader<'r> {
    type Item = Seen<'r>;

    fn next(&mut self) -> Option<Seen<'r>> {
        while self.rest.is_empty() {
            let (first, chunks) = self.chunks.split_first()?;
            (self.rest, self.chunks) = (first.as_slice(), chunks);
        }
        let (head, rest) = self.rest.split_first_chunk::<HEAD>()?;
        let charges = usize::try_from(head[2] & 0xff).unwrap_or(0);
        let (charges, rest) = rest.split_at_checked(2 * charges)?;
        self.rest = rest;
        Some(Seen {
            at: Timestamp::from_micros(head[0]),
            address: head[1],
            kind: head[2],
            charges,
        })
    }
}

impl Seen<'_> {
    /// The number of its route's words.
    pub fn route(&self) -> u16 {
        u16::try_from(self.kind >> 48).unwrap_or(0)
    }

    /// The number of its caller's tier; 0: none.
    pub fn tier(&self) -> u16 {
        u16::try_from(self.kind >> 32 & 0xffff).unwrap_or(0)
    }

    /// The policy under which it was recorded.
    pub fn generation(&self) -> u32 {
        u32::try_from(self.kind >> 8).unwrap_or(0) & GENERATION
    }

    /// The limits it drew from, of which there are [`Self::len`].
    pub fn charge(&self, place: usize) -> SeenCharge {
        SeenCharge {
            key: self.charges[2 * place],
            rule: u16::try_from(self.charges[2 * place + 1] >> 48).unwrap_or(0),
            cost: self.charges[2 * place + 1] & COST,
        }
    }

    /// How many limits it drew from.
    pub fn len(&self) -> usize {
        self.charges.len() / 2
    }

    /// Whether it drew from no limit.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// A number that differs where route, tier, generation or the list of limits differs.
    pub fn signature(&self) -> u64 {
        let rules = self
            .charges
            .iter()
            .skip(1)
            .step_by(2)
            .map(|word| word >> 48);
        rules.fold(self.kind, |hash, rule| {
            (hash ^ rule)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        })
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
/// Words of a chunk: 64 KiB.
const CHUNK: usize = 8 << 10;
/// Keys that a worker keeps to name callers.
const KEYS: usize = 1 << 10;
/// Keys of one set of that table.
const WAYS: usize = 8;
