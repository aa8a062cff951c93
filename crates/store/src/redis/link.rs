//! The connection to a Redis: establishes it, checks it, and runs the scripts over it.

mod command;
mod general;
mod greeting;
mod redirection;
mod sentinel;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError};

pub(super) use self::command::tag_of;
use self::command::{Call, Script, trouble};
use self::general::{FAR, asks_for_more, read};
use self::greeting::Greeting;
use self::sentinel::Masters;
use super::address::Address;
use super::bucket;
use super::certificates::choose_provider;
use super::cluster::{Cluster, slot_of};
use super::scripts::{DRAW, DRAW_BUCKET};
use crate::batch::{
    Answer, Batch, LaneState, Link, NewDocument, Obstacle, STRAGGLES, StoredDocument, Trouble,
    Wants,
};
use crate::clock::Clock;
use crate::simple::are_simple;
use crate::wire_form::{Name, signed};
use tollgate_limit::Timestamp;

const HEARTBEAT: Duration = Duration::from_secs(1);
/// Keys under which gateways count each other, spread over the slots of a cluster.
const MEMBERS_KEYS: usize = 64;
/// The part of the key of the document that determines its slot in a cluster. The first key under which
/// gateways count each other has it, too, so that one heartbeat finds both.
const DOCUMENT_TAG: &str = "overrides";
/// The key of the document, and the channel on which its changes are published.
const DOCUMENT: &str = "tollgate:{overrides}";
/// A gateway without a heartbeat for this many seconds does not count as a replica.
const REPLICA_SECONDS: u64 = 10;
/// How long the mark is kept after the last heartbeat (draw/head.lua has the same number).
const EPOCH_SECONDS: u64 = 30 * 86_400;

#[derive(Clone)]
pub(super) struct RedisLink {
    address: Address,
    clock: Clock,
    pinned: Option<Clock>,
    shared: Arc<LaneState>,
    script: Script,
    bucket_script: Script,
    heartbeat: Script,
    document: Script,
    /// Identifies this gateway: 52 random bits.
    id: i64,
    masters: Masters,
    /// The node of a cluster that it connects to.
    node: Option<Node>,
}

#[derive(Clone)]
struct Node {
    name: String,
    cluster: Arc<Cluster>,
}

pub(super) struct Connection {
    wire: MultiplexedConnection,
    info: ConnectionInfo,
    node: Option<Node>,
    /// Identifies the server process and its data; a restart or promotion changes it. Zero:
    /// unknown.
    fingerprint: i64,
    /// The same for every server, also a master of a cluster; `None`: the server does not say it.
    print: Option<i64>,
    /// The key of the mark: the time, by the server's clock, since which the data of this
    /// fingerprint is complete. It is stored with the buckets and read with them, so that an event
    /// that removes them removes it too.
    mark: String,
    /// The mark at the last heartbeat, for the log. Zero: no heartbeat was sent.
    epoch: AtomicI64,
}

impl RedisLink {
    pub(super) fn new(
        address: Address,
        clock: Clock,
        pinned: Option<Clock>,
        shared: Arc<LaneState>,
    ) -> Self {
        choose_provider();
        Self {
            address,
            clock,
            pinned,
            shared,
            script: Script::new(DRAW),
            bucket_script: Script::new(DRAW_BUCKET),
            heartbeat: Script::new(HEARTBEAT_SCRIPT),
            document: Script::new(include_str!("document.lua")),
            id: signed(fastrand::u64(1..1 << 52)),
            masters: Masters::default(),
            node: None,
        }
    }

    pub(super) fn to_node(
        &self,
        name: &str,
        cluster: Arc<Cluster>,
        shared: Arc<LaneState>,
    ) -> Self {
        Self {
            node: Some(Node {
                name: name.to_owned(),
                cluster,
            }),
            shared,
            ..self.clone()
        }
    }

    /// The key under which gateways count each other on this server; `None`: none of those keys is
    /// there. Every master of a cluster has its own, so that the loss of one does not affect the
    /// counts of others. The keys are in fixed slots, so gateways agree on them while slots move.
    fn members_key(&self) -> Option<String> {
        let Some(Node { name, cluster }) = &self.node else {
            return Some(format!("{DOCUMENT}:gateways"));
        };
        let mut tags = std::iter::once(DOCUMENT_TAG.to_owned())
            .chain((1..MEMBERS_KEYS).map(|one| format!("gateways{one}")));
        let tag = tags.find(|tag| cluster.has(name, slot_of(tag.as_bytes())))?;
        Some(format!("tollgate:{{{tag}}}:gateways"))
    }

