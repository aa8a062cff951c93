//! Lines of files, compressed or not: one buffer, and a bound on a line's length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memchr::memchr;

/// One line, or that one was too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong(&'a [u8]),
}

/// Reads lines from one input.
pub(crate) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the input has ended.
    ended: bool,
    /// Whether the rest of a line that was too long is being skipped.
    skipping: bool,
    /// Bytes taken from the input.
    pub(crate) taken: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            ended: false,
            skipping: false,
            taken: 0,
        }
    }

    /// The next line; `None`: there is none.
    ///
    /// # Errors
    /// When the input cannot be read, or what is compressed is broken.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(at) = memchr(b'\n', &unread[searched..]) {
                let from = self.start;
                let length = searched + at;
                self.start += length + 1;
                if std::mem::take(&mut self.skipping) {
                    searched = 0;
                    continue;
                }
                let line = &self.buffer[from..from + length];
                return Ok(Some(Line::Whole(line.strip_suffix(b"\r").unwrap_or(line))));
            }
            searched = unread.len();
            if self.ended {
                let from = std::mem::replace(&mut self.start, self.end);
                let rest = &self.buffer[from..self.end];
                let is_line = !rest.is_empty() && !self.skipping;
                return Ok(is_line.then_some(Line::Whole(rest)));
            }
            if self.skipping {
                (self.start, self.end, searched) = (0, 0, 0);
            } else if searched >= LINE_MAX {
                // What follows of it is skipped as it comes.
                let from = std::mem::replace(&mut self.start, self.end);
                self.skipping = true;
                return Ok(Some(Line::TooLong(&self.buffer[from..from + SAMPLE])));
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.end += count;
                    self.taken += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }
}

/// Opens a file, or standard input for `-`; what is compressed with gzip or zstd is read as what it holds.
///
/// # Errors
/// When it cannot be opened or its first bytes cannot be read.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        return decompressed(Box::new(io::stdin().lock()));
    }
    if path.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    decompressed(Box::new(File::open(path)?))
}

fn decompressed(mut input: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut magic = Vec::with_capacity(4);
    input.by_ref().take(4).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&[0x1f, 0x8b]);
    let is_zstd = magic == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(magic).chain(input);
    if is_gzip {
        // Rotated files are often several gzip streams one after another.
        Ok(Box::new(flate2::read::MultiGzDecoder::new(whole)))
    } else if is_zstd {
        let mut decoder = zstd::stream::read::Decoder::new(whole)?;
        // A small file must not ask for gigabytes of window.
        decoder.window_log_max(27)?;
        Ok(Box::new(decoder))
    } else {
        Ok(Box::new(whole))
    }
}

/// The longest line that is read: a head of 64 KiB, escaped fourfold, fits many times.
pub(crate) const LINE_MAX: usize = 1 << 20;
const BUFFER: usize = 256 << 10;
/// Bytes of a line too long that are shown.
const SAMPLE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<(usize, bool)> {
        let mut lines = Lines::new(text);
        let mut read = Vec::new();
        while let Some(line) = lines.next().expect("readable") {
            read.push(match line {
                Line::Whole(line) => (line.len(), true),
                Line::TooLong(line) => (line.len(), false),
            });
        }
        read
    }

    #[test]
    fn lines_with_any_end_are_read_whole() {
        assert_eq!(read(b""), []);
        assert_eq!(read(b"\n"), [(0, true)]);
        assert_eq!(read(b"ab\r\n\nc"), [(2, true), (0, true), (1, true)]);
    }

    #[test]
    fn lines_too_long_are_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 10 * LINE_MAX];
        text.extend_from_slice(b"\nab\n");
        assert_eq!(read(&text), [(SAMPLE, false), (2, true)]);
        // Without an end it is one line, too.
        assert_eq!(read(&vec![b'x'; 3 * LINE_MAX]), [(SAMPLE, false)]);
        let mut lines = Lines::new(text.as_slice());
        while lines.next().expect("readable").is_some() {}
        assert!(lines.buffer.len() <= 2 * LINE_MAX);
    }
}
