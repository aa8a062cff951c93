//! Lines of files, compressed or not: one buffer, and a bound on a line's length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// One line, or that one was too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong(&'a [u8]),
}

pub(crate) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// Bytes taken from the input.
    pub(crate) taken: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER, input),
            line: Vec::new(),
            taken: 0,
        }
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let mut input = self.input.by_ref().take(LINE_MAX);
        self.taken += input.read_until(b'\n', &mut self.line)? as u64;
        if let Some(line) = self.line.strip_suffix(b"\n") {
            return Ok(Some(Line::Whole(line.strip_suffix(b"\r").unwrap_or(line))));
        }
        if input.limit() > 0 {
            let is_line = !self.line.is_empty();
            return Ok(is_line.then_some(Line::Whole(&self.line)));
        }
        self.taken += self.input.skip_until(b'\n')? as u64;
        Ok(Some(Line::TooLong(&self.line[..SAMPLE])))
    }
}

/// Opens a file, or standard input for `-`; what is compressed with gzip or zstd is read as what it holds.
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
pub(crate) const LINE_MAX: u64 = 1 << 20;
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
        let most = usize::try_from(LINE_MAX).expect("small");
        let mut text = vec![b'x'; 10 * most];
        text.extend_from_slice(b"\nab\n");
        assert_eq!(read(&text), [(SAMPLE, false), (2, true)]);
        // Without an end it is one line, too.
        assert_eq!(read(&vec![b'x'; 3 * most]), [(SAMPLE, false)]);
        let mut lines = Lines::new(text.as_slice());
        while lines.next().expect("readable").is_some() {}
        assert!(lines.line.capacity() <= 2 * most);
    }
}
