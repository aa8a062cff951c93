//! Known callers, stored by the SHA-256 of their key, so that the file contains no secret.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::pattern::ParseError;
use tollgate_limit::hex;

/// Known callers, sorted by digest.
///
/// A look-up hashes the given key and searches for the digest. The search need not be constant in
/// time: its timing reveals only something about a digest, and a client cannot steer its digest
/// towards a stored one without finding preimages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    by_digest: Vec<([u8; 32], Arc<Caller>)>,
}

/// One known caller. Callers of one tier share its name, so that each of a long list takes little memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name, for logs and keys. Several keys may have the same name; they share its buckets.
    pub name: Arc<str>,
    pub tier: Option<Arc<str>>,
    /// The name of the caller's own numbers among the variants of limits, if it has some.
    pub numbers: Option<Arc<str>>,
}

impl Callers {
    /// Sorts the callers by digest.
    ///
    /// # Errors
    /// The names of two callers with one digest.
    pub fn new(
        entries: impl IntoIterator<Item = ([u8; 32], Caller)>,
    ) -> Result<Self, (Arc<str>, Arc<str>)> {
        let mut by_digest: Vec<_> = entries
            .into_iter()
            .map(|(digest, caller)| (digest, Arc::new(caller)))
            .collect();
        by_digest.sort_by_key(|entry| entry.0);
        match by_digest.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err((Arc::clone(&pair[0].1.name), Arc::clone(&pair[1].1.name))),
            None => Ok(Self { by_digest }),
        }
    }

    pub fn find(&self, key: &[u8]) -> Option<&Arc<Caller>> {
        if self.by_digest.is_empty() {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(key).into();
        let place = self
            .by_digest
            .binary_search_by_key(&digest, |entry| entry.0)
            .ok()?;
        Some(&self.by_digest[place].1)
    }

    /// A caller by its name, for tests in the file and for `explain`.
    pub fn named(&self, name: &str) -> Option<&Arc<Caller>> {
        self.by_digest
            .iter()
            .map(|(_, caller)| caller)
            .find(|caller| &*caller.name == name)
    }

    /// Every caller, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Caller>> {
        self.by_digest.iter().map(|(_, caller)| caller)
    }

    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

/// A key in the form of a list of callers: `sha256:` and 64 hex digits.
pub fn digest_words(key: &[u8]) -> String {
    format!("sha256:{}", hex::digits(&Sha256::digest(key)))
}

/// Reads `sha256:` and 64 hex digits.
///
/// # Errors
/// The mistake and its byte range.
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
        Caller {
            name: name.into(),
            tier: None,
            numbers: None,
        }
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
            callers.find(b"test").map(|caller| &*caller.name),
            Some("acme")
        );
        assert_eq!(callers.find(b"test "), None);
        assert_eq!(callers.find(b""), None);
        let twice = Callers::new([(digest, caller("a")), (digest, caller("b"))]);
        assert_eq!(
            twice.err().map(|(a, b)| (a.to_string(), b.to_string())),
            Some(("a".into(), "b".into()))
        );
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
