//! The ways to a Redis that the other tests do not take: a socket in the file system, and all masters of a cluster.

use tollgate_limit::Micros;
use tollgate_store::audit::Weight;

use crate::faults::drain;
use crate::limits::bucket;
use crate::servers::StoreKind;
use crate::servers::{Redis, available, wait_until};

#[tokio::test]
async fn a_server_is_reached_by_a_socket_in_the_file_system() {
    if !available("redis-server") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("redis.sock");
    let _server = Redis::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    let store = StoreKind::Redis
        .connect_with(&format!("unix:{}", socket.display()), |_| ())
        .await;
    assert_eq!(
        drain(
            &store,
            &bucket("five", 0, 5, Micros::from_secs(3600), 5),
            b"k"
        )
        .await,
        5
    );
}

#[tokio::test]
async fn each_master_of_a_cluster_is_audited() {
    if !available("redis-server") {
        return;
    }
    let cluster = ["--cluster-enabled", "yes", "--appendonly", "yes"];
    let (fine, evicts) = (
        Redis::start_with(&cluster),
        Redis::start_with(
            &[
                &cluster[..],
                &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"],
            ]
            .concat(),
        ),
    );
    for (node, slots) in [(&fine, "0 8191"), (&evicts, "8192 16383")] {
        assert!(
            node.ask(&format!("CLUSTER ADDSLOTSRANGE {slots}"))
                .contains("OK")
        );
    }
    assert!(
        fine.ask(&format!("CLUSTER MEET 127.0.0.1 {}", evicts.port))
            .contains("OK")
    );
    wait_until("cluster in agreement", || {
        [&fine, &evicts]
            .iter()
            .all(|node| node.ask("CLUSTER INFO").contains("cluster_state:ok"))
    });
    let store = StoreKind::Redis
        .connect_with(&format!("redis+cluster://127.0.0.1:{}", fine.port), |_| ())
        .await;
    let findings = store.findings();
    let [only] = findings.as_slice() else {
        panic!("{findings:?}")
    };
    assert_eq!(only.weight, Weight::Refusal);
    assert!(
        only.message
            .starts_with(&format!("127.0.0.1:{}: ", evicts.port)),
        "{only:?}"
    );
    assert!(only.message.contains("is allkeys-lru"), "{only:?}");
}
