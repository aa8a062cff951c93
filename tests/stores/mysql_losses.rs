//! MariaDB restarted with its data, replies cut off, gateways whose clocks differ.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tollgate_limit::{Limit, Micros, OnFailover};
use tollgate_store::mysql::MysqlOptions;

use crate::faults::{
    clocks_apart, cutting_proxy, drain, draw, grant_no_more_by_clocks_apart, recovers,
    replies_are_lost,
};
use crate::limits::bucket;
use crate::mysql_faults::{QUICK, connect, connect_with};
use crate::servers::Maria;

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn mysql_restart_and_crash_keep_buckets() {
    if !Maria::available() {
        return;
    }
    let mut server = Maria::start();
    let store = connect_with(&server.url(), |options| options.local_refusals = false).await;
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

#[tokio::test]
async fn mysql_lost_reply_counts_as_charged_and_is_never_sent_twice() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let cut = Arc::new(AtomicBool::new(false));
    let port = cutting_proxy(server.port, cut.clone());
    let url = server
        .url()
        .replace(&format!(":{}/", server.port), &format!(":{port}/"));
    let store = connect(&url).await;
    replies_are_lost(&store, &cut).await;
}

#[tokio::test]
async fn mysql_gateways_whose_clocks_differ_never_grant_more() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let mut stores = Vec::new();
    for clock in clocks_apart() {
        // The worst there could be: each decides by its own clock.
        let change =
            |o: &mut MysqlOptions| (o.pinned, o.local_refusals) = (Some(clock.clone()), false);
        stores.push((connect_with(&server.url(), change).await, clock));
    }
    grant_no_more_by_clocks_apart(stores).await;
}