    /// Counts the gateways on this server, finds the epoch of the document where it is kept there, and
    /// keeps the mark of the server's data alive as long as a gateway runs: without it, unknown buckets
    /// would start empty again. All in one call.
    async fn heartbeat(&self, connection: &Connection) -> Result<(), RedisError> {
        let Some(members) = self.members_key() else {
            return Ok(());
        };
        let mut keys = vec![members.as_str()];
        if members.starts_with(DOCUMENT) {
            keys.push(DOCUMENT);
        }
        // Each master of a cluster would need a mark; the file is refused with such limits.
        if !self.address.is_cluster() {
            keys.push(&connection.mark);
        }
        let arguments = [
            self.pinned_now().to_string(),
            self.id.to_string(),
            REPLICA_SECONDS.to_string(),
            EPOCH_SECONDS.to_string(),
        ];
        let wire = &mut connection.wire.clone();
        let beaten = self.heartbeat.run(wire, &keys, &arguments).await?;
        let (gateways, now, document, mark, new): (u32, u64, Option<u64>, u64, u8) = beaten;
        self.shared.shared_by(gateways);
        if let Some(epoch) = document {
            let now = Timestamp::from_micros(now);
            let ours = self.clock.now();
            self.shared.documents.seen(epoch, None, now, ours);
        }
        let before = connection.epoch.swap(signed(mark), Ordering::Relaxed);
        // (A request that found it missing may have set it before.)
        if new == 1 || (before != 0 && before < signed(mark)) {
            tracing::info!(
                "nothing is known of this server's past (it is new, was emptied, restarted or promoted): buckets of limits \
                 with on_failover = \"drain\" begin drained there"
            );
        }
        Ok(())
    }

    /// Whether a call reads the mark: a fail-over drains one of its limits.
    fn marked(&self, batch: &Batch) -> bool {
        !self.address.is_cluster() && batch.buckets.iter().any(|(_, shape)| shape.drains())
    }

    /// The effect of an error on the connection. A redirection to another slot has none.
    fn trouble(&self, error: RedisError) -> Trouble {
        match &self.node {
            Some(node) if redirection::is_redirection(&error) => {
                node.cluster.changed.notify_one();
                Trouble::Moved(error.to_string())
            }
            _ => trouble(error),
        }
    }

    /// Zero: the server's clock is used.
    fn pinned_now(&self) -> i64 {
        self.pinned
            .as_ref()
            .map_or(0, |clock| signed(clock.now().as_micros()))
    }
}

impl Link for RedisLink {
    type Connection = Connection;

    fn may_move(&self) -> bool {
        matches!(self.address, Address::Sentinel { .. })
    }

    async fn connect(&self) -> Result<Connection, Obstacle> {
        let attempt = async {
            let (mut wire, info) = self.wire().await.map_err(obstacle)?;
            let Greeting { fingerprint, print } = self.greet(&mut wire).await?;
            let mark = format!("tollgate:epoch:{fingerprint:013x}");
            let connection = Connection {
                wire,
                info,
                node: self.node.clone(),
                fingerprint,
                print,
                mark,
                epoch: AtomicI64::new(0),
            };
            match self.housekeep(&connection).await {
                Ok(()) | Err(Trouble::Moved(_)) => Ok(connection),
                Err(trouble) => Err(trouble.into_words().into()),
            }
        };
        tokio::time::timeout(CONNECT_WITHIN * 2, attempt)
            .await
            .unwrap_or_else(|_| Err(Obstacle::from(String::from("no connection in time"))))
    }

    async fn call(&self, connection: &Connection, batch: &Batch) -> Result<Answer, Trouble> {
        if has_ended(&connection.wire) {
            return Err(Trouble::Unfit(
                "the server has closed the connection".into(),
            ));
        }
        let (pinned, print) = (self.pinned_now(), connection.fingerprint);
        let mark = self.marked(batch).then_some(connection.mark.as_str());
        if let Some(argument) = bucket::argument(batch, pinned, print) {
            let call = Call {
                script: &self.bucket_script,
                batch,
                mark,
                argument: &argument,
            };
            let reply = call.run(connection).await?;
            if !reply.is_empty() {
                return bucket::read(batch, &reply).ok_or_else(not_an_answer);
            }
            // The server did nothing: a bucket holds another algorithm's row.
            self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        }
        let general = async |far| {
            let call = Call {
                script: &self.script,
                batch,
                mark,
                argument: &self.arguments(connection, batch, far),
            };
            call.run(connection).await
        };
        let mut reply = general(None).await?;
        if let Some(now) = asks_for_more(&reply) {
            self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
            reply = Box::pin(general(Some(now))).await?;
            if asks_for_more(&reply).is_some() {
                let stated =
                    format!("a bucket's window is more than {FAR} windows from the server's time");
                return Err(Trouble::Refused(stated));
            }
        }
        read(batch, &reply).ok_or_else(not_an_answer)
    }

    fn lane_of(&self, wants: &Wants) -> u32 {
        u32::from(!are_simple(wants))
    }

    fn part(&self, name: &Name) -> u32 {
        if self.address.is_cluster() {
            name.tag
        } else {
            0
        }
    }

    fn has_document(&self, connection: &Connection) -> bool {
        connection.node.as_ref().is_none_or(|node| {
            node.cluster
                .has(&node.name, slot_of(DOCUMENT_TAG.as_bytes()))
        })
    }

