//! The masters of a Redis Cluster: finds which of them has which slots, and runs a lane to each.
//!
//! Client libraries handle a cluster as one unit. Here each master is handled separately: a master
//! that is lost, frozen or slow delays no request to another, nor the discovery of slots.

mod nodes;
mod slots;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub(super) use self::nodes::Nodes;
pub(super) use self::slots::{SLOTS, slot, slot_of};
use super::link::RedisLink;
use crate::batch::servers::{Parts, hand_over};
use crate::batch::{LaneState, Outages, ServerPart, lane};

/// How often nodes are asked for the slot table; sooner if a server is lost or has redirected us.
const EVERY: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
/// The minimum time between two such calls, however often we are redirected.
const APART: Duration = Duration::from_millis(20);

pub(super) struct Cluster {
    pub(super) nodes: Nodes,
    pub(super) parts: Arc<ArcSwap<Parts>>,
    /// Notified when the slot table may have changed.
    pub(super) changed: Notify,
}

impl Cluster {
    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            parts: Arc::default(),
            changed: Notify::new(),
        }
    }

    /// Whether `server` has a slot, as far as known.
    pub(super) fn has(&self, server: &str, slot: u16) -> bool {
        let parts = self.parts.load();
        let owner = parts.owner(slot).and_then(|place| parts.servers.get(place));
        owner.is_some_and(|owner| owner.server() == Some(server))
    }

    /// Keeps the slot table up to date and runs a lane to each master, until the store is closed.
    /// `link`: not yet bound to a server; `common`: of no server.
    pub(super) async fn keep(self: Arc<Self>, common: Arc<LaneState>, link: RedisLink) {
        let mut outages = Outages::of(None);
        let mut known: Vec<String> = Vec::new();
        let mut connections = JoinSet::new();
        while !common.is_closed() {
            match Nodes::who_has_what(&self, &known).await {
                Ok(layout) => {
                    known = layout.nodes;
                    self.install(layout.masters, &common, &link, &mut connections);
                    outages.up();
                }
                Err(error) => {
                    if self.parts.load().servers.is_empty() {
                        outages.down(&error, common.clock.now());
                    }
                    common.failed(error);
                }
            }
            let parts = self.parts.load_full();
            let all_up =
                parts.is_complete() && parts.servers.iter().all(|server| server.health().up);
            tokio::select! {
                () = tokio::time::sleep(if all_up { EVERY } else { SOON }) => {}
                () = self.changed.notified() => tokio::time::sleep(APART).await,
                () = common.woken() => {}
            }
            while connections.try_join_next().is_some() {}
        }
        for server in &self.parts.load().servers {
            server.close();
        }
        while connections.join_next().await.is_some() {}
        // Its servers' connections refer to the cluster.
        self.parts.store(Arc::default());
    }

    /// Installs a new slot table: new masters get a lane, and those without slots lose theirs.
    fn install(
        self: &Arc<Self>,
        masters: HashMap<String, slots::Ranges>,
        common: &Arc<LaneState>,
        link: &RedisLink,
        connections: &mut JoinSet<()>,
    ) {
        let before = self.parts.load_full();
        let mut names: Vec<&String> = masters.keys().collect();
        names.sort_unstable();
        let mut new = Vec::new();
        let servers: Vec<Arc<LaneState>> = names
            .iter()
            .map(|name| {
                let mut servers = before.servers.iter();
                let known = servers.find(|server| server.server() == Some(name));
                known.cloned().unwrap_or_else(|| {
                    let (server, link) = self.server(name, common, link);
                    new.push((server.clone(), link));
                    server
                })
            })
            .collect();
        let ranges = names.iter().enumerate().flat_map(|(place, name)| {
            masters[*name]
                .iter()
                .map(move |range| (range.clone(), place))
        });
        let owners = Parts::table(SLOTS, ranges);
        let after = Arc::new(Parts { servers, owners });
        let changed = after.owners != before.owners
            || after.servers.len() != before.servers.len()
            || !new.is_empty();
        if changed {
            self.parts.store(after.clone());
            for server in &before.servers {
                if !after.servers.iter().any(|kept| Arc::ptr_eq(kept, server)) {
                    server.retire();
                }
                hand_over(server, &after, slot);
            }
        }
        hand_over(common, &after, slot);
        for (shared, link) in new {
            connections.spawn_local(lane(shared, Rc::new(link)));
        }
        common.tell_tried();
    }

    fn server(
        self: &Arc<Self>,
        name: &str,
        common: &LaneState,
        link: &RedisLink,
    ) -> (Arc<LaneState>, RedisLink) {
        let (cluster, own) = (Arc::downgrade(self), name.to_owned());
        let has = move |bucket: &_| {
            cluster
                .upgrade()
                .is_some_and(|cluster| cluster.has(&own, slot(bucket)))
        };
        let shared = Arc::new(common.of_server(ServerPart {
            server: name.to_owned(),
            has: Box::new(has),
        }));
        let link = link.to_node(name, self.clone(), shared.clone());
        (shared, link)
    }
}
