//! Counts the gateways that share a store, from the heartbeat counts of its servers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// The counts of a store's servers. The largest is used: a server that has just lost its count, or
/// took over slots of another, knows only some gateways, and none knows too many.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    by_server: Mutex<HashMap<String, u32>>,
    most: AtomicU32,
}

impl Replicas {
    pub(super) fn most(&self) -> u32 {
        self.most.load(Ordering::Relaxed)
    }

    /// Sets the number while it is not known.
    pub(super) fn assume(&self, count: u32) {
        let _one_at_a_time = self.by_server.lock();
        if self.most() == 0 {
            self.most.store(count, Ordering::Relaxed);
        }
    }

    /// Returns the number of gateways if it has changed.
    pub(super) fn counted(&self, server: &str, count: u32) -> Option<u32> {
        let mut by_server = self.by_server.lock();
        match by_server.get_mut(server) {
            Some(known) => *known = count,
            None => drop(by_server.insert(server.to_owned(), count)),
        }
        self.settle(&by_server)
    }

    /// Records that a server no longer responds and its count is old. The last server's count is
    /// kept. Returns the number of gateways if it has changed.
    pub(super) fn gone(&self, server: &str) -> Option<u32> {
        let mut by_server = self.by_server.lock();
        if by_server.len() > 1 {
            by_server.remove(server);
        }
        self.settle(&by_server)
    }

    fn settle(&self, by_server: &HashMap<String, u32>) -> Option<u32> {
        let most = by_server.values().copied().max().unwrap_or(0);
        (self.most.swap(most, Ordering::Relaxed) != most).then_some(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_what_the_servers_that_answer_count_at_most() {
        let replicas = Replicas::default();
        assert_eq!(replicas.most(), 0);
        replicas.assume(2);
        assert_eq!(replicas.most(), 2);
        assert_eq!(replicas.counted("a", 3), Some(3));
        replicas.assume(2);
        assert_eq!(
            (replicas.counted("b", 1), replicas.most()),
            (None, 3),
            "it has heard of one so far"
        );
        assert_eq!(replicas.counted("b", 4), Some(4));
        assert_eq!(replicas.gone("b"), Some(3));
        assert_eq!(
            (replicas.gone("a"), replicas.most()),
            (None, 3),
            "no heartbeat says otherwise"
        );
    }
}
