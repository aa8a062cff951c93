//! Finds buckets by their whole key: of a descriptor, of a listed caller, and of a key of which only
//! the bytes are known.

use std::sync::Arc;

use super::{By, LookupError, Sought};
use crate::claims::domains::Entry;
use crate::identity::callers::Caller;
use crate::{Policy, Rule, ScopePart};
use tollgate_limit::KeyBytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownBucket {
    pub limit: Arc<str>,
    pub numbers: Option<Arc<str>>,
}

impl Policy {
    /// The descriptor with this domain and these entries, by the rule that it reaches.
    pub(super) fn look_up_descriptor<'v>(&self, values: &[&'v str]) -> Result<Sought, LookupError> {
        let (domain, entries) = values.split_first().unwrap_or((&"", &[]));
        if !self.domains.has(domain) {
            return Err(LookupError::Domain((*domain).to_owned()));
        }
        let entry = |text: &&'v str| match text.split_once('=') {
            Some((key, value)) => Ok(Entry { key, value }),
            None => Err(LookupError::Entry((*text).to_owned())),
        };
        let entries = entries.iter().map(entry);
        let entries = entries.collect::<Result<Vec<Entry<'v>>, LookupError>>()?;
        let found = self.domains.find(domain, &entries, true);
        let found = found.ok_or_else(|| LookupError::Descriptor((*domain).to_owned()))?;
        let buckets = self.buckets(&found, 1).into_iter();
        let (own, other): (Vec<_>, Vec<_>) = buckets
            .map(|(limit, key, _)| (Arc::clone(&limit.name), key))
            .partition(|(_, key)| key[..] == *found.key());
        let own = own.into_iter().map(|(limit, _)| KnownBucket {
            limit,
            numbers: None,
        });
        Ok(Sought {
            elsewhere: other,
            ..Sought::new(
                KeyBytes::from_slice(found.key()),
                By::Buckets(own.collect()),
            )
        })
    }

    /// The caller whose bucket has the whole `key` under each limit of `known`. Other limits with the
    /// same scope as one of them have a bucket with this key, too; of descriptors only those that
    /// are known.
    pub fn look_up_bucket(&self, key: &[u8], known: &[KnownBucket]) -> Sought {
        let of_rule = |rule: &Rule| {
            let own = known.iter().find(|one| one.limit == rule.name);
            let has_descriptor = rule.scope.parts().contains(&ScopePart::Descriptor);
            let same_scope = || {
                let mut others = self.rules.iter();
                let other = others.find(|other| {
                    other.scope == rule.scope && known.iter().any(|one| one.limit == other.name)
                })?;
                known.iter().find(|one| one.limit == other.name)
            };
            let one = own.or_else(|| (!has_descriptor).then(same_scope)?)?;
            Some(KnownBucket {
                limit: Arc::clone(&rule.name),
                numbers: one.numbers.clone(),
            })
        };
        let buckets = self.rules.iter().filter_map(of_rule).collect();
        Sought::new(KeyBytes::from_slice(key), By::Buckets(buckets))
    }

    pub fn listed(&self) -> impl Iterator<Item = Sought> {
        let lists = self.identities.iter().enumerate();
        lists.flat_map(move |(index, identity)| {
            let callers = identity.callers.as_ref().map(|callers| callers.load());
            let callers: Vec<Caller> = callers.iter().flat_map(|callers| callers.iter()).collect();
            callers.into_iter().map(move |caller| {
                let known = self.named_caller(index, &caller.name);
                Sought {
                    caller: Some(Arc::new(caller)),
                    ..known
                }
            })
        })
    }
}
