//! Remembers the header names of the last head, so that most heads are compared and not parsed.

use http::header::{HeaderName, HeaderValue};

use crate::Malformed;
use crate::verbatim::Kind;

/// The names of the last head, and the values that seldom change: on one connection nearly every
/// head has the same ones in the same order, and comparing is cheaper than parsing them again.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The spellings of the names, concatenated.
    spelt: Vec<u8>,
    pub(super) known: Vec<Known>,
    /// Whether a head came before this one. A single head is not worth remembering.
    pub(crate) met: bool,
}

#[derive(Debug)]
pub(super) struct Known {
    /// The end of its spelling.
    end: u16,
    kind: Kind,
    name: HeaderName,
    /// Its last value: a copy, which does not keep a read buffer alive.
    pub(super) value: Option<HeaderValue>,
    /// Saturating score: +2 when the value changes, -1 when it repeats.
    changes: u8,
}

impl Names {
    pub(super) const fn new() -> Self {
        Self {
            spelt: Vec::new(),
            known: Vec::new(),
            met: false,
        }
    }

    /// The name, kind and length at the beginning of `line`, header number `index`.
    pub(super) fn of(
        &mut self,
        index: usize,
        line: &[u8],
    ) -> Result<(HeaderName, Kind, usize), Malformed> {
        match self.known(index, line) {
            Some((known, colon)) => Ok((known.name.clone(), known.kind, colon)),
            None => self.learn(index, line),
        }
    }

    /// The kind and length of the name at the beginning of `line`, header number `index`.
    pub(crate) fn kind(&mut self, index: usize, line: &[u8]) -> Result<(Kind, usize), Malformed> {
        match self.known(index, line) {
            Some((known, colon)) => Ok((known.kind, colon)),
            None => self
                .learn(index, line)
                .map(|(_, kind, colon)| (kind, colon)),
        }
    }

    fn known(&self, index: usize, line: &[u8]) -> Option<(&Known, usize)> {
        let known = self.known.get(index)?;
        let spelt = &self.spelt[self.start(index)..usize::from(known.end)];
        (line.get(spelt.len()) == Some(&b':') && line.starts_with(spelt))
            .then_some((known, spelt.len()))
    }

    #[inline(never)]
    fn learn(&mut self, index: usize, line: &[u8]) -> Result<(HeaderName, Kind, usize), Malformed> {
        let colon = memchr::memchr(b':', line).ok_or(Malformed::FieldName)?;
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| Malformed::FieldName)?;
        let kind = Kind::of(name.as_str());
        if self.met && index <= self.known.len() && index < NAMES && colon <= NAME_BYTES {
            self.spelt.truncate(self.start(index));
            self.known.truncate(index);
            self.spelt.extend_from_slice(&line[..colon]);
            // It fits, because the number and length of names are bounded.
            let end = u16::try_from(self.spelt.len()).unwrap_or(u16::MAX);
            self.known.push(Known {
                end,
                kind,
                name: name.clone(),
                value: None,
                changes: 0,
            });
        }
        Ok((name, kind, colon))
    }

    /// The value of header number `index`, whose name was just looked up, if it seldom changes.
    pub(super) fn value(&mut self, index: usize, text: &[u8]) -> Option<HeaderValue> {
        let known = self.known.get_mut(index)?;
        if known.changes > CHANGES {
            return None;
        }
        match &known.value {
            Some(value) if value.as_bytes() == text => {
                known.changes = known.changes.saturating_sub(1)
            }
            value => {
                // A value that changes more often than not is not worth copying.
                known.changes += u8::from(value.is_some()) * 2;
                let worth = known.changes <= CHANGES && text.len() <= VALUE_BYTES;
                known.value = worth.then(|| HeaderValue::from_bytes(text).ok()).flatten();
            }
        }
        known.value.clone()
    }

    /// Forgets the values, and remembers none again: the next head is another client's.
    pub(crate) fn forget_values(&mut self) {
        for known in &mut self.known {
            (known.value, known.changes) = (None, CHANGES + 1);
        }
    }

    fn start(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .map_or(0, |before| usize::from(self.known[before].end))
    }
}

/// The number of remembered names, and their largest length.
const NAMES: usize = 32;
const NAME_BYTES: usize = 40;
/// The largest length of a remembered value.
const VALUE_BYTES: usize = 128;
/// The score from which a value is no longer remembered.
const CHANGES: u8 = 8;
