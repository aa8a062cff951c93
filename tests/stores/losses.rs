//! Responses that are lost, and gateways whose clocks differ, on an SQL database.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::faults::{
    PATIENCE, clocks_apart, cutting_proxy, grant_no_more_by_clocks_apart, replies_are_lost,
};
use crate::kinds::StoreKind;

async fn lost_reply_counts_as_charged(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let cut = Arc::new(AtomicBool::new(false));
    let port = cutting_proxy(server.port(), cut.clone());
    let store = kind.open(&server.url_through(port), |_| ());
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    replies_are_lost(&store, &cut).await;
}

#[tokio::test]
async fn postgres_lost_reply_counts_as_charged_and_is_never_sent_twice() {
    lost_reply_counts_as_charged(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_lost_reply_counts_as_charged_and_is_never_sent_twice() {
    lost_reply_counts_as_charged(StoreKind::Mysql).await;
}

pub async fn clocks_that_differ_grant_no_more(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let mut stores = Vec::new();
    for clock in clocks_apart() {
        // The worst there could be: each decides by its own clock.
        let change = |o: &mut tollgate_store::RemoteOptions| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
        };
        stores.push((server.connect_with(change).await, clock));
    }
    grant_no_more_by_clocks_apart(stores).await;
}

#[tokio::test]
async fn postgres_gateways_whose_clocks_differ_never_grant_more() {
    clocks_that_differ_grant_no_more(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_gateways_whose_clocks_differ_never_grant_more() {
    clocks_that_differ_grant_no_more(StoreKind::Mysql).await;
}
