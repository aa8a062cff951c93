//! Local buckets over a clean stop: saved at the end, restored at the start.
//!
//! The file is taken away as soon as it is read: a process that crashes later must not find the buckets of an earlier
//! stop and refill everybody with them; it starts as `cold_start` says. Beside it a mark lies while a gateway runs, which
//! tells a crash (a mark and no buckets) from the first start of all (neither).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{StartError, mapped};
use tollgate_config::Config;
use tollgate_limiter::Limiter;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

/// That a gateway runs which keeps its buckets in a state file. It stays behind when the process dies.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    /// Locked, as soon as the process that had the place before is gone.
    _held: Arc<OnceLock<File>>,
}

fn open(mark: &Path) -> io::Result<File> {
    private()
        .write(true)
        .create(true)
        .truncate(false)
        .open(mark)
}

/// A file for nobody else: it says who called how often. A link in its place, which anybody may have put there, is an error.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// What was there when a mark was set.
enum Begun {
    /// Nothing: a clean stop, or the first start.
    Cleanly(Mark),
    /// The mark of a gateway that is no more.
    AfterCrash(Mark),
    /// Another gateway runs on this file.
    Taken,
}

impl Mark {
    fn begin(file: &Path) -> io::Result<Begun> {
        let path = beside(file, ".running");
        let crashed = fs::symlink_metadata(&path).is_ok();
        let held = open(&path)?;
        // On a file system without locks two gateways on one file are not told apart.
        if rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Ok(Begun::Taken);
        }
        let mark = Self {
            path,
            _held: Arc::new(OnceLock::from(held)),
        };
        Ok(if crashed {
            Begun::AfterCrash(mark)
        } else {
            Begun::Cleanly(mark)
        })
    }

    /// For a gateway that takes the place of one that runs, which holds the lock until it has drained: a thread waits for it.
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
                // Set once, here.
                Ok(file) => drop(slot.set(file)),
                Err(error) => {
                    tracing::warn!(file = %place.display(), %error, "another gateway could take this state file")
                }
            }
        });
        if let Err(error) = waits {
            tracing::warn!(file = %path.display(), %error, "another gateway could take this state file");
        }
        Some(Self { path, _held: held })
    }

    /// Of a clean stop.
    fn end(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(file = %self.path.display(), %error, "the mark of a running gateway cannot be removed");
        }
    }
}

/// Says which file a gateway keeps its buckets in where its own file does not: one in the directory that a service manager
/// gives it (`$STATE_DIRECTORY`). One that cannot be used there is warned of.
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
    let told = |why: &dyn std::fmt::Display| format!("`{}`: {why}", directory.display());
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(told(&"is no directory")),
        Err(error) => return Err(told(&error)),
    }
    rustix::fs::access(
        directory,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .map_err(|_| told(&"cannot be written to"))
}

/// Whether the directory of `file` is there.
pub(super) fn directory_is_there(file: &Path) -> bool {
    directory(file).is_dir()
}

fn directory(file: &Path) -> &Path {
    file.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Marks that a gateway runs, where its file names a state file: after a reload that named another.
pub(super) fn begin(config: &Config) -> Result<Option<Mark>, String> {
    let Some(file) = &config.server.state_file else {
        return Ok(None);
    };
    match Mark::begin(file).map_err(|error| refused(file, &error))? {
        Begun::Cleanly(mark) | Begun::AfterCrash(mark) => Ok(Some(mark)),
        Begun::Taken => Err(taken(file)),
    }
}

fn refused(file: &Path, error: &io::Error) -> String {
    format!(
        "`server.state_file`: buckets cannot be kept in {}: {error}",
        file.display()
    )
}

fn taken(file: &Path) -> String {
    format!(
        "`server.state_file`: another gateway keeps its buckets in {}",
        file.display()
    )
}

/// A limiter with the buckets that the last clean stop saved, if there are any; and the mark that it runs.
pub(super) fn limiter(
    config: &Config,
    shared: Arc<Backend>,
    clock: &Clock,
) -> Result<(Limiter<Backend>, Option<Mark>), StartError> {
    let limits = &config.policy.limits;
    let cold_start = mapped::cold_start(&config.server);
    let Some(file) = &config.server.state_file else {
        return Ok((
            Limiter::new(limits, shared, clock.clone(), cold_start),
            None,
        ));
    };
    let (mark, crashed) =
        match Mark::begin(file).map_err(|error| StartError::State(refused(file, &error)))? {
            Begun::Cleanly(mark) => (mark, false),
            Begun::AfterCrash(mark) => (mark, true),
            Begun::Taken => return Err(StartError::State(taken(file))),
        };
    let mut cold_start = cold_start;
    match take(file) {
        Ok(None) if crashed => {
            tracing::warn!(file = %file.display(), "the last run saved no buckets: starting as `cold_start` says");
        }
        // Nobody has drawn anything yet.
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
    Ok((
        Limiter::new(limits, shared, clock.clone(), cold_start),
        Some(mark),
    ))
}

fn cold(file: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(file = %file.display(), %error, "the saved buckets cannot be used: starting as `cold_start` says");
}

/// Opens the file and takes it away.
fn take(file: &Path) -> io::Result<Option<File>> {
    let opened = match private().read(true).open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    fs::remove_file(file)?;
    Ok(Some(opened))
}

/// Saves the local buckets where the file says so. The mark stays where they are lost, as after a crash.
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

/// Puts another mark, of a reload that named another state file, in the place of this one.
pub(super) fn replace(mark: &mut Option<Mark>, new: Option<Mark>) {
    if let Some(old) = std::mem::replace(mark, new) {
        old.end();
    }
}

/// Under another name first: a file with the right name is a whole one.
fn write(file: &Path, limiter: &Limiter<Backend>) -> Result<(), String> {
    let new = beside(file, ".new");
    let words = |error: io::Error| error.to_string();
    // What a stop that was cut short left, or somebody else put there.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(words(error)),
        _ => {}
    }
    let mut out = BufWriter::new(
        private()
            .write(true)
            .create_new(true)
            .open(&new)
            .map_err(words)?,
    );
    limiter.save(&mut out).map_err(|error| error.to_string())?;
    let whole = out.into_inner().map_err(|error| error.to_string())?;
    whole.sync_all().map_err(words)?;
    fs::rename(&new, file).map_err(words)
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
