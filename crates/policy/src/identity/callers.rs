//! Known callers, stored by the SHA-256 of their key, so that the file contains no secret.

use std::num::NonZeroU16;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::errors::ParseError;
use tollgate_limit::hex;

/// Known callers, sorted by digest.
///
/// A look-up hashes the given key and searches for the digest. The search need not be constant in
/// time: its timing reveals only something about a digest, and a client cannot steer its digest
/// towards a stored one without finding preimages.
///
/// A caller takes 44 bytes and its name, because a list may have hundreds of thousands of callers; a
/// [`Caller`] is made of them when it is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    listed: Vec<Listed>,
    names: String,
    tiers: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    digest: [u8; 32],
    /// Where its name begins in the names, and its length.
    name: (u32, u32),
    /// Its tier: its index, and one.
    tier: Option<NonZeroU16>,
    has_own_numbers: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name, for logs and keys. Several keys may have the same name; they share its buckets.
    pub name: Arc<str>,
    pub tier: Option<Arc<str>>,
    /// The name of the caller's own numbers among the variants of limits, if it has some.
    pub numbers: Option<Arc<str>>,
}

impl Caller {
    /// The caller of this name and tier; whether it has numbers of its own.
    pub fn new(name: &str, tier: Option<Arc<str>>, has_own_numbers: bool) -> Self {
        Self {
            name: name.into(),
            tier,
            numbers: has_own_numbers.then(|| own_numbers(name).into()),
        }
    }
}

/// The name of a caller's own numbers among the variants of a limit. No tier name contains a space.
pub fn own_numbers(caller: &str) -> String {
    format!("caller {caller}")
}

impl Callers {
    /// A list without callers, whose callers may have these tiers.
    pub fn of_tiers<'t>(tiers: impl IntoIterator<Item = &'t str>) -> Self {
        Self {
            tiers: tiers.into_iter().map(Arc::from).collect(),
            ..Self::default()
        }
    }

    /// Adds a caller. `tier`: by index.
    ///
    /// # Panics
    /// If the names have 4 GiB, or there are more than 65,534 tiers; no file has so many.
    pub fn push(
        &mut self,
        digest: [u8; 32],
        name: &str,
        tier: Option<usize>,
        has_own_numbers: bool,
    ) {
        let place = |at: usize| u32::try_from(at).expect("the names of a file are shorter");
        let index = |tier: usize| {
            let number = u16::try_from(tier + 1).ok().and_then(NonZeroU16::new);
            number.expect("a file has fewer tiers")
        };
        self.listed.push(Listed {
            digest,
            name: (place(self.names.len()), place(name.len())),
            tier: tier.map(index),
            has_own_numbers,
        });
        self.names.push_str(name);
    }

    /// Sorts the callers that were added by digest; nothing is found before. `None`: two of them have
    /// one digest.
    pub fn sorted(mut self) -> Option<Self> {
        self.listed.sort_unstable_by_key(|one| one.digest);
        let same = |pair: &[Listed]| pair[0].digest == pair[1].digest;
        if self.listed.windows(2).any(same) {
            return None;
        }
        self.listed.shrink_to_fit();
        self.names.shrink_to_fit();
        Some(self)
    }

    #[cfg(test)]
    pub(crate) fn new(entries: impl IntoIterator<Item = ([u8; 32], Caller)>) -> Option<Self> {
        let entries: Vec<_> = entries.into_iter().collect();
        let tiers = entries
            .iter()
            .filter_map(|(_, caller)| caller.tier.as_deref());
        let mut callers = Self::of_tiers(tiers);
        for (digest, caller) in &entries {
            let mut tiers = callers.tiers.iter();
            let tier = caller
                .tier
                .as_ref()
                .and_then(|tier| tiers.position(|known| known == tier));
            callers.push(*digest, &caller.name, tier, caller.numbers.is_some());
        }
        callers.sorted()
    }

    pub fn find(&self, key: &[u8]) -> Option<Arc<Caller>> {
        if self.listed.is_empty() {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(key).into();
        let place = self
            .listed
            .binary_search_by_key(&digest, |one| one.digest)
            .ok()?;
        Some(Arc::new(self.at(place)))
    }

    /// A caller by its name, for tests in the file and for `explain`.
    pub fn named(&self, name: &str) -> Option<Arc<Caller>> {
        let place = self.names().position(|known| known == name)?;
        Some(Arc::new(self.at(place)))
    }

    /// The name of every caller, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        (0..self.listed.len()).map(|place| self.name(place))
    }

    pub fn iter(&self) -> impl Iterator<Item = Caller> {
        (0..self.listed.len()).map(|place| self.at(place))
    }

    fn name(&self, place: usize) -> &str {
        let (start, length) = self.listed[place].name;
        &self.names[start as usize..][..length as usize]
    }

    fn at(&self, place: usize) -> Caller {
        let one = &self.listed[place];
        let tier = one
            .tier
            .map(|tier| Arc::clone(&self.tiers[usize::from(tier.get()) - 1]));
        Caller::new(self.name(place), tier, one.has_own_numbers)
    }

    pub fn len(&self) -> usize {
        self.listed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }
}

