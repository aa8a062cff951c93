//! The secret with which callers' keys are named in logs and pages: derived from the store's
//! `key_secret`, so that every gateway of a fleet uses the same names; otherwise kept in a file
//! beside the state file, so that a restart keeps the names; otherwise
//! those of the process before an upgrade, otherwise random.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::StartError;
use super::state_file::{beside, private, replace_whole};
use tollgate_config::Config;
use tollgate_telemetry::access::KeyNames;

/// The names of a gateway that runs `config`; `handed_over`: those of the process before it. Creates the
/// file of the secret if there is none.
pub(super) fn of_gateway(
    config: &Config,
    handed_over: Option<KeyNames>,
) -> Result<KeyNames, StartError> {
    if let Some(names) = of_store(config) {
        return Ok(names);
    }
    let secret = match file(config) {
        Some(file) => kept(&file).map_err(|error| {
            let file = file.display();
            let words = "`server.state_file`: the secret of callers' names cannot be kept in";
            StartError::Setting(format!("{words} {file}: {error}"))
        })?,
        None => match handed_over {
            Some(names) => return Ok(names),
            None => random().map_err(|source| StartError::System {
                what: "the secret of callers' names",
                source,
            })?,
        },
    };
    Ok(KeyNames::new(secret))
}

fn kept(file: &Path) -> io::Result<[u8; 16]> {
    use io::ErrorKind::{NotFound, UnexpectedEof};
    match read(file) {
        // A crash may have cut it off.
        Err(error) if matches!(error.kind(), NotFound | UnexpectedEof) => {}
        found => return found,
    }
    let secret = random()?;
    replace_whole(file, |new| new.write_all(&secret))?;
    Ok(secret)
}

fn random() -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(io::Error::from)?;
    Ok(secret)
}

/// The names that a gateway with `config` uses; `None`: they change with every start, or the
/// secret cannot be read here.
pub(crate) fn known(config: &Config) -> Option<KeyNames> {
    of_store(config).or_else(|| read(&file(config)?).ok().map(KeyNames::new))
}

fn of_store(config: &Config) -> Option<KeyNames> {
    // A secret that is assumed to be set is not the gateway's.
    let store = config
        .store
        .as_ref()
        .filter(|_| config.assumed.is_empty())?;
    let digest = Sha256::new()
        .chain_update(b"tollgate names of keys\0")
        .chain_update(store.key_secret.expose())
        .finalize();
    digest.first_chunk().copied().map(KeyNames::new)
}

fn file(config: &Config) -> Option<PathBuf> {
    let state = config.server.state_file.as_deref()?;
    Some(beside(state, ".names"))
}

fn read(file: &Path) -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    private().read(true).open(file)?.read_exact(&mut secret)?;
    Ok(secret)
}
