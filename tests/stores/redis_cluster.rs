//! A Redis Cluster whose masters die, freeze and change: a slot's failure concerns the keys of that slot, and no others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate_limit::{Limit, Micros};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, draw};
use crate::limits::bucket;
use crate::names::name;
use crate::servers::StoreKind;
use crate::servers::{Redis, available, eventually, wait_until};

const HOUR: Micros = Micros::from_secs(3600);

/// Three masters, and a replica of the first.
struct Cluster {
    nodes: Vec<Redis>,
    replica: Option<Redis>,
}

impl Cluster {
    fn start(full_coverage: &str, node_timeout: &str, replica: bool) -> Self {
        let node = || {
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                node_timeout,
            ];
            let coverage = ["--cluster-require-full-coverage", full_coverage];
            Redis::start_with(
                &[
                    &arguments[..],
                    &coverage,
                    &["--repl-diskless-sync-delay", "0"],
                ]
                .concat(),
            )
        };
        let nodes: Vec<Redis> = (0..3).map(|_| node()).collect();
        for (place, (node, slots)) in nodes
            .iter()
            .zip(["0 5460", "5461 10922", "10923 16383"])
            .enumerate()
        {
            assert!(
                node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1))
                    .contains("OK")
            );
            assert!(
                node.ask(&format!("CLUSTER ADDSLOTSRANGE {slots}"))
                    .contains("OK")
            );
        }
        for node in &nodes[1..] {
            assert!(
                node.ask(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port))
                    .contains("OK")
            );
        }
        let agree = |node: &Redis, known: usize| {
            let info = node.ask("CLUSTER INFO");
            let whole =
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384");
            whole && info.contains(&format!("cluster_known_nodes:{known}\r"))
        };
        wait_until("cluster in agreement", || {
            nodes.iter().all(|node| agree(node, 3))
        });
        let replica = replica.then(|| {
            let replica = node();
            assert!(
                replica
                    .ask(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port))
                    .contains("OK")
            );
            wait_until("replica in the cluster", || {
                nodes.iter().chain([&replica]).all(|node| agree(node, 4))
            });
            assert!(
                replica
                    .ask(&format!("CLUSTER REPLICATE {}", id(&nodes[0])))
                    .contains("OK")
            );
            wait_until("replica in step", || {
                replica
                    .ask("INFO replication")
                    .contains("master_link_status:up")
            });
            let told = |node: &Redis| {
                node.ask("CLUSTER SLOTS")
                    .contains(&replica.port.to_string())
            };
            wait_until("replica known to all", || nodes.iter().all(told));
            replica
        });
        Self { nodes, replica }
    }

    async fn connect(&self) -> RemoteStore {
        let ports: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        StoreKind::Redis
            .connect_with(&format!("redis+cluster://{}", ports.join(",")), |options| {
                options.answer_within = Micros::from_secs(2);
                options.local_refusals = false;
            })
            .await
    }

    /// The place of the master that has the slot of a key.
    fn place_of(&self, key: &str) -> usize {
        let slot: u16 = number(&self.nodes[0].ask(&format!("CLUSTER KEYSLOT {key}")));
        usize::from(slot > 5460) + usize::from(slot > 10_922)
    }

    /// Callers whose buckets of this limit live on each master, so many on each.
    async fn callers(&self, store: &RemoteStore, limit: &Limit, many: usize) -> [Vec<[u8; 4]>; 3] {
        let mut callers = [const { Vec::new() }; 3];
        let sizes = || {
            self.nodes
                .iter()
                .map(|node| number::<u64>(&node.ask("DBSIZE")))
                .collect::<Vec<_>>()
        };
        let mut before = sizes();
        for key in (0..u32::MAX).map(u32::to_le_bytes) {
            assert!(draw(store, limit, &key).await.unwrap());
            let after = sizes();
            let place = before
                .iter()
                .zip(&after)
                .position(|(before, after)| before < after)
                .expect("a new key");
            callers[place].push(key);
            before = after;
            if callers.iter().all(|callers| callers.len() >= many) {
                break;
            }
        }
        callers
    }
}

fn number<N: std::str::FromStr<Err: std::fmt::Debug>>(answer: &str) -> N {
    answer.trim().trim_start_matches(':').parse().unwrap()
}

fn id(node: &Redis) -> String {
    node.ask("CLUSTER MYID")
        .lines()
        .nth(1)
        .unwrap()
        .trim()
        .to_owned()
}

/// What came of requests under way all the time.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Answers for callers of living masters.
    answers: AtomicU64,
    /// Answers for callers of the lost one since it was lost, and failures.
    lost_answers: AtomicU64,
    lost_failures: AtomicU64,
    wrong: std::sync::Mutex<Vec<String>>,
}

