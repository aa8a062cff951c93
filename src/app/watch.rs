//! Detects changes of files by their state and their contents, and waits until they are stable. It does
//! not use the system's file notifications, which miss the replacement of a directory behind a
//! symbolic link, as in a mounted ConfigMap.

use std::hash::BuildHasher;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files, with the contents they had at the last check.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    files: Vec<(PathBuf, Seen)>,
    seed: foldhash::quality::RandomState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The hash of its content; `None`: it cannot be read. If two contents collide, only one reload is
    /// missed until the next change; the seed is specific to the process.
    print: Option<u64>,
    /// Its state, as the file system tells it without its content.
    state: Option<FileState>,
    /// How many checks still read it although its state is the same: a change within one tick of the
    /// file system's clock after the last one leaves no other trace.
    reads: u32,
}

/// Which file it is, its length, and when it was changed, in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState((u64, u64, u64, i64, i64));

impl FileState {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let of = std::fs::metadata(path).ok()?;
        Some(Self((
            of.dev(),
            of.ino(),
            of.size(),
            of.ctime(),
            of.ctime_nsec(),
        )))
    }
}

impl Watch {
    /// Watches exactly `files` from now on. A file that was watched before is compared with its
    /// content at the last check, so that a change during a reload is not missed.
    pub(crate) fn set(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        let mut files: Vec<PathBuf> = files.into_iter().collect();
        files.sort_unstable();
        files.dedup();
        let before = std::mem::take(&mut self.files);
        let known = |file: &Path| {
            before
                .iter()
                .find(|(known, _)| known == file)
                .map(|(_, seen)| *seen)
        };
        self.files = files
            .into_iter()
            .map(|file| {
                let seen = known(&file).unwrap_or_else(|| self.see(&file, None));
                (file, seen)
            })
            .collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The files whose contents differ from the last check.
    pub(crate) fn changed(&mut self) -> Vec<PathBuf> {
        let now: Vec<Seen> = self
            .files
            .iter()
            .map(|(file, before)| self.see(file, Some(before)))
            .collect();
        let mut changed = Vec::new();
        for ((file, before), now) in self.files.iter_mut().zip(now) {
            if std::mem::replace(before, now).print != now.print {
                changed.push(file.clone());
            }
        }
        changed
    }

    /// Waits until two checks with `pause` between them find the same contents, so that no
    /// half-written file is read; gives up after [`TRIES`] checks. Returns the files that changed meanwhile.
    pub(crate) fn settle(&mut self, pause: impl Fn()) -> Vec<PathBuf> {
        let mut changed = Vec::new();
        if self.is_empty() {
            return changed;
        }
        for _ in 0..TRIES {
            pause();
            let more = self.changed();
            if more.is_empty() {
                break;
            }
            changed.extend(more);
        }
        changed
    }

    /// What can be seen of a file now. It is read unless nothing can have changed: a long list of
    /// callers, read several times a second, would take a share of a core.
    fn see(&self, file: &Path, before: Option<&Seen>) -> Seen {
        let state = FileState::of(file);
        match before {
            Some(seen) if state.is_some() && seen.state == state && seen.reads == 0 => *seen,
            _ => {
                let is_same = before.filter(|seen| seen.state == state);
                Seen {
                    print: self.print(file),
                    state,
                    reads: is_same.map_or(READS, |seen| seen.reads.saturating_sub(1)),
                }
            }
        }
    }

    fn print(&self, file: &Path) -> Option<u64> {
        match std::fs::read(file) {
            Ok(content) => Some(self.seed.hash_one(content)),
            // This is a pattern of an include, not a file: compare the names that it matches.
            Err(_) if file.to_string_lossy().contains('*') => {
                let files = tollgate_config::matches(file).ok()?;
                Some(self.seed.hash_one(files))
            }
            Err(_) => None,
        }
    }
}

/// How many checks read a file after a change of its state: three seconds, more than a tick of any
/// file system's clock.
const READS: u32 = 12;
/// The largest number of checks for stable contents.
const TRIES: usize = 20;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{TRIES, Watch};

    #[test]
    fn watch_change_is_reported_once_by_any_mechanism() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("plain"), "a").expect("written");
        std::fs::create_dir(path("v1")).expect("made");
        std::fs::create_dir(path("v2")).expect("made");
        std::fs::write(path("v1").join("file"), "one").expect("written");
        std::fs::write(path("v2").join("file"), "two").expect("written");
        std::os::unix::fs::symlink("v1", path("data")).expect("linked");

        let mut watch = Watch::default();
        let mapped = path("data").join("file");
        watch.set([path("plain"), mapped.clone(), path("absent")]);
        assert!(watch.changed().is_empty());

        std::fs::write(path("plain"), "b").expect("written");
        assert_eq!(watch.changed(), [path("plain")]);
        assert!(watch.changed().is_empty());

        // As the kubelet does it: the link is replaced, the files behind it are others.
        std::os::unix::fs::symlink("v2", path("new")).expect("linked");
        std::fs::rename(path("new"), path("data")).expect("renamed");
        assert_eq!(watch.changed(), [mapped.as_path()]);

        std::fs::write(path("absent"), "").expect("written");
        assert_eq!(watch.changed(), [path("absent")]);
        std::fs::remove_file(path("absent")).expect("removed");
        assert_eq!(watch.changed(), [path("absent")]);
        // It changed between the look and the end of a reload that had read it before.
        std::fs::write(path("plain"), "c").expect("written");
        watch.set([path("plain"), mapped.clone()]);
        assert_eq!(watch.changed(), [path("plain")]);
        std::fs::write(path("plain"), "b").expect("written");
        assert_eq!(watch.changed(), [path("plain")]);
        // Written anew with what it held: no change.
        std::fs::write(path("plain"), "b").expect("written");
        assert!(watch.changed().is_empty());
    }
    #[test]
    fn watch_file_being_written_is_awaited_for_a_bounded_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("written");
        let mut watch = Watch::default();
        watch.set([file.clone()]);
        // A writer writes a piece between any two looks, and is done after the third.
        let looks = Cell::new(0);
        let pieces = ["a", "ab", "abc", "abc", "abc"];
        let changed = watch.settle(|| {
            std::fs::write(&file, pieces[looks.get()]).expect("written");
            looks.set(looks.get() + 1);
        });
        assert_eq!(
            (looks.get(), changed.len()),
            (4, 3),
            "one more look than pieces"
        );
        assert!(watch.changed().is_empty());

        looks.set(0);
        watch.settle(|| {
            looks.set(looks.get() + 1);
            std::fs::write(&file, "x".repeat(looks.get())).expect("written");
        });
        assert_eq!(looks.get(), TRIES);
        Watch::default().settle(|| panic!("there is nothing to wait for"));
    }

    #[test]
    fn watch_files_of_a_pattern_are_watched() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("a.toml"), "").expect("written");
        let mut watch = Watch::default();
        watch.set([path("*.toml")]);
        for other in ["a.bak", ".b.toml"] {
            std::fs::write(path(other), "").expect("written");
            assert!(watch.changed().is_empty(), "{other} is not named");
        }
        std::fs::write(path("b.toml"), "").expect("written");
        assert_eq!(watch.changed(), [path("*.toml")]);
        std::fs::remove_file(path("a.toml")).expect("removed");
        assert_eq!(watch.changed(), [path("*.toml")]);
        assert!(watch.changed().is_empty());
    }
}
