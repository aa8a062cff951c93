//! MariaDB restarted with its data.

use tollgate_limit::{Limit, Micros, OnFailover};

use crate::faults::{drain, draw, recovers};
use crate::limits::bucket;
use crate::servers::Maria;
use crate::servers::StoreKind;

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn mysql_restart_and_crash_keep_buckets() {
    if !Maria::available() {
        return;
    }
    let mut server = Maria::start();
    let store = StoreKind::Mysql
        .connect_with(&server.url(), |options| options.local_refusals = false)
        .await;
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    let other = bucket("other", 2, 1000, HOUR, 1000);
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    for crash in [false, true] {
        if crash {
            server.crash();
        } else {
            server.stop();
        }
        server.run();
        recovers(&store, &other).await;
        assert!(
            !draw(&store, &keep, b"k").await.unwrap(),
            "what was drawn stays drawn"
        );
        assert!(
            !draw(&store, &draining, b"k").await.unwrap(),
            "drain: no bucket is refilled by another process"
        );
    }
}