/// A key in the form of a list of callers: `sha256:` and 64 hex digits.
pub fn digest_words(key: &[u8]) -> String {
    format!("sha256:{}", hex::digits(&Sha256::digest(key)))
}

/// Reads `sha256:` and 64 hex digits.
pub fn parse_digest(text: &str) -> Result<[u8; 32], ParseError> {
    let Some(digits) = text.strip_prefix("sha256:") else {
        let what = "a caller is known by `sha256:` and the SHA-256 of its key (`tollgate hash`)";
        return Err(ParseError::new(0..text.len(), what));
    };
    let offset = text.len() - digits.len();
    if let Some(bad) = digits.find(|c: char| !c.is_ascii_hexdigit()) {
        let width = digits[bad..].chars().next().map_or(0, char::len_utf8);
        let place = offset + bad..offset + bad + width;
        return Err(ParseError::new(place, "this is no hex digit"));
    }
    let digest = hex::bytes(digits).and_then(|bytes| bytes.try_into().ok());
    digest.ok_or_else(|| {
        let what = format!("a SHA-256 has 64 hex digits, not {}", digits.len());
        ParseError::new(offset..text.len(), what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn caller(name: &str) -> Caller {
        Caller::new(name, None, false)
    }

    #[test]
    fn a_caller_is_found_by_its_key_and_no_other() {
        let digest = parse_digest(TEST).expect("a digest");
        let callers = Callers::new([
            ([0; 32], caller("a")),
            (digest, caller("acme")),
            ([255; 32], caller("z")),
        ]);
        let callers = callers.expect("distinct digests");
        assert_eq!(
            callers.find(b"test").map(|caller| caller.name.to_string()),
            Some("acme".to_owned())
        );
        assert_eq!(callers.find(b"test "), None);
        assert_eq!(callers.find(b""), None);
        let twice = Callers::new([(digest, caller("a")), (digest, caller("b"))]);
        assert_eq!(twice, None);
    }

    #[test]
    fn callers_of_a_list_keep_their_names_tiers_and_numbers() {
        let tier = |name: &str| Some(Arc::from(name));
        let all = [
            Caller::new("acme", tier("pro"), false),
            Caller::new("", None, true),
            Caller::new("bolt", tier("free"), true),
            Caller::new("café", tier("pro"), false),
        ];
        let digests = [7, 1, 9, 3].map(|first| [first; 32]);
        let callers = Callers::new(digests.into_iter().zip(all.clone())).expect("distinct");
        let sorted = [1, 3, 0, 2].map(|place: usize| all[place].clone());
        assert_eq!(callers.iter().collect::<Vec<_>>(), sorted);
        assert_eq!(
            callers.names().collect::<Vec<_>>(),
            ["", "café", "acme", "bolt"]
        );
        assert_eq!(callers.named("bolt").as_deref(), Some(&all[2]));
        assert_eq!(all[2].numbers.as_deref(), Some("caller bolt"));
        assert_eq!(size_of::<Listed>(), 44);
    }

    #[test]
    fn a_digest_is_read_strictly() {
        assert_eq!(
            parse_digest(&TEST.to_ascii_uppercase().replace("SHA256", "sha256")),
            parse_digest(TEST)
        );
        for (text, at) in [
            ("test", 0..4),
            ("sha256:xy", 7..8),
            ("sha256:00", 7..9),
            ("sha256:é", 7..9),
        ] {
            assert_eq!(
                parse_digest(text).map_err(|error| error.at),
                Err(at),
                "{text}"
            );
        }
    }
}
