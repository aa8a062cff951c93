//! Who is asked for the addresses of names, and what was answered last.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Who is asked for a name's addresses.
#[derive(Clone, Debug, Default)]
pub(super) enum Resolver {
    /// The system, on a thread of its own.
    #[default]
    System,
    /// This table, which the test changes.
    #[cfg(test)]
    Table(Table),
}

/// The addresses of names, as tests have them.
#[cfg(test)]
pub(super) type Table = Arc<Mutex<Known>>;

/// What the resolver of a test knows.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) addresses: HashMap<String, Vec<SocketAddr>>,
    /// How many lookups have failed.
    pub(super) failures: u64,
}

/// A name for which a table has neither an address nor an error: the question stays open.
#[cfg(test)]
pub(super) const SILENT: &str = "silent.test";

impl Resolver {
    /// The addresses of `host`, with `port`.
    ///
    /// # Errors
    /// When they cannot be found out, or there is no such name.
    pub(super) async fn ask(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => tokio::net::lookup_host((host, port))
                .await
                .map(Iterator::collect),
            #[cfg(test)]
            Self::Table(_) if host == SILENT => std::future::pending().await,
            #[cfg(test)]
            Self::Table(table) => {
                let mut table = table.lock();
                let answer = table.addresses.get(host).cloned();
                table.failures += u64::from(answer.is_none());
                answer
                    .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such name"))
            }
        }
    }
}

/// The last good answer for each name in use, for the upstreams that a reload makes anew. Clones share it.
///
/// Names are hosts: an edit of an upstream's name, port, TLS or path leaves the answer in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    known: Arc<Mutex<HashMap<String, Answer>>>,
}

#[derive(Debug)]
struct Answer {
    addresses: Vec<SocketAddr>,
    /// An upstream that still uses the name will have asked again by then.
    until: Instant,
}

impl Answers {
    /// The resolver said that `host` is at `addresses`; it is asked again after `every`.
    pub(super) fn answered(&self, host: &str, addresses: &[SocketAddr], every: Duration) {
        let answer = Answer {
            addresses: addresses.to_vec(),
            until: until(every),
        };
        self.known.lock().insert(host.to_owned(), answer);
    }

    /// The resolver failed, and `host` stays at `addresses` for a worker. Another worker may have a newer answer.
    pub(super) fn stays(&self, host: &str, addresses: &[SocketAddr], every: Duration) {
        let known = &mut *self.known.lock();
        match known.get_mut(host) {
            Some(answer) => answer.until = answer.until.max(until(every)),
            None if addresses.is_empty() => {}
            None => {
                let answer = Answer {
                    addresses: addresses.to_vec(),
                    until: until(every),
                };
                known.insert(host.to_owned(), answer);
            }
        }
    }

    /// The last good answer for `host`, with `port`; empty when there is none. Forgets what is no longer in use.
    pub(super) fn last(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let (known, now) = (&mut *self.known.lock(), Instant::now());
        known.retain(|_, answer| answer.until > now);
        let addresses = known.get(host).map_or(&[][..], |answer| &answer.addresses);
        addresses
            .iter()
            .map(|address| SocketAddr::new(address.ip(), port))
            .collect()
    }
}

fn until(every: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(every.saturating_add(KEPT))
        .unwrap_or(now + KEPT)
}

/// An answer is kept so long after its upstream should have asked again: a reloaded upstream is made anew by its first
/// request on each worker, which may come after the old one is gone.
const KEPT: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn name_last_answer_is_kept_while_it_is_in_use_and_forgotten_afterwards() {
        let (answers, every) = (Answers::default(), Duration::from_secs(5));
        let [old, new] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 80)));
        answers.answered("app.test", &[new], every);
        answers.answered("gone.test", &[old], every);
        tokio::time::advance(KEPT).await;
        answers.stays("app.test", &[old], every);
        tokio::time::advance(every).await;
        assert_eq!(
            answers.last("app.test", 81),
            [SocketAddr::new(new.ip(), 81)],
            "another worker's newer answer"
        );
        assert!(answers.last("gone.test", 80).is_empty());
        tokio::time::advance(KEPT).await;
        assert!(answers.last("app.test", 81).is_empty());
    }
}
