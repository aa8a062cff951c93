//! Responses that are lost, and gateways whose clocks differ, on a server of any kind.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::faults::{clocks_apart, cutting_proxy, grant_no_more_by_clocks_apart, replies_are_lost};
use crate::servers::Server;

pub async fn lost_reply_counts_as_charged(server: Server) {
    let cut = Arc::new(AtomicBool::new(false));
    let port = cutting_proxy(server.port(), cut.clone());
    let store = server.kind().connect(&server.url_through(port)).await;
    replies_are_lost(&store, &cut).await;
}

pub async fn clocks_that_differ_grant_no_more(server: Server) {
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
