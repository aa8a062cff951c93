//! The folder of one authority inside `state`: the account, certificates with their keys, challenges,
//! and what became of the last order.
//!
//! Only its owner may read it. A file is replaced as a whole: a crash or a full disk leaves the old
//! one. What belongs to a set of hosts has a hash of them in its name, so that gateways with other
//! hosts may share the folder.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::certificate::Leaf;
use crate::app::state_file::{private, replace_whole};
use tollgate_config::settings::Acme as Settings;
use tollgate_limit::{Micros, Timestamp, hex};

pub(super) struct Folder {
    path: PathBuf,
    /// The hash of the hosts, in the names of their files.
    hash: String,
}

/// What an authority asks for to check a host.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) token: String,
    pub(super) host: String,
    pub(super) answer: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// How many orders in a row have failed.
    pub(super) failures: u32,
    /// When the next order may be made, in seconds since the Unix epoch.
    pub(super) again: u64,
    pub(super) error: Option<String>,
}

impl Record {
    pub(super) fn failed(failures: u32, again: Timestamp, error: String) -> Self {
        Self {
            failures,
            again: again.as_micros().div_ceil(1_000_000),
            error: Some(error),
        }
    }

    pub(super) fn again(&self) -> Timestamp {
        Timestamp::from_micros(self.again.saturating_mul(1_000_000))
    }

    /// Whether no order may be made at `now`. One that was recorded by a clock far ahead does not count.
    pub(super) fn holds_back(&self, now: Timestamp) -> bool {
        let left = self.again().since(now);
        left > Micros::ZERO && left <= super::WAIT_MAX.into()
    }
}

