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
mod in_place;
mod link;
mod pack;
mod scripts;

use std::rc::Rc;
use std::sync::Arc;

pub use address::{Address, AddressError};
pub use certificates::Certificates;

use self::cluster::{Cluster, Nodes, slot};
use self::in_place::Connections;
use self::link::RedisLink;
use super::batch::{ServerPart, Servers, Shared, lane};
use super::lease::Leases;
use super::remote::RemoteStore;
use super::tls::Tls;
use crate::clock::Clock;
use tollgate_limit::Micros;

/// The options of a [`RemoteStore`] in Redis.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Its address.
    pub address: Address,
    /// The longest a request waits for a response.
    pub answer_within: Micros,
    /// The secret with which names of buckets are hashed; the same for all gateways of one store.
    pub key_secret: Vec<u8>,
    /// Our own clock: deadlines and bounds.
    pub clock: Clock,
    /// Tests only: decide at this clock's time instead of the server's.
    pub pinned: Option<Clock>,
    /// Whether requests that the server would certainly refuse are refused without asking it.
    pub local_refusals: bool,
    /// Whether the store has limits of a day or longer, which a server without an append-only file
    /// loses when it restarts.
    pub long_quotas: bool,
}

impl RedisOptions {
    /// Starts the store's thread, which connects and reconnects; does not wait for it.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be created.
    pub fn start(self) -> std::io::Result<RemoteStore> {
        let mut shared = Shared::new(self.clock.clone(), self.answer_within, self.local_refusals);
        shared.leases = Some(Arc::new(Leases::new(
            self.clock.clone(),
            self.address.is_cluster(),
        )));
        shared.mind_long_quotas(self.long_quotas);
        if let Address::Cluster {
            nodes,
            certificates,
        } = &self.address
        {
            let cluster = Arc::new(Cluster::new(Nodes::new(
                nodes.clone(),
                certificates.clone(),
            )));
            // This part belongs to no server and holds no buckets.
            let common = Arc::new(shared.of_server(ServerPart {
                server: String::new(),
                has: Box::new(|_| false),
            }));
            let link = RedisLink::new(self.address, self.clock, self.pinned, common.clone());
            let servers = Servers::several(common.clone(), slot, cluster.parts.clone());
            return RemoteStore::start("store-redis", &self.key_secret, servers, || {
                cluster.keep(common, link)
            });
        }
        let shared = Arc::new(shared);
        let link = RedisLink::new(self.address, self.clock, self.pinned, shared.clone());
        let servers = Servers::one(shared.clone())
            .with_calls_in_place(Box::new(Connections::new(link.clone())));
        RemoteStore::start("store-redis", &self.key_secret, servers, || {
            lane(shared, Rc::new(link))
        })
    }
}
