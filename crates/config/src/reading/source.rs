//! The texts of a configuration, and places in them.

use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

/// One text of the configuration: a file, an included file, or a test's string.
#[derive(Clone, Debug)]
pub(crate) struct SourceText {
    /// The name shown in messages: the path as given.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) base: PathBuf,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    list: Vec<SourceText>,
}

impl Sources {
    /// Adds a text and returns the number with which a [`Place`] refers to it.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        text: impl Into<String>,
        base: &Path,
    ) -> u32 {
        self.list.push(SourceText {
            name: name.into(),
            text: text.into(),
            base: base.to_path_buf(),
        });
        u32::try_from(self.list.len() - 1)
            .expect("fewer than 2^32 files, the include depth is bounded")
    }

    pub(crate) fn of(&self, file: u32) -> &SourceText {
        &self.list[file as usize]
    }

    pub(crate) fn text(&self, place: Place) -> &str {
        let text = &self.of(place.file).text;
        text.get(place.range()).unwrap_or_default()
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|source| source.text.as_str())
    }

    /// Replaces a place by asterisks, so that messages can show its surroundings.
    pub(crate) fn mask(&mut self, place: Place) {
        let text = &mut self.list[place.file as usize].text;
        if let Some(secret) = text.get(place.range()) {
            // The same number of bytes, so that other places stay valid.
            let star = |byte| match byte {
                b'\n' | b'"' | b'\'' => char::from(byte),
                _ => '*',
            };
            let stars: String = secret.bytes().map(star).collect();
            text.replace_range(place.range(), &stars);
        }
    }

    /// `file:line:column` of a place, both starting at 1, the column in characters.
    pub(crate) fn position(&self, place: Place) -> (&str, usize, usize) {
        let source = self.of(place.file);
        let before = source
            .text
            .get(..place.start as usize)
            .unwrap_or(&source.text);
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .map_or(0, |rest| rest.chars().count())
            + 1;
        (&source.name, line, column)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) start: u32,
    /// One past the last byte.
    pub(crate) end: u32,
}

impl Place {
    pub(crate) fn new(file: u32, range: Range<usize>) -> Self {
        let bound = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            file,
            start: bound(range.start),
            end: bound(range.end),
        }
    }

    pub(crate) fn contains(self, inner: Self) -> bool {
        inner.file == self.file && self.start <= inner.start && inner.end <= self.end
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A value and its place in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

impl<T> At<T> {
    pub(crate) fn with<U>(&self, value: U) -> At<U> {
        At {
            value,
            place: self.place,
        }
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
