//! Keeps local buckets over a clean stop: saves them at the end, restores them at the start.
//!
//! The file is deleted before the first request is served: otherwise a process that crashes later
//! would find the buckets of an earlier stop and refill every caller from them. A start that fails
//! leaves the file for the next one. After a crash a gateway starts as `cold_start` says. While a gateway runs, a mark file exists beside it, which distinguishes a
//! crash (a mark and no buckets) from the first start (neither).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::{StartError, mapped};
use tollgate_config::Config;
use tollgate_limiter::Limiter;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

/// The mark of a running gateway that keeps its buckets in a state file. It stays behind when the
/// process dies. A gateway that never served removes it, unless it found it there.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    /// The state file, until it is deleted.
    saved: Option<PathBuf>,
    /// Whether it is removed when dropped.
    removed_at_drop: bool,
    /// Locked as soon as the predecessor process has ended.
    _held: Arc<OnceLock<File>>,
}

fn open(mark: &Path) -> io::Result<File> {
    private()
        .write(true)
        .create(true)
        .truncate(false)
        .open(mark)
}

/// Opens a file with access for the owner only, because it shows who called how often. A symbolic
/// link in its place, which others may have created, is an error. A pipe in its place does not make
/// the opener wait for its other end.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

impl Mark {
    /// Sets the mark; returns also whether there was the mark of a gateway that has ended without
    /// removing it.
    fn begin(file: &Path) -> Result<(Self, bool), String> {
        let path = beside(file, ".running");
        let crashed = fs::symlink_metadata(&path).is_ok();
        let held = open(&path).map_err(|error| refused(file, &error))?;
        // On a file system without locks two gateways with one file are not detected.
        if rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Err(format!(
                "`server.state_file`: another gateway keeps its buckets in {}",
                file.display()
            ));
        }
        let mark = Self {
            path,
            saved: Some(file.to_owned()),
            removed_at_drop: !crashed,
            _held: Arc::new(OnceLock::from(held)),
        };
        Ok((mark, crashed))
    }

    /// Sets the mark for a gateway that replaces a running one, which holds the lock until it has
    /// drained; a thread waits for it.
    pub(super) fn inherit(config: &Config) -> Option<Self> {
        let path = beside(config.server.state_file.as_deref()?, ".running");
        let held = Arc::new(OnceLock::new());
        let (place, slot) = (path.clone(), Arc::clone(&held));
        let waits = std::thread::Builder::new().name("state-file".to_owned()).spawn(move || {
            let locked = open(&place).and_then(|file| {
                rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
                Ok(file)
            });
            match locked {
                Ok(file) => drop(slot.set(file)),
                Err(error) => {
                    tracing::warn!(file = %place.display(), %error, "another gateway could take this state file")
                }
            }
        });
        if let Err(error) = waits {
            tracing::warn!(file = %path.display(), %error, "another gateway could take this state file");
        }
        Some(Self {
            path,
            saved: None,
            removed_at_drop: false,
            _held: held,
        })
    }

    /// Deletes the saved buckets, because requests are served from now on.
    /// If they cannot be deleted, the gateway must not serve: after a crash they would refill
    /// every caller.
    pub(super) fn serves(&mut self) -> Result<(), String> {
        let Some(file) = &self.saved else {
            return Ok(());
        };
        remove(file).map_err(|error| refused(file, &error))?;
        self.saved = None;
        self.removed_at_drop = false;
        Ok(())
    }

    fn end(mut self) {
        self.removed_at_drop = true;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if !self.removed_at_drop {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(file = %self.path.display(), %error, "the mark of a running gateway cannot be removed");
        }
    }
}

/// Sets the state file if the configuration names none: a file in the directory that a service
/// manager provides (`$STATE_DIRECTORY`). Warns if that cannot be used.
pub(super) fn settle(config: &mut Config, directory: Option<String>) {
    let Some(directory) = directory
        .as_deref()
        .and_then(|list| list.split(':').next())
        .filter(|one| !one.is_empty())
    else {
        return;
    };
    if config.server.state_file.is_some() {
        return;
    }
    let file = Path::new(directory).join("gateway.state");
    match usable(&file) {
        Ok(()) => config.server.state_file = Some(file),
        Err(error) => config.warnings.push(format!(
            "warning: $STATE_DIRECTORY: {error}: local buckets are not kept there"
        )),
    }
}

/// Whether buckets could be saved in `file`.
pub(super) fn usable(file: &Path) -> Result<(), String> {
    let directory = directory(file);
    let problem = |why: &dyn std::fmt::Display| format!("`{}`: {why}", directory.display());
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(problem(&"is no directory")),
        Err(error) => return Err(problem(&error)),
    }
    rustix::fs::access(
        directory,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .map_err(|_| problem(&"cannot be written to"))
}

