//! Three Galera nodes with a store on each: conflicts that are noticed at COMMIT, a node killed, paused, and joined again.
//! (The suite runs on them, too.)

use std::time::{Duration, Instant};

use tollgate_limit::{Claim, Kind, Limit, Micros};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, draw, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::outages::within_one_burst;
use crate::servers::{Server, StoreKind, eventually, wait_until};

const HOUR: Micros = Micros::from_secs(3600);
/// The units of a limit of these tests.
const ALL: u64 = 100_000;
/// The deadline of the stores, and what a busy machine may add to it.
const WITHIN: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(10);

async fn one_on_each(server: &Server) -> [RemoteStore; 3] {
    let connect = || {
        server.connect_with(|options| {
            options.answer_within = Micros(u64::try_from(WITHIN.as_micros()).unwrap());
        })
    };
    [connect().await, connect().await, connect().await]
}

/// What was granted, and may have been charged without a grant.
#[derive(Debug, Default)]
struct Count {
    granted: u64,
    unknown: u64,
}

impl Count {
    /// Draws on these nodes at once for a while. Each request is answered, if only by an error, in time.
    async fn storm_on(&mut self, stores: &[RemoteStore], limit: &Limit, span: Duration) {
        let start = Instant::now();
        let (granted, failed) = storm(stores, limit, b"k", 8, span).await;
        assert!(start.elapsed() < span + WITHIN + SLACK, "answered in time");
        assert!(granted > 0, "some are decided: {failed:?}");
        self.granted += granted;
        self.unknown += failed
            .iter()
            .filter(|error| error.may_have_charged())
            .count() as u64;
    }

    /// Every node has the same number left, and each grant was charged once.
    async fn is_charged_once(&self, stores: &[RemoteStore], limit: &Limit) {
        let mut left = Vec::new();
        eventually("same number on each node", PATIENCE, async || {
            left.clear();
            for store in stores {
                let peeked = store.peek(&[Claim::new(limit, b"k", 1)]).await;
                left.push(peeked.ok().map(|standings| standings[0].remaining()));
            }
            left[0].is_some() && left.iter().all(|one| *one == left[0])
        })
        .await;
        let charged = ALL - left[0].unwrap();
        assert!(
            (self.granted..=self.granted + self.unknown).contains(&charged),
            "{}: {charged} charged, {self:?}",
            limit.name
        );
    }
}

#[tokio::test]
async fn galera_nodes_charge_each_grant_once_through_conflicts() {
    let Some(server) = StoreKind::Galera.start() else {
        return;
    };
    let stores = one_on_each(&server).await;
    let conflicts = || {
        let shown = "SHOW STATUS WHERE Variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')";
        let shown = server.galera().nodes.iter().map(|node| node.sql(shown));
        let numbers = |text: String| -> u64 {
            let words = text.split_whitespace();
            words.filter_map(|word| word.parse::<u64>().ok()).sum()
        };
        shown.map(numbers).sum::<u64>()
    };
    let before = conflicts();
    for limit in [
        bucket("many", 1, 1, HOUR, ALL),
        limit("sliding", 2, &terms(Kind::SlidingWindow, ALL, HOUR)),
    ] {
        let mut count = Count::default();
        count
            .storm_on(&stores, &limit, Duration::from_secs(2))
            .await;
        count.is_charged_once(&stores, &limit).await;
    }
    assert!(conflicts() > before, "the nodes have met conflicts");
}

/// The others go on, and it comes back with what they have.
#[tokio::test]
async fn galera_node_that_is_killed_or_paused_takes_no_charge_along() {
    let Some(mut server) = StoreKind::Galera.start() else {
        return;
    };
    let stores = one_on_each(&server).await;
    let window = limit("window", 4, &terms(Kind::FixedWindow, ALL, HOUR));
    let mut count = Count::default();
    for paused in [false, true] {
        away(&mut server, paused);
        // Longer than they wait for the node that is silent: five seconds, and what a busy machine adds.
        count
            .storm_on(&stores[1..], &window, Duration::from_secs(12))
            .await;
        back(&mut server, paused);
        recovers(&stores[0], &bucket("other", 5, ALL, HOUR, ALL)).await;
        count
            .storm_on(&stores, &window, Duration::from_secs(1))
            .await;
    }
    count.is_charged_once(&stores, &window).await;
    assert!(draw(&stores[0], &window, b"k").await.is_ok());
}

/// Gateways of the nodes that are left answer each request by a decision, of the store or of their share.
#[test]
fn galera_node_that_is_killed_or_paused_costs_one_burst_at_most() {
    let Some(mut server) = StoreKind::Galera.start() else {
        return;
    };
    for paused in [false, true] {
        let urls = [server.url_at(1), server.url_at(2)];
        let outage = || {
            away(&mut server, paused);
            let probe = "CREATE TABLE IF NOT EXISTS tollgate.probe (n INT PRIMARY KEY); REPLACE INTO tollgate.probe VALUES (1)";
            let nodes = &server.galera().nodes;
            wait_until("commit", || nodes[1].try_sql(probe).is_ok());
            Instant::now()
        };
        within_one_burst("mysql", &urls, outage, || ());
        back(&mut server, paused);
    }
}

/// Takes the first node away.
fn away(server: &mut Server, paused: bool) {
    if paused {
        server.signal("-STOP");
    } else {
        server.crash();
    }
}

/// The first node goes on, and has joined the others.
fn back(server: &mut Server, paused: bool) {
    if paused {
        server.signal("-CONT");
    } else {
        server.run();
    }
    server.galera().joined();
}
