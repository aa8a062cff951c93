//! Byte strings by number: one after another in one buffer, so that a million keys take no allocation each.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Byte strings, each with the number of its first appearance.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    table: HashTable<u32>,
}

impl Interner {
    /// The number of `text`, which is added if it is new; the highest number where there are too many.
    pub(crate) fn number(&mut self, text: &[u8]) -> u32 {
        let hash = hash(text);
        if let Some(number) = self.find(hash, text) {
            return number;
        }
        let Ok(number) = u32::try_from(self.ends.len()) else {
            return u32::MAX;
        };
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
        let (bytes, ends) = (&self.bytes, &self.ends);
        self.table.insert_unique(hash, number, |number| {
            self::hash(part(bytes, ends, *number))
        });
        number
    }

    /// The number of `text`, if it is known.
    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        self.find(hash(text), text)
    }

    fn find(&self, hash: u64, text: &[u8]) -> Option<u32> {
        let same = |number: &u32| part(&self.bytes, &self.ends, *number) == text;
        self.table.find(hash, same).copied()
    }

    /// The text with this number; empty where there is none.
    pub(crate) fn text(&self, number: u32) -> &[u8] {
        part(&self.bytes, &self.ends, number)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

fn part<'b>(bytes: &'b [u8], ends: &[usize], number: u32) -> &'b [u8] {
    let number = number as usize;
    let start = number
        .checked_sub(1)
        .map_or(Some(0), |before| ends.get(before).copied());
    let end = ends.get(number).copied();
    start
        .zip(end)
        .and_then(|(start, end)| bytes.get(start..end))
        .unwrap_or_default()
}

fn hash(text: &[u8]) -> u64 {
    FixedState::default().hash_one(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interner_numbers_texts_in_the_order_of_their_appearance() {
        let mut interner = Interner::default();
        let texts: Vec<String> = (0..5_000)
            .map(|number| "x".repeat(number % 7) + &number.to_string())
            .collect();
        for again in 0..2 {
            for (number, text) in texts.iter().enumerate() {
                assert_eq!(interner.number(text.as_bytes()) as usize, number, "{again}");
            }
        }
        assert_eq!(
            (interner.len(), interner.get(b""), interner.get(b"xx99999")),
            (5_000, None, None)
        );
        assert_eq!(interner.text(4_999), texts[4_999].as_bytes());
        assert_eq!(interner.number(b""), 5_000);
        assert_eq!(
            (interner.text(5_000), interner.text(5_001)),
            (&b""[..], &b""[..])
        );
    }
}