    async fn document(
        &self,
        connection: &Connection,
        known: u64,
        new: Option<&NewDocument>,
    ) -> Result<StoredDocument, Trouble> {
        let mut arguments = vec![self.pinned_now().to_string(), known.to_string()];
        if let Some(new) = new {
            let keep = new.keep.as_secs().max(1);
            arguments.extend([new.known, new.epoch].map(|epoch| epoch.to_string()));
            arguments.extend([new.text.clone(), keep.to_string()]);
        }
        let wire = &mut connection.wire.clone();
        let stated = self.document.run(wire, &[DOCUMENT], &arguments).await;
        let stated: (u64, u64, u8, Option<String>) = stated.map_err(|error| self.trouble(error))?;
        let (epoch, now, written, text) = stated;
        Ok(StoredDocument {
            epoch,
            now: Timestamp::from_micros(now),
            written: written == 1,
            text,
            origin: connection
                .print
                .map(|print| (print, self.address.database())),
        })
    }

    async fn listen(&self, connection: &Connection) {
        let changed = || self.shared.documents.changed();
        // A user may have no right to subscribe. The heartbeats find each change then.
        let _ = subscribe(connection.info.clone(), DOCUMENT, changed).await;
    }

    async fn housekeep(&self, connection: &Connection) -> Result<(), Trouble> {
        let beaten = self.heartbeat(connection).await;
        beaten.map_err(|error| self.trouble(error))?;
        if self.shared.is_audit_due() {
            let audited = self.look(&mut connection.wire.clone()).await;
            audited.map_err(trouble)?;
        }
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        HEARTBEAT
    }
}

fn not_an_answer() -> Trouble {
    Trouble::Corrupt("not an answer of the script".into())
}

/// Why there is no connection. Wrong credentials remain wrong until an operator changes them.
fn obstacle(error: RedisError) -> Obstacle {
    let refused = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(
            error.code(),
            Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "ERR")
        );
    Obstacle {
        words: error.to_string(),
        lasting: refused,
    }
}

/// Counts the gateways with a recent heartbeat, including this one, by the server's clock. Of the
/// document, where its key is given, it reads the epoch (false: it may not), and of the mark the moment,
/// in microseconds; it makes the mark where there is none, and says so. A test's clock may replace the
/// server's.
const HEARTBEAT_SCRIPT: &str = "
local time = redis.call('TIME')
local now = ARGV[1] ~= '0' and ARGV[1] or string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('ZADD', KEYS[1], time[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', time[1] - ARGV[3]))
redis.call('EXPIRE', KEYS[1], ARGV[3] * 2)
local document, mark, new = false, '0', 0
for i = 2, #KEYS do
    if KEYS[i] == 'tollgate:{overrides}' then
        local epoch = redis.pcall('HGET', KEYS[i], 'epoch')
        document = type(epoch) ~= 'table' and (epoch or '0')
    else
        new = redis.call('SET', KEYS[i], now, 'NX') and 1 or 0
        redis.call('EXPIRE', KEYS[i], ARGV[4])
        mark = redis.call('GET', KEYS[i])
    end
end
return { redis.call('ZCARD', KEYS[1]), now, document, mark, new }
";

/// The timeout of a connection attempt; requests do not wait for it.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

pub(crate) async fn open(info: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    // Calls have our own deadline, and a late one is waited for; the greeting has one, too.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(STRAGGLES));
    Client::open(info)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Subscribes to a channel over a connection of its own, and reports each message and the subscription
/// itself: a message of before it was missed.
async fn subscribe(
    info: ConnectionInfo,
    channel: &str,
    received: impl Fn(),
) -> Result<(), RedisError> {
    let subscribed = async {
        let mut subscription = Client::open(info)?.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok::<_, RedisError>(subscription)
    };
    let subscription = tokio::time::timeout(CONNECT_WITHIN, subscribed).await;
    let subscription =
        subscription.map_err(|_| RedisError::from((ErrorKind::Io, "no connection in time")))??;
    let mut messages = pin!(subscription.into_on_message());
    received();
    while poll_fn(|context| messages.as_mut().poll_next(context))
        .await
        .is_some()
    {
        received();
    }
    Ok(())
}

/// Whether the connection has ended, without asking the server.
fn has_ended(wire: &MultiplexedConnection) -> bool {
    let (mut wire, ping) = (wire.clone(), redis::cmd("PING"));
    let mut ping = pin!(ping.query_async::<()>(&mut wire));
    let mut context = Context::from_waker(Waker::noop());
    matches!(ping.as_mut().poll(&mut context), Poll::Ready(Err(_)))
}

impl RedisLink {
    /// A connection, and the address that it was made to.
    async fn wire(&self) -> Result<(MultiplexedConnection, ConnectionInfo), RedisError> {
        let info = match (&self.node, &self.address) {
            (Some(node), _) => node.cluster.nodes.address(&node.name)?,
            (None, Address::Single(info)) => (**info).clone(),
            (
                None,
                Address::Sentinel {
                    sentinels,
                    name,
                    master,
                    tls,
                    certificates,
                },
            ) => {
                let like = (&**master, *tls, certificates.as_deref());
                return self.masters.open(sentinels, name, like).await;
            }
            (None, Address::Cluster { .. }) => {
                return Err((ErrorKind::Client, "a cluster is reached by its nodes").into());
            }
        };
        Ok((open(info.clone()).await?, info))
    }
}