impl Load {
    /// Asks for all callers all the time until `events` are over.
    async fn run(
        &self,
        store: &RemoteStore,
        limit: &Limit,
        callers: &[Vec<[u8; 4]>; 3],
        lost: usize,
        events: impl Future<Output = ()>,
    ) {
        let ask = async |place: usize, key: &[u8]| {
            while !self.stop.load(Ordering::Relaxed) {
                let answer = draw(store, limit, key).await;
                match (answer, place == lost) {
                    (Ok(_), false) => drop(self.answers.fetch_add(1, Ordering::Relaxed)),
                    (Ok(_), true) => drop(self.lost_answers.fetch_add(1, Ordering::Relaxed)),
                    (Err(_), true) => drop(self.lost_failures.fetch_add(1, Ordering::Relaxed)),
                    (Err(error), false) => self.wrong.lock().unwrap().push(error.to_string()),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let mut all: Vec<_> = callers
            .iter()
            .enumerate()
            .flat_map(|(place, keys)| keys.iter().map(move |key| (place, key)))
            .map(|(place, key)| Box::pin(ask(place, key)))
            .collect();
        let asking = std::future::poll_fn(|context| {
            all.retain_mut(|one| one.as_mut().poll(context).is_pending());
            if all.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let events = async {
            events.await;
            self.stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(asking, events);
        assert_eq!(
            *self.wrong.lock().unwrap(),
            Vec::<String>::new(),
            "for callers of living masters"
        );
    }

    /// Waits for so many more answers for callers of living masters.
    async fn answers(&self, more: u64) {
        let enough = self.answers.load(Ordering::Relaxed) + more;
        eventually("answers of living masters", PATIENCE, async || {
            self.answers.load(Ordering::Relaxed) >= enough
        })
        .await;
    }

    async fn failures_of_the_lost(&self, more: u64) {
        let enough = self.lost_failures.load(Ordering::Relaxed) + more;
        let failures = async || self.lost_failures.load(Ordering::Relaxed) >= enough;
        eventually("failures of the lost master", PATIENCE, failures).await;
    }

    async fn answers_of_the_lost(&self) {
        let enough = self.lost_answers.load(Ordering::Relaxed) + 1;
        let answers = async || self.lost_answers.load(Ordering::Relaxed) >= enough;
        eventually("answers for the lost master's callers", PATIENCE, answers).await;
    }
}

#[tokio::test]
async fn cluster_master_killed_or_frozen_fails_its_own_keys_and_no_others() {
    if !available("redis-server") {
        return;
    }
    let mut cluster = Cluster::start("no", "60000", false);
    let store = cluster.connect().await;
    let limit = bucket("many", 0, 1 << 30, HOUR, 1 << 30);
    let callers = cluster.callers(&store, &limit, 6).await;
    let gateways = cluster.place_of("tollgate:{overrides}");
    // That of the gateways' own key, and another.
    for lost in [gateways, (gateways + 1) % 3] {
        let load = Load::default();
        let events = async {
            load.answers(50).await;
            cluster.nodes[lost].process().signal("-STOP");
            load.failures_of_the_lost(20).await;
            load.answers(300).await;
            cluster.nodes[lost].process().signal("-CONT");
            load.answers_of_the_lost().await;
        };
        load.run(&store, &limit, &callers, lost, events).await;
    }
    let lost = gateways;
    let load = Load::default();
    let events = async {
        load.answers(50).await;
        cluster.nodes[lost].kill();
        load.failures_of_the_lost(20).await;
        load.answers(300).await;
        let health = store.health();
        assert!(health.up, "{health:?}");
        assert!(
            health
                .last_error
                .contains(&cluster.nodes[lost].port.to_string()),
            "it says which: {health:?}"
        );
        // A gateway that starts now counts as one, and counts the others.
        let late = cluster.connect().await;
        eventually("two gateways", PATIENCE, async || {
            store.replicas() == 2 && late.replicas() == 2
        })
        .await;
        cluster.nodes[lost].run();
        load.answers_of_the_lost().await;
    };
    load.run(&store, &limit, &callers, lost, events).await;
}

#[tokio::test]
async fn cluster_master_killed_and_its_replica_promoted_fails_no_others_and_keeps_count() {
    if !available("redis-server") {
        return;
    }
    let mut cluster = Cluster::start("no", "1500", true);
    let store = cluster.connect().await;
    let (limit, five) = (
        bucket("many", 0, 1 << 30, HOUR, 1 << 30),
        bucket("five", 1, 5, HOUR, 5),
    );
    let callers = cluster.callers(&store, &limit, 6).await;
    for key in callers.iter().flatten() {
        for _ in 0..3 {
            assert!(draw(&store, &five, key).await.unwrap());
        }
    }
    let replica = cluster.replica.take().expect("a replica");
    wait_until("replica in step", || {
        replica.ask("DBSIZE") == cluster.nodes[0].ask("DBSIZE")
    });
    let load = Load::default();
    let events = async {
        load.answers(50).await;
        cluster.nodes[0].kill();
        load.failures_of_the_lost(1).await;
        load.answers_of_the_lost().await;
        load.answers(100).await;
    };
    load.run(&store, &limit, &callers, 0, events).await;
    assert!(replica.ask("ROLE").contains("master"));
    for key in callers.iter().flatten() {
        let mut granted = 0;
        while draw(&store, &five, key).await.unwrap() {
            granted += 1;
        }
        assert!(
            granted <= 2,
            "three of five were drawn before, then {granted}"
        );
    }
}

#[tokio::test]
async fn cluster_that_requires_full_coverage_refuses_all_while_a_slot_is_lost_and_recovers() {
    if !available("redis-server") {
        return;
    }
    let mut cluster = Cluster::start("yes", "1500", false);
    let store = cluster.connect().await;
    let limit = bucket("many", 0, 1 << 30, HOUR, 1 << 30);
    let callers = cluster.callers(&store, &limit, 2).await;
    cluster.nodes[0].kill();
    for key in callers[1].iter().chain(&callers[2]) {
        eventually("refusal by Redis itself", PATIENCE, async || {
            draw(&store, &limit, key)
                .await
                .is_err_and(|error| error.to_string().to_uppercase().contains("CLUSTER"))
        })
        .await;
    }
    cluster.nodes[0].run();
    for key in callers.iter().flatten() {
        eventually("answer", PATIENCE, async || {
            draw(&store, &limit, key).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn cluster_has_one_name_for_all_its_gateways() {
    if !available("redis-server") {
        return;
    }
    let cluster = Cluster::start("no", "5000", false);
    let (one, two) = (cluster.connect().await, cluster.connect().await);
    assert_eq!(name(&one).await, name(&two).await);
}

#[tokio::test]
async fn cluster_slot_in_migration_is_followed_and_keeps_count() {
    if !available("redis-server") {
        return;
    }
    let cluster = Cluster::start("no", "5000", false);
    let store = cluster.connect().await;
    let (five, ten) = (
        bucket("five", 0, 5, HOUR, 5),
        bucket("ten", 1, 10, HOUR, 10),
    );
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    // A caller whose bucket is on the first node.
    let buckets = || -> Vec<String> {
        let listed = from.ask("KEYS tollgate:{??????}:*");
        listed
            .split_whitespace()
            .filter(|word| word.starts_with("tollgate:"))
            .map(str::to_owned)
            .collect()
    };
    let mut key = [0; 4];
    for caller in 0..u32::MAX {
        key = caller.to_le_bytes();
        assert!(draw(&store, &five, &key).await.unwrap());
        if !buckets().is_empty() {
            break;
        }
    }
    let moving = buckets().remove(0);
    assert!(draw(&store, &five, &key).await.unwrap());
    let slot: u16 = number(&from.ask(&format!("CLUSTER KEYSLOT {moving}")));
    assert!(
        to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)))
            .contains("OK")
    );
    assert!(
        from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)))
            .contains("OK")
    );
    // Not moved yet, and a bucket that is new: that one is made where the slot goes (ASK).
    assert!(draw(&store, &five, &key).await.unwrap());
    let size = number::<u64>(&to.ask("DBSIZE"));
    assert!(draw(&store, &ten, &key).await.unwrap());
    assert_eq!(
        number::<u64>(&to.ask("DBSIZE")),
        size + 1,
        "the new bucket is where the slot goes"
    );
    assert!(
        from.ask(&format!("MIGRATE 127.0.0.1 {} {moving} 0 5000", to.port))
            .contains("OK")
    );
    assert!(draw(&store, &five, &key).await.unwrap(), "four of five");
    // Some of it here and some there, for a request with a third limit: answered once the slot has moved.
    let hundred = bucket("hundred", 2, 100, HOUR, 100);
    let both = async || {
        let claims = [&five, &hundred].map(|limit| tollgate_limit::Claim::new(limit, &key, 1));
        store.draw(&claims).await.map(|draw| draw.granted)
    };
    let finish = async {
        for node in [to, from, &cluster.nodes[2]] {
            assert!(
                node.ask(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to)))
                    .contains("OK")
            );
        }
    };
    let (granted, ()) = tokio::join!(both(), finish);
    assert!(granted.unwrap(), "five of five");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        assert!(
            !draw(&store, &five, &key).await.unwrap(),
            "all are drawn, whichever server has the slot"
        );
    }
    let mut granted = 0;
    while draw(&store, &ten, &key).await.unwrap() {
        granted += 1;
    }
    assert_eq!(granted, 9);
}
