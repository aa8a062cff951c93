//! Finds the buckets of a caller that a person names, without a request.

mod buckets;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::plan::reached;
use crate::identity::callers::Caller;
use crate::identity::keys;
use crate::identity::source::{Ambiguous, Source};
use crate::identity::{Identity, WhenMissing, WhenUnknown};
use crate::{Policy, Rule, Scope, ScopePart};
use tollgate_limit::KeyBytes;

pub use buckets::KnownBucket;

#[derive(Clone, Debug)]
pub struct Sought {
    /// The part of a bucket's key for this caller.
    pub key: KeyBytes,
    pub caller: Option<Arc<Caller>>,
    /// Whether callers are listed, this is none of them, and its key is accepted all the same.
    pub is_unlisted: bool,
    /// The buckets of the same descriptor that have another key: each with its limit.
    pub elsewhere: Vec<(Arc<str>, KeyBytes)>,
    by: By,
}

#[derive(Clone, Debug)]
enum By {
    /// A part of a scope; `None`: everyone.
    Part {
        part: Option<ScopePart>,
        /// The other identities that have this key where theirs is missing or unknown.
        replaced: Vec<Replaced>,
    },
    /// The limits that have a bucket with the whole key.
    Buckets(Vec<KnownBucket>),
}

/// An identity whose key is missing or unknown, so that another one counts.
#[derive(Clone, Debug)]
struct Replaced {
    identity: usize,
    tier: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no identity is called `{0}`")]
    Identity(String),
    #[error("`{0}` is not an IP address")]
    Address(String),
    #[error(
        "{0:?} is no key: it is blank, contains a control character or can be read in several ways"
    )]
    NoKey(String),
    #[error("no rule for descriptors has the domain `{0}`")]
    Domain(String),
    #[error(
        "`{0}` is no entry of a descriptor: a descriptor is given by its domain and its entries, `DOMAIN KEY=VALUE KEY=VALUE`"
    )]
    Entry(String),
    #[error(
        "no rule of domain `{0}` matches this descriptor: it has the same entries as the rule, in the same order"
    )]
    Descriptor(String),
    #[error("a key of `{identity}` has {sources} values")]
    Values { identity: Arc<str>, sources: usize },
    /// No listed caller has this name or key, and the identity has no bucket for others.
    #[error("`{value}` is no caller of `{identity}`, and {}", without_bucket(*.when_unknown))]
    Unknown {
        identity: Arc<str>,
        value: String,
        when_unknown: WhenUnknown,
    },
}

/// Why an unknown key has no bucket of its own.
fn without_bucket(when_unknown: WhenUnknown) -> &'static str {
    match when_unknown {
        WhenUnknown::Refuse => "unknown callers are refused",
        WhenUnknown::UseAddress => "unknown callers are counted by their address",
        WhenUnknown::Accept => "unknown callers are accepted",
    }
}

impl Sought {
    /// What has this key, and is none of the listed callers.
    fn new(key: KeyBytes, by: By) -> Self {
        Self {
            key,
            caller: None,
            is_unlisted: false,
            elsewhere: Vec::new(),
            by,
        }
    }

    /// Whether this caller alone decides which bucket of `rule` it uses.
    pub fn decides(&self, rule: &Rule) -> bool {
        match (&self.by, &rule.scope) {
            (By::Buckets(_), _) => self.known_bucket(rule).is_some(),
            (By::Part { part, .. }, Scope::Everyone) => part.is_none(),
            (By::Part { .. }, Scope::Identities(parts)) => {
                matches!(parts.as_slice(), [one] if self.is(*one))
            }
        }
    }

    /// Whether the caller is a part of the keys of `rule`, beside other parts.
    pub fn is_part_of(&self, rule: &Rule) -> bool {
        let parts = rule.scope.parts();
        parts.len() > 1 && parts.iter().any(|one| self.is(*one))
    }

    fn is(&self, one: ScopePart) -> bool {
        matches!(&self.by, By::Part { part, .. } if *part == Some(one))
            || self.replaced(one).is_some()
    }

    fn replaced(&self, part: ScopePart) -> Option<&Replaced> {
        let By::Part { replaced, .. } = &self.by else {
            return None;
        };
        let mut replaced = replaced.iter();
        replaced.find(|one| ScopePart::Identity(one.identity) == part)
    }

    fn known_bucket(&self, rule: &Rule) -> Option<&KnownBucket> {
        let By::Buckets(buckets) = &self.by else {
            return None;
        };
        buckets.iter().find(|one| one.limit == rule.name)
    }

    /// The name of the caller's numbers under `rule`: its own or its tier's, or those of the
    /// addresses that count in place of a key.
    pub fn numbers(&self, rule: &Rule) -> Option<&Arc<str>> {
        if let By::Buckets(_) = self.by {
            return self.known_bucket(rule)?.numbers.as_ref();
        }
        match (&self.caller, rule.scope.parts()) {
            (Some(caller), _) => caller.numbers.as_ref().or(caller.tier.as_ref()),
            (None, [one]) => self.replaced(*one)?.tier.as_ref(),
            (None, _) => None,
        }
    }
}

impl Policy {
    /// The caller whose key has these `values` under `identity`: an identity's name, `address`,
    /// `everyone`, or `descriptor` with a domain and `KEY=VALUE` entries. A known caller may also be
    /// given by its name.
    pub fn look_up(&self, identity: &str, values: &[&str]) -> Result<Sought, LookupError> {
        match identity {
            "descriptor" => self.look_up_descriptor(values),
            _ => self.find(identity, values, true),
        }
    }

