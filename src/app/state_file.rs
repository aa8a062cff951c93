//! Local buckets over a clean stop: saved at the end, restored at the start.
//!
//! The file is taken away as soon as it is read: a process that crashes later must not find the buckets of an earlier
//! stop and refill everybody with them; it starts as `cold_start` says.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;

use super::mapped;
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::Limiter;
use crate::store::Backend;

/// A limiter with the buckets that the last clean stop saved, if there are any.
pub(super) fn limiter(config: &Config, shared: Arc<Backend>, clock: &Clock) -> Limiter<Backend> {
    let limits = &config.policy.limits;
    if let Some(file) = &config.server.state_file {
        match take(file) {
            Ok(None) => {}
            Ok(Some(saved)) => {
                match Limiter::restored(limits, Arc::clone(&shared), clock.clone(), BufReader::new(saved)) {
                    Ok((limiter, _)) => {
                        tracing::info!(file = %file.display(), "the buckets of the last stop are restored");
                        return limiter;
                    }
                    Err(error) => cold(file, &error),
                }
            }
            Err(error) => cold(file, &error),
        }
    }
    Limiter::new(limits, shared, clock.clone(), mapped::cold_start(&config.server))
}

fn cold(file: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(file = %file.display(), %error, "the saved buckets cannot be used: starting as `cold_start` says");
}

/// Opens the file and takes it away.
fn take(file: &Path) -> io::Result<Option<File>> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    fs::remove_file(file)?;
    Ok(Some(opened))
}

/// Saves the local buckets where the file says so.
pub(super) fn save(config: &Config, limiter: &Limiter<Backend>) {
    let Some(file) = &config.server.state_file else { return };
    match write(file, limiter) {
        Ok(()) => tracing::info!(file = %file.display(), "the buckets are saved"),
        Err(error) => tracing::error!(file = %file.display(), %error, "the buckets cannot be saved"),
    }
}

/// Under another name first: a file with the right name is a whole one.
fn write(file: &Path, limiter: &Limiter<Backend>) -> Result<(), String> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let words = |error: io::Error| error.to_string();
    let mut out = BufWriter::new(File::create(&beside).map_err(words)?);
    limiter.local().save(&mut out).map_err(|error| error.to_string())?;
    let whole = out.into_inner().map_err(|error| error.to_string())?;
    whole.sync_all().map_err(words)?;
    fs::rename(&beside, file).map_err(words)
}
