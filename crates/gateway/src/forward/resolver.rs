//! The resolver of names, and its last answers.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Debug, Default)]
pub(super) enum Resolver {
    /// The system's resolver, on a thread of its own.
    #[default]
    System,
    #[cfg(test)]
    Table(super::tests::names::Table),
}

impl Resolver {
    pub(super) async fn ask(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => tokio::net::lookup_host((host, port))
                .await
                .map(Iterator::collect),
            #[cfg(test)]
            Self::Table(table) => table.answer(host).await,
        }
    }
}

/// The last good answer for each name in use, for upstreams that a reload recreates. Clones share
/// it.
///
/// The keys are hosts, so a change of an upstream's name, port, TLS or path keeps the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    known: Arc<Mutex<HashMap<String, Answer>>>,
}

#[derive(Debug)]
struct Answer {
    addresses: Vec<SocketAddr>,
    /// When the entry expires; an upstream that still uses the name looks it up before.
    until: Instant,
}

impl Answers {
    /// Records that `host` resolved to `addresses`; it is looked up again after `every`.
    pub(super) fn answered(&self, host: &str, addresses: &[SocketAddr], every: Duration) {
        let answer = Answer {
            addresses: addresses.to_vec(),
            until: until(every),
        };
        self.known.lock().insert(host.to_owned(), answer);
    }

    /// Records that the lookup failed and a worker keeps using `addresses` for `host`. Another
    /// worker may have a newer answer.
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

    /// The last good answer for `host`, with `port`; empty if there is none. Removes expired entries.
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

/// How long an answer is kept after its upstream's next lookup was due. A reloaded upstream is
/// created by its first request on each worker, which may come after the old one is gone.
const KEPT: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn name_last_addresses_are_kept_while_in_use_and_forgotten_afterwards() {
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