    /// Like [`Policy::look_up`], for a key that a client may have chosen: the name of a known caller
    /// is not its key.
    /// A caller that is not listed is no error.
    pub fn look_up_key(&self, identity: &str, values: &[&str]) -> Result<Sought, LookupError> {
        self.find(identity, values, false)
    }

    /// What has the key of a caller of this name, under the identity with this index.
    fn named_caller(&self, identity: usize, name: &str) -> Sought {
        let mut key = KeyBytes::new();
        keys::push(&mut key, keys::CALLER, name.as_bytes());
        let by = By::Part {
            part: Some(ScopePart::Identity(identity)),
            replaced: self.replaced_by(identity),
        };
        Sought::new(key, by)
    }

    pub fn identity(&self, name: &str) -> Option<usize> {
        self.identities
            .iter()
            .position(|known| *known.name == *name)
    }

    /// The identities for which the address may count.
    fn replaced_by_address(&self) -> Vec<Replaced> {
        let counts_address = |identity: &&Identity| {
            let unknown =
                identity.callers.is_some() && identity.when_unknown == WhenUnknown::UseAddress;
            unknown || identity.when_missing == WhenMissing::UseAddress
        };
        let replaced = |identity: usize| {
            let reached = reached(&[identity], &self.identities);
            let mut reached = reached.iter().map(|at| &self.identities[*at]);
            let tier = reached.find(counts_address)?.address_tier.clone();
            Some(Replaced { identity, tier })
        };
        (0..self.identities.len()).filter_map(replaced).collect()
    }

    /// The identities for which a known caller of `other` may count: its key is the same there.
    fn replaced_by(&self, other: usize) -> Vec<Replaced> {
        let all = (0..self.identities.len()).filter(|identity| *identity != other);
        all.filter(|identity| reached(&[*identity], &self.identities).contains(&other))
            .map(|identity| Replaced {
                identity,
                tier: None,
            })
            .collect()
    }

    fn find(&self, identity: &str, values: &[&str], by_name: bool) -> Result<Sought, LookupError> {
        let mut key = KeyBytes::new();
        let found = |part, replaced, key| Sought::new(key, By::Part { part, replaced });
        match (identity, values) {
            ("everyone", []) => return Ok(found(None, Vec::new(), key)),
            ("address", [value]) => {
                let address: IpAddr = value
                    .parse()
                    .map_err(|_| LookupError::Address((*value).to_owned()))?;
                keys::push_address(&mut key, Some(self.address.key(address)));
                let replaced = self.replaced_by_address();
                return Ok(found(Some(ScopePart::Address), replaced, key));
            }
            _ => {}
        }
        let index = self
            .identity(identity)
            .ok_or_else(|| LookupError::Identity(identity.to_owned()))?;
        let identity = &self.identities[index];
        let callers = identity.callers.as_ref().map(|callers| callers.load());
        let named = callers
            .as_ref()
            .filter(|_| by_name)
            .and_then(|callers| callers.named(values.first()?));
        let spelt: Vec<_> = match named {
            // A name follows no rule of a key.
            Some(_) => Vec::new(),
            None => self::spelt(identity, values)?,
        };
        let known = named.or_else(|| callers?.find(spelt.first()?));
        if let Some(caller) = known {
            return Ok(Sought {
                caller: Some(Arc::clone(&caller)),
                ..self.named_caller(index, &caller.name)
            });
        }
        let sources = if identity.first_of {
            1
        } else {
            identity.sources.len()
        };
        if values.len() != sources {
            return Err(LookupError::Values {
                identity: Arc::clone(&identity.name),
                sources,
            });
        }
        let is_unlisted = identity.callers.is_some();
        if is_unlisted && by_name && identity.when_unknown != WhenUnknown::Accept {
            return Err(LookupError::Unknown {
                identity: Arc::clone(&identity.name),
                value: values.join(" "),
                when_unknown: identity.when_unknown,
            });
        }
        for value in &spelt {
            keys::push(&mut key, keys::VALUE, value);
        }
        Ok(Sought {
            is_unlisted,
            ..found(Some(ScopePart::Identity(index)), Vec::new(), key)
        })
    }
}

/// The values of a key in the spelling that they have as a key.
fn spelt<'v>(identity: &Identity, values: &[&'v str]) -> Result<Vec<Cow<'v, [u8]>>, LookupError> {
    let spelling = |(place, value): (usize, &&'v str)| {
        let read = identity.source_of(place).spelling(value);
        let value = read.map_err(|_: Ambiguous| LookupError::NoKey((*value).to_owned()))?;
        value.ok_or_else(|| LookupError::NoKey(values[place].to_owned()))
    };
    values.iter().enumerate().map(spelling).collect()
}

impl Identity {
    /// The source whose rules a written value follows: of several alternatives a cookie, whose
    /// values have more than one spelling.
    fn source_of(&self, place: usize) -> &Source {
        let cookie = |source: &&Source| matches!(source, Source::Cookie(_));
        let any = self.first_of.then(|| self.sources.iter().find(cookie));
        any.flatten()
            .or_else(|| self.sources.get(place))
            .unwrap_or(&Source::Address)
    }
}

impl Scope {
    /// The parts as the file names them; none: one bucket for everyone.
    pub fn names<'p>(&'p self, policy: &'p Policy) -> Vec<&'p str> {
        let name = |part: &ScopePart| -> &'p str {
            match part {
                ScopePart::Address => "address",
                ScopePart::Route => "route",
                ScopePart::Method => "method",
                ScopePart::Host => "host",
                ScopePart::Descriptor => "descriptor",
                ScopePart::Identity(index) => &policy.identities[*index].name,
            }
        };
        self.parts().iter().map(name).collect()
    }
}
