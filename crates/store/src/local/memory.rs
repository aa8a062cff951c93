//! Zeroed memory for packed tables, aligned to cache lines; the system provides pages only when
//! they are touched.

use std::sync::atomic::AtomicU64;

use super::set::{LINES, Line, Set, WORDS};

/// A fixed number of sets.
///
/// The allocator is asked for zeroed memory of ordinary alignment, which it takes from the system
/// untouched. For the alignment of a set it would clear the pages itself and so occupy all of them
/// at once. Hence a few spare words and an offset.
#[derive(Debug)]
pub(crate) struct Sets {
    words: Box<[AtomicU64]>,
    offset: usize,
    lines: usize,
}

impl Sets {
    pub(crate) fn new(count: usize) -> Self {
        let spare = LINES * WORDS;
        let words = zeroed(count * spare + spare - 1);
        let offset = words
            .as_ptr()
            .align_offset(size_of::<[AtomicU64; LINES * WORDS]>());
        // `align_offset` may give no result; unaligned sets cross cache lines but work.
        Self {
            words,
            offset: if offset < spare { offset } else { 0 },
            lines: count * LINES,
        }
    }

    /// How many sets there are.
    pub(crate) fn len(&self) -> usize {
        self.lines / LINES
    }

    /// How many lines there are.
    #[inline(always)]
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    #[inline(always)]
    pub(crate) fn line(&self, line: usize) -> Line<'_, AtomicU64> {
        let words = self.words[self.offset + line * WORDS..].first_chunk();
        Line::new(words.expect("as many lines as there are words for"))
    }

    /// The set that a line belongs to, as seen from that line.
    #[inline]
    pub(crate) fn of_line(&self, line: usize) -> Set<'_, AtomicU64> {
        let (lines, _) = self.words[self.offset..].as_chunks::<WORDS>();
        let lines = lines[line - line % LINES..].first_chunk();
        Set::new(lines.expect("lines come in sets"), line % LINES)
    }
}

/// Zeroed words that the system provides when they are first written.
pub(crate) fn zeroed(words: usize) -> Box<[AtomicU64]> {
    bytemuck::zeroed_slice_box(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set with another start would span three lines, and sometimes two pages.
    #[test]
    fn a_set_is_two_lines_of_one_page_whatever_the_allocator_gives() {
        // Between small allocations and beside large ones, so that they begin anywhere.
        let mut others = Vec::new();
        for count in (1..200).chain([1 << 12, (1 << 17) + 1]) {
            others.push(vec![0_u8; count % 37 + 1]);
            let sets = Sets::new(count);
            assert_eq!(sets.lines(), count * LINES);
            let first = sets.line(0).address();
            assert_eq!(first % (64 * LINES), 0, "{count} sets begin at {first:#x}");
            for line in [0, 1, sets.lines() - 2, sets.lines() - 1] {
                assert_eq!(sets.line(line).address(), first + 64 * line);
            }
        }
    }
}