impl Folder {
    pub(super) fn of(settings: &Settings) -> Self {
        let url = settings.directory.trim_start_matches("https://");
        let plain = |one: char| {
            if one.is_ascii_alphanumeric() {
                one
            } else {
                '-'
            }
        };
        let name: String = url.chars().map(plain).take(NAME_MAX).collect();
        let mut hosts = settings.hosts.clone();
        hosts.sort();
        let hash = Sha256::digest(hosts.join(" ").as_bytes());
        Self {
            path: settings.state.join(name),
            hash: hex::digits(&hash[..8]),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder, and takes the lock that allows to order; `None`: another gateway has it. The lock ends with
    /// the process, however that ends.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let challenges = self.path.join(CHALLENGES);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&challenges)?;
        for folder in [&self.path, &challenges] {
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        let lock = private()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path.join("lock"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn certificate(&self) -> PathBuf {
        self.path.join(format!("certificate-{}.pem", self.hash))
    }

    /// The certificate for these hosts; `None`: there is none that can be used.
    pub(super) fn leaf(&self) -> Option<Leaf> {
        let path = self.certificate();
        Leaf::of(&path, &read(&path).ok()?)
    }

    /// Takes the room that a certificate needs on the disk, before one is ordered that could not be kept.
    pub(super) fn reserve(&self) -> io::Result<()> {
        replace_whole(&self.path.join(RESERVE), |new| {
            new.write_all(&[0; FILE_MAX])
        })
    }

    pub(super) fn keep_certificate(&self, key_and_chain: &str) -> io::Result<()> {
        let _ = fs::remove_file(self.path.join(RESERVE));
        replace_whole(&self.certificate(), |new| {
            new.write_all(key_and_chain.as_bytes())
        })
    }

    pub(super) fn account(&self) -> Option<Vec<u8>> {
        read(&self.path.join(ACCOUNT)).ok()
    }

    pub(super) fn keep_account(&self, credentials: &[u8]) -> io::Result<()> {
        replace_whole(&self.path.join(ACCOUNT), |new| new.write_all(credentials))
    }

    pub(super) fn forget_account(&self) -> io::Result<()> {
        fs::remove_file(self.path.join(ACCOUNT))
    }

    fn record_file(&self) -> PathBuf {
        self.path.join(format!("last-order-{}.json", self.hash))
    }

    pub(super) fn record(&self) -> Option<Record> {
        serde_json::from_slice(&read(&self.record_file()).ok()?).ok()
    }

    pub(super) fn keep_record(&self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record)?;
        replace_whole(&self.record_file(), |new| new.write_all(&text))
    }

    /// The challenges of the order under way, sorted.
    pub(super) fn challenges(&self) -> Vec<Challenge> {
        let Ok(entries) = fs::read_dir(self.path.join(CHALLENGES)) else {
            return Vec::new();
        };
        let one = |entry: io::Result<fs::DirEntry>| {
            let text = String::from_utf8(read(&entry.ok()?.path()).ok()?).ok()?;
            let mut lines = text.lines().map(str::to_owned);
            Some(Challenge {
                token: lines.next()?,
                host: lines.next()?,
                answer: lines.next()?,
            })
        };
        let mut challenges: Vec<_> = entries.take(CHALLENGES_MAX).filter_map(one).collect();
        challenges.sort_by(|one, other| one.token.cmp(&other.token));
        challenges
    }

    pub(super) fn keep_challenge(&self, challenge: &Challenge) -> io::Result<()> {
        let Challenge {
            token,
            host,
            answer,
        } = challenge;
        // The authority chooses the token: it names no file.
        let name = hex::digits(&Sha256::digest(token.as_bytes())[..8]);
        let text = format!("{token}\n{host}\n{answer}\n");
        let path = self.path.join(CHALLENGES).join(name);
        replace_whole(&path, |new| new.write_all(text.as_bytes()))
    }

    /// Removes what only an order under way needs.
    pub(super) fn tidy(&self) {
        let _ = fs::remove_file(self.path.join(RESERVE));
        let entries = fs::read_dir(self.path.join(CHALLENGES));
        for entry in entries.into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file of the certificate that TLS shows: that of these hosts or, until there is one, the newest of other hosts;
/// `None`: there is none that can be used.
pub(crate) fn shown(settings: &Settings) -> Option<PathBuf> {
    let folder = Folder::of(settings);
    let is_usable = |path: &PathBuf| {
        let content = read(path);
        content.is_ok_and(|content| Leaf::of(path, &content).is_some())
    };
    let entries = fs::read_dir(&folder.path).ok()?;
    let others = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let others = others.filter(|path| path.extension().is_some_and(|ending| ending == "pem"));
    let newest = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let own = Some(folder.certificate()).filter(is_usable);
    own.or_else(|| others.filter(is_usable).max_by_key(newest))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = private().read(true).open(path)?;
    file.take(FILE_MAX as u64).read_to_end(&mut content)?;
    Ok(content)
}

const ACCOUNT: &str = "account.json";
const CHALLENGES: &str = "challenges";
const RESERVE: &str = "reserve";
/// The largest file here: a chain has about 5 KiB.
const FILE_MAX: usize = 64 * 1024;
/// More than an order has hosts.
const CHALLENGES_MAX: usize = 256;
const NAME_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::settings::AcmeChallenge;

    fn settings(state: &Path, hosts: &[&str]) -> Settings {
        Settings {
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            state: state.to_owned(),
            email: None,
            directory: "https://acme.example:14000/v2/dir".to_owned(),
            ca_file: None,
            challenge: AcmeChallenge::TlsAlpn01,
        }
    }

    #[test]
    fn acme_record_of_a_clock_far_ahead_holds_nothing_back() {
        let at = |seconds| Timestamp::from_micros(seconds * 1_000_000);
        let record = Record::failed(1, at(1_000), "no".to_owned());
        assert!(record.holds_back(at(999)));
        assert!(!record.holds_back(at(1_000)));
        let week = super::super::WAIT_MAX.as_secs();
        let ahead = Record::failed(1, at(1_000 + 2 * week), "no".to_owned());
        assert!(!ahead.holds_back(at(1_000)));
    }

    #[test]
    fn acme_state_shows_the_own_certificate_or_the_newest_other_one() {
        let state = tempfile::tempdir().expect("a folder");
        let own = settings(state.path(), &["a.example", "b.example"]);
        assert_eq!(shown(&own), None);
        let other = settings(state.path(), &["c.example"]);
        let (folder, another) = (Folder::of(&own), Folder::of(&other));
        assert_eq!(
            folder.path(),
            state.path().join("acme-example-14000-v2-dir")
        );
        drop(folder.lock().expect("a folder").expect("nobody has it"));
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("made");
        let file = format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem());
        another.keep_certificate(&file).expect("kept");
        assert_eq!(shown(&own), Some(another.certificate()));
        folder.keep_certificate("cut off").expect("kept");
        assert_eq!(shown(&own), Some(another.certificate()));
        folder.keep_certificate(&file).expect("kept");
        // The order of the hosts does not matter.
        let turned = settings(state.path(), &["b.example", "a.example"]);
        assert_eq!(shown(&turned), Some(folder.certificate()));
    }

    #[test]
    fn acme_lock_is_of_one_at_a_time() {
        let state = tempfile::tempdir().expect("a folder");
        let folder = Folder::of(&settings(state.path(), &["a.example"]));
        let held = folder.lock().expect("a folder").expect("nobody has it");
        assert!(folder.lock().expect("a folder").is_none());
        drop(held);
        assert!(folder.lock().expect("a folder").is_some());
    }
}
