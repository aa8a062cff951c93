//! The connection to a Redis: makes it, checks it, speaks the scripts' language over it.

mod command;
mod general;
mod greeting;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redis::{RedisError, Script};

use self::command::{run, trouble};
use self::general::{FAR, asks_for_more, read};
use self::wire::{CONNECT_WITHIN, Wire};
use super::address::Address;
use super::bucket;
use super::scripts::{DRAW, DRAW_BUCKET};
use crate::batch::{Answer, Batch, Link, Shared, Trouble, Wants};
use crate::clock::Clock;
use crate::shape::{Name, signed};
use crate::simple::are_simple;

/// Heartbeats go out this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A gateway not heard of for so many seconds is no replica.
const REPLICA_SECONDS: u64 = 10;
/// The mark of a server's data is kept so long after the last gateway has been heard of there (draw/head.lua knows it too).
const EPOCH_SECONDS: u64 = 30 * 86_400;

#[derive(Clone)]
pub(super) struct RedisLink {
    address: Address,
    clock: Clock,
    pinned: Option<Clock>,
    shared: Arc<Shared>,
    script: Script,
    bucket_script: Script,
    heartbeat: Script,
    epoch: Script,
    /// This gateway among others: 52 random bits.
    id: i64,
}

/// A connection, and which server it leads to.
pub(super) struct Connection {
    wire: Wire,
    /// Of the server process and its data's history: a restart or promotion changes it. Zero: not known.
    fingerprint: i64,
    /// The key that says since when this fingerprint's data is all there is, by the server's clock. It lies beside the
    /// buckets and is read with them, so that whatever takes them away takes it too.
    mark: String,
    /// What it said at the last heartbeat, for the log. Zero: none has been sent.
    epoch: AtomicI64,
}

impl RedisLink {
    pub(super) fn new(address: Address, clock: Clock, pinned: Option<Clock>, shared: Arc<Shared>) -> Self {
        // redis-rs takes the process's default; a second call changes nothing.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self {
            address,
            clock,
            pinned,
            shared,
            script: Script::new(DRAW),
            bucket_script: Script::new(DRAW_BUCKET),
            heartbeat: Script::new(HEARTBEAT_SCRIPT),
            epoch: Script::new(EPOCH_SCRIPT),
            id: signed(fastrand::u64(1..1 << 52)),
        }
    }

    /// Has the mark of the server's data kept for as long as a gateway lives: were it forgotten, buckets nobody knows would be
    /// empty again.
    async fn keep_mark(&self, wire: &mut Wire, connection: &Connection) -> Result<(), RedisError> {
        if self.address.is_cluster() {
            // Each master would need one of its own: the file's check refuses such limits there.
            return Ok(());
        }
        let mut epoch = self.epoch.key(&connection.mark);
        let (epoch, new): (u64, u8) = epoch.arg(self.pinned_now()).arg(EPOCH_SECONDS).invoke_async(wire).await?;
        let before = connection.epoch.swap(signed(epoch), Ordering::Relaxed);
        // (A request that found it missing may have set it before.)
        if new == 1 || (before != 0 && before < signed(epoch)) {
            tracing::info!(
                "nothing is known of this server's past (it is new, was emptied, restarted or promoted): buckets of limits \
                 with on_failover = \"drain\" begin drained there"
            );
        }
        Ok(())
    }

    /// Whether a call reads the mark: a fail-over drains one of its limits, none of which is then the common case.
    fn marked(&self, batch: &Batch) -> bool {
        !self.address.is_cluster() && batch.buckets.iter().any(|(_, shape)| shape.drains())
    }

    /// Zero: the server's clock decides.
    fn pinned_now(&self) -> i64 {
        self.pinned.as_ref().map_or(0, |clock| signed(clock.now().as_micros()))
    }
}

impl Link for RedisLink {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        let attempt = async {
            let mut wire = self.wire().await.map_err(|error| error.to_string())?;
            let fingerprint = self.greet(&mut wire).await?;
            let mark = format!("tollgate:epoch:{fingerprint:013x}");
            let connection = Connection { wire, fingerprint, mark, epoch: AtomicI64::new(0) };
            self.housekeep(&connection).await.map_err(Trouble::into_words)?;
            Ok(connection)
        };
        tokio::time::timeout(CONNECT_WITHIN * 2, attempt).await.unwrap_or_else(|_| Err("no connection in time".into()))
    }

    async fn call(&self, connection: &Connection, batch: &Batch) -> Result<Answer, Trouble> {
        let (pinned, print) = (self.pinned_now(), connection.fingerprint);
        let (mut script, mut source) = (&self.bucket_script, DRAW_BUCKET);
        let (arguments, read): (Vec<Vec<u8>>, fn(&Batch, &[u8]) -> Option<Answer>) =
            if let Some(one) = bucket::arguments(batch, pinned, print) {
                (vec![one], bucket::read)
            } else if let Some(two) = bucket::several_arguments(batch, pinned, print) {
                (two.into(), bucket::several_read)
            } else {
                (script, source) = (&self.script, DRAW);
                (vec![self.arguments(connection, batch, None)], read)
            };
        let mark = self.marked(batch).then_some(connection.mark.as_str());
        let mut reply = run(connection, script, source, batch, mark, &arguments).await?;
        if let Some(now) = asks_for_more(&reply) {
            // Nothing was done.
            self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
            let arguments = [self.arguments(connection, batch, Some(now))];
            reply = Box::pin(run(connection, script, source, batch, mark, &arguments)).await?;
            if asks_for_more(&reply).is_some() {
                let told = format!("a bucket's window is more than {FAR} windows from the server's time");
                return Err(Trouble::Refused(told));
            }
        }
        read(batch, &reply).ok_or_else(|| Trouble::Corrupt("not an answer of the script".into()))
    }

    fn lane_of(&self, wants: &Wants) -> u32 {
        u32::from(!are_simple(wants))
    }

    fn part(&self, name: &Name) -> u32 {
        if self.address.is_cluster() { name.tag } else { 0 }
    }

    async fn housekeep(&self, connection: &Connection) -> Result<(), Trouble> {
        let mut wire = connection.wire.clone();
        let mut heartbeat = self.heartbeat.key("tollgate:{gateways}");
        let replicas: u32 =
            heartbeat.arg(self.id).arg(REPLICA_SECONDS).invoke_async(&mut wire).await.map_err(trouble)?;
        self.shared.shared_by(replicas);
        self.keep_mark(&mut wire, connection).await.map_err(trouble)?;
        if self.shared.is_audit_due() {
            self.look(&mut wire).await.map_err(trouble)?;
        }
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        HEARTBEAT
    }
}

/// Counts the gateways heard of lately, this one included, by the server's clock.
const HEARTBEAT_SCRIPT: &str = "
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
";

/// The mark, in microseconds, made if there is none, and whether that was now. A clock of a test's own may say what now is.
const EPOCH_SCRIPT: &str = "
local time = redis.call('TIME')
local now = ARGV[1] ~= '0' and ARGV[1] or string.format('%.0f', time[1] * 1000000 + time[2])
local new = redis.call('SET', KEYS[1], now, 'NX') and 1 or 0
redis.call('EXPIRE', KEYS[1], ARGV[2])
return { redis.call('GET', KEYS[1]), new }
";
