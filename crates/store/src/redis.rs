//! The Redis store (Redis, Valkey; single, Sentinel, Cluster): one script decides a whole batch at the server's time.
//!
//! Batching, deadlines and results are in [`super::batch`]; this module contains the Redis side:
//! the address, the connection, the scripts and their arguments. `redis/draw_bucket.lua` handles
//! the common case; `redis/draw/*.lua`, sent as one script, handles all cases.

mod address;
mod audit;
mod bucket;
mod certificates;
mod cluster;
mod link;
mod pack;
mod scripts;

use std::rc::Rc;
use std::sync::Arc;

pub use address::{Address, AddressError};
pub use certificates::Certificates;

use self::cluster::{Cluster, Nodes, slot};
use self::link::RedisLink;
use super::batch::{LaneState, ServerPart, Servers, lane};
use super::lease::Leases;
use super::options::RemoteOptions;
use super::remote::RemoteStore;
use super::tls::Tls;

/// Starts the store's thread, which connects and reconnects; does not wait for it.
pub fn start(address: Address, options: RemoteOptions) -> std::io::Result<RemoteStore> {
    let RemoteOptions {
        key_secret,
        clock,
        pinned,
        ..
    } = options;
    let mut shared = LaneState::new(clock.clone(), options.answer_within, options.local_refusals);
    let leases = Leases::new(clock.clone(), address.is_cluster());
    shared.leases = Some(Arc::new(leases));
    shared.mind_long_quotas(options.long_quotas);
    if let Address::Cluster {
        nodes,
        certificates,
    } = &address
    {
        let nodes = Nodes::new(nodes.clone(), certificates.clone());
        let cluster = Arc::new(Cluster::new(nodes));
        // This part belongs to no server and holds no buckets.
        let common = Arc::new(shared.of_server(ServerPart {
            server: String::new(),
            has: Box::new(|_| false),
        }));
        let link = RedisLink::new(address, clock, pinned, common.clone());
        let servers = Servers::several(common.clone(), slot, cluster.parts.clone());
        return RemoteStore::start("store-redis", &key_secret, servers, || {
            cluster.keep(common, link)
        });
    }
    let shared = Arc::new(shared);
    let link = RedisLink::new(address, clock, pinned, shared.clone());
    let servers = Servers::one(shared.clone());
    RemoteStore::start("store-redis", &key_secret, servers, || {
        lane(shared, Rc::new(link))
    })
}
