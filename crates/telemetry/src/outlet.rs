//! The output of lines: standard output, standard error or a file. A write blocks while a pipe is
//! not read, so only threads dedicated to writing use it, and code that waits for them gives up if
//! they make no progress.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};

#[derive(Debug)]
pub(super) struct Outlet {
    file: File,
    piece: usize,
    /// The rest of a line that was partly written before writing failed.
    unfinished: Vec<u8>,
}

/// The number of lines that were not written, and the reason.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) lines: u64,
    pub(super) error: io::Error,
}

/// Counts successful writes; it stands still when the output is not read.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU64);

impl Outlet {
    /// Standard output. Not that of the standard library, whose lock and buffer the end of the
    /// process would wait for.
    pub(super) fn stdout() -> io::Result<Self> {
        Self::to(io::stdout().as_fd().try_clone_to_owned()?)
    }

    pub(super) fn stderr() -> io::Result<Self> {
        Self::to(io::stderr().as_fd().try_clone_to_owned()?)
    }

    /// The file at `path`, opened for appending: lines stay whole with several processes, and with
    /// a rotation by copy and truncate. A new file is not readable by everyone, because it contains
    /// addresses and targets.
    pub(super) fn file(path: &Path) -> io::Result<Self> {
        Self::to(
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o640)
                .open(path)?,
        )
    }

    fn to(file: impl Into<File>) -> io::Result<Self> {
        let file = file.into();
        let is_regular = file.metadata()?.is_file();
        Ok(Self {
            file,
            piece: if is_regular { FILE_PIECE } else { PIECE },
            unfinished: Vec::new(),
        })
    }

    /// Writes complete lines, after the rest of a partly written line. An error says how many of
    /// `lines` were not written; a partly written line is finished by the next write, and not counted.
    pub(super) fn write(&mut self, lines: &[u8], progress: &Progress) -> Result<(), Lost> {
        if !self.unfinished.is_empty() {
            let unfinished = std::mem::take(&mut self.unfinished);
            if let Err((written, error)) = self.push(&unfinished, progress) {
                self.unfinished = unfinished[written..].to_vec();
                return Err(Lost {
                    lines: count(lines),
                    error,
                });
            }
        }
        let Err((written, error)) = self.push(lines, progress) else {
            return Ok(());
        };
        let (begun, rest) = lines.split_at(written);
        let mut lines = count(rest);
        if begun.last().is_some_and(|last| *last != b'\n') {
            let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            self.unfinished = rest[..end].to_vec();
            lines = lines.saturating_sub(1);
        }
        Err(Lost { lines, error })
    }

    pub(super) const fn is_in_a_line(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Writes `bytes`; an error contains the number of bytes written.
    fn push(&mut self, bytes: &[u8], progress: &Progress) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            let piece = &bytes[written..bytes.len().min(written + self.piece)];
            let outcome = self.file.write(piece).and_then(|length| match length {
                0 => Err(io::ErrorKind::WriteZero.into()),
                length => Ok(length),
            });
            let failed = match outcome {
                Ok(length) => {
                    written += length;
                    progress.0.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Another process made the shared pipe non-blocking, so wait here.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(),
                Err(error) => Err(error),
            };
            failed.map_err(|error| (written, error))?;
        }
        Ok(())
    }

    fn wait_for_room(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Progress {
    /// Waits on `changed` until `done`, for at most `patience`, and only while writes succeed.
    /// Returns whether it is done.
    pub(super) fn wait<T>(
        &self,
        changed: &Condvar,
        state: &mut MutexGuard<'_, T>,
        patience: Duration,
        done: impl Fn(&T) -> bool,
    ) -> bool {
        let mut stood = Duration::ZERO;
        let mut waited = Duration::ZERO;
        let mut seen = self.0.load(Ordering::Relaxed);
        while !done(state) {
            if stood >= STALLED || waited >= patience {
                return false;
            }
            changed.wait_while_for(state, |state| !done(state), LOOK_EVERY);
            waited += LOOK_EVERY;
            stood += LOOK_EVERY;
            let now = self.0.load(Ordering::Relaxed);
            if now != seen {
                (seen, stood) = (now, Duration::ZERO);
            }
        }
        true
    }
}

fn count(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

/// The most bytes of one write to a pipe or a terminal: one that accepts less than this in
/// [`STALLED`] counts as not read.
const PIECE: usize = 16 << 10;
const FILE_PIECE: usize = 256 << 10;
/// If no write succeeds in this time, the output is not read.
const STALLED: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn outlet_that_fails_in_a_line_loses_the_others_and_finishes_that_one() {
        // A file that cannot grow beyond 10 bytes.
        let file = File::from(memfd_create("log", MemfdFlags::ALLOW_SEALING).expect("memory"));
        ftruncate(&file, 10).expect("grown");
        fcntl_add_seals(&file, SealFlags::GROW).expect("sealed");
        let mut outlet = Outlet::to(file.try_clone().expect("a descriptor")).expect("an outlet");
        let progress = Progress::default();
        let lost = outlet
            .write(b"one\ntwo\nthree\nfour\nfive\n", &progress)
            .expect_err("it is full");
        // A write that does not fit is refused whole, or in part: both must add up.
        let mut text = String::new();
        let mut file = file;
        file.seek(SeekFrom::Start(0)).expect("sought");
        file.read_to_string(&mut text).expect("text");
        let whole = text.matches('\n').count() as u64;
        assert_eq!(
            lost.lines + whole + u64::from(outlet.is_in_a_line()),
            5,
            "{text:?}"
        );
        let lost = outlet.write(b"six\n", &progress).expect_err("still full");
        assert_eq!(lost.lines, 1);
    }

    #[test]
    fn outlet_finishes_the_line_it_began_before_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut outlet = Outlet::file(&path).expect("a file");
        outlet.unfinished = b"ee\n".to_vec();
        outlet
            .write(b"four\n", &Progress::default())
            .expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "ee\nfour\n");
        assert!(!outlet.is_in_a_line());
    }

    /// The number of writes that 600 KB to this output take.
    fn writes(file: File) -> u64 {
        let mut outlet = Outlet::to(file).expect("an outlet");
        let progress = Progress::default();
        let line = [&[b'x'; 599][..], b"\n"].concat();
        outlet
            .write(&line.repeat(1_000), &progress)
            .expect("written");
        progress.0.load(Ordering::Relaxed)
    }

    /// A pipe must accept a piece within a second; a file is written in few large pieces.
    #[test]
    fn outlet_writes_large_pieces_to_a_file_and_small_ones_to_a_pipe() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(writes(file), 3, "of 256 KiB at most");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).expect("read")
        });
        let pieces = writes(File::from(std::os::fd::OwnedFd::from(writer)));
        assert_eq!(read.join().expect("no panic"), 600_000);
        assert_eq!(pieces, 37, "of 16 KiB at most");
    }
}