pub(super) fn directory(file: &Path) -> &Path {
    file.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Sets the mark of a running gateway, if its configuration names a state file: after a reload that
/// named another.
pub(super) fn begin(config: &Config) -> Result<Option<Mark>, String> {
    let file = config.server.state_file.as_deref();
    let begun = file.map(Mark::begin).transpose()?;
    Ok(begun.map(|(mark, _)| mark))
}

fn refused(file: &Path, error: &io::Error) -> String {
    format!(
        "`server.state_file`: buckets cannot be kept in {}: {error}",
        file.display()
    )
}

/// Creates a limiter with the buckets that the last clean stop saved, if there are any; also sets
/// the mark.
pub(super) fn limiter(
    config: &Config,
    shared: Arc<Backend>,
    clock: &Clock,
) -> Result<(Limiter<Backend>, Option<Mark>), StartError> {
    let limits = &config.policy.limits;
    let afresh = |cold_start| Limiter::new(limits, Arc::clone(&shared), clock.clone(), cold_start);
    let mut cold_start = mapped::cold_start(&config.server);
    let Some(file) = &config.server.state_file else {
        return Ok((afresh(cold_start), None));
    };
    let (mark, crashed) = Mark::begin(file).map_err(StartError::Setting)?;
    match saved(file) {
        Ok(None) if crashed => {
            tracing::warn!(file = %file.display(), "the last run saved no buckets: starting as `cold_start` says");
        }
        // The first start: no units have been drawn.
        Ok(None) => cold_start = ColdStart::Full,
        Ok(Some(saved)) => match Limiter::restored(
            limits,
            Arc::clone(&shared),
            clock.clone(),
            BufReader::new(saved),
        ) {
            Ok((limiter, _)) => {
                tracing::info!(file = %file.display(), "the buckets of the last stop are restored");
                return Ok((limiter, Some(mark)));
            }
            Err(error) => cold(file, &error),
        },
        Err(error) => cold(file, &error),
    }
    Ok((afresh(cold_start), Some(mark)))
}

fn cold(file: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(file = %file.display(), %error, "the saved buckets cannot be used: starting as `cold_start` says");
}

fn saved(file: &Path) -> io::Result<Option<File>> {
    match private().read(true).open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Saves the local buckets if a state file is configured. If that fails the mark stays, as after a crash.
pub(super) fn save(config: &Config, limiter: &Limiter<Backend>, mark: Option<Mark>) {
    let Some((file, mark)) = config.server.state_file.as_ref().zip(mark) else {
        return;
    };
    match write(file, limiter) {
        Ok(()) => {
            tracing::info!(file = %file.display(), "the buckets are saved");
            mark.end();
        }
        Err(error) => {
            tracing::error!(file = %file.display(), %error, "the buckets cannot be saved")
        }
    }
}

/// Replaces this mark with that of a reload that named another state file.
pub(super) fn replace(mark: &mut Option<Mark>, new: Option<Mark>) {
    if let Some(old) = std::mem::replace(mark, new) {
        old.end();
    }
}

fn write(file: &Path, limiter: &Limiter<Backend>) -> io::Result<()> {
    replace_whole(file, |new| {
        let mut out = BufWriter::new(new);
        limiter.save(&mut out).map_err(io::Error::other)?;
        out.flush()
    })
}

/// Replaces a file. Writes to a temporary name first, so that a file with the final name is complete:
/// a crash leaves the old one or the new one.
pub(crate) fn replace_whole(
    file: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let new = beside(file, ".new");
    // Left by an interrupted stop, or created by another program.
    remove(&new)?;
    let mut out = private().write(true).create_new(true).open(&new)?;
    write(&mut out)?;
    out.sync_all()?;
    fs::rename(&new, file)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

pub(crate) fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(file: &Path) -> Mark {
        let begun = Mark::begin(file);
        begun.expect("a directory that can be written to").0
    }

    #[test]
    fn state_file_outlives_a_start_that_fails_and_is_gone_before_the_first_request() {
        let here = tempfile::tempdir().expect("a temporary directory");
        let file = here.path().join("state");
        let mark = beside(&file, ".running");
        fs::write(&file, "saved").expect("written");
        drop(begin(&file));
        assert_eq!((file.exists(), mark.exists()), (true, false));

        let mut crashes = begin(&file);
        crashes.serves().expect("deleted");
        drop(crashes);
        assert_eq!((file.exists(), mark.exists()), (false, true));

        // A start that fails does not hide the crash before it.
        drop(begin(&file));
        assert!(mark.exists());

        let mut stops = begin(&file);
        stops.serves().expect("nothing to delete");
        stops.end();
        assert!(!mark.exists());
    }
}
