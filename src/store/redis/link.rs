//! The connection to a Redis: makes it, checks it, speaks the script's language over it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, RedisError, RedisFuture, Script,
    TlsCertificates, TlsMode, Value,
};

use super::address::Address;
use super::audit::{audit, blind, fields};
use super::scripts::{DRAW, DRAW_BUCKET};
use super::{bucket, pack};
use crate::clock::Clock;
use crate::limit::Timestamp;
use crate::limit::stepped::CALENDAR_STEPS_MAX;
use crate::store::audit::Finding;
use crate::store::batch::{Answer, Batch, Link, Shared, Trouble, Wants};
use crate::store::shape::{HOLD_PINNED, NUMBERS, Name, signed};
use crate::store::simple::are_simple;

/// A connection is up within this or not at all; requests do not wait for it.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Heartbeats go out this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A gateway not heard of for so many seconds is no replica.
const REPLICA_SECONDS: u64 = 10;
/// When a server was first seen is remembered so long after the last gateway has been heard of there.
const EPOCH_SECONDS: u64 = 30 * 86_400;
/// The version of the script's arguments.
const VERSION: i64 = 3;
/// Boundaries of a calendar either way, where those that a limit's own numbers need did not suffice: a bucket was left in a
/// deeper debt by other numbers of it, or the server's clock and ours are windows apart.
const FAR: u64 = 4 * CALENDAR_STEPS_MAX;

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
    /// When this fingerprint was first seen, by the server's clock; each heartbeat reads it anew.
    epoch: AtomicI64,
}

#[derive(Clone)]
enum Wire {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(cmd, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(cmd, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
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

    async fn wire(&self) -> Result<Wire, RedisError> {
        // Calls have our own deadline around them; this one only keeps the greeting from hanging.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(CONNECT_WITHIN));
        match &self.address {
            Address::Single(info) => {
                let client = Client::open((**info).clone())?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Sentinel { sentinels, name, master, certificates: Some(certificates), .. } => {
                let client = master_by_hand(sentinels, name, master, certificates, &config).await?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Sentinel { sentinels, name, master, tls, certificates: None } => {
                let mut node = SentinelNodeConnectionInfo::default()
                    .set_redis_connection_info(master.redis_settings().clone())
                    .set_tcp_settings(master.tcp_settings().clone());
                if *tls {
                    node = node.set_tls_mode(TlsMode::Secure);
                }
                // Asked anew each time: the master may be another since.
                let mut sentinel = Sentinel::build(sentinels.clone())?;
                let client = sentinel.async_master_for(name, Some(&node)).await?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Cluster { nodes, certificates } => {
                let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
                // A charge is not sent twice; redirections are followed, as the script has not run then.
                let mut client = ClusterClient::builder(nodes.clone())
                    .retries(2)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(CONNECT_WITHIN)
                    .tcp_settings(tcp);
                if let Some(certificates) = certificates {
                    client = client.certs((**certificates).clone());
                }
                let client = client.build()?;
                Ok(Wire::Cluster(client.get_async_connection().await?))
            }
        }
    }

    /// Audits the server, or all masters of a cluster; its INFO, if it is one that tells.
    async fn look(&self, wire: &mut Wire) -> Result<Option<String>, RedisError> {
        if let Wire::Cluster(cluster) = wire {
            // Each node has its own history, and its own settings.
            if let Some(masters) = seen_or_blind(masters(cluster).await)? {
                let found = masters.into_iter().flat_map(|(node, info, server)| {
                    let findings = self.audit(&info, server).into_iter();
                    findings.map(move |one| Finding { message: format!("{node}: {}", one.message), ..one })
                });
                self.shared.audited(found.collect());
            } else {
                self.shared.audited(vec![blind()]);
            }
            return Ok(None);
        }
        let Some(info) = seen_or_blind(redis::cmd("INFO").query_async::<String>(wire).await)? else {
            self.shared.audited(vec![blind()]);
            return Ok(None);
        };
        let server = micros(redis::cmd("TIME").query_async(wire).await?);
        self.shared.audited(self.audit(&info, server));
        Ok(Some(info))
    }

    /// What a server's INFO and clock say.
    fn audit(&self, info: &str, server: u64) -> Vec<Finding> {
        audit(&fields(info), server, self.clock.now().as_micros(), self.shared.has_long_quotas())
    }

    /// Who answers (its fingerprint), whether it may be written to, and what the audit says of it.
    async fn greet(&self, wire: &mut Wire) -> Result<i64, String> {
        // Fail-over rules by fingerprint need one server.
        let Some(info) = self.look(wire).await.map_err(|error| error.to_string())? else { return Ok(0) };
        let fields = fields(&info);
        if fields.get("role").is_some_and(|role| *role != "master") {
            return Err("it is a replica, not the primary".into());
        }
        if fields.get("loading").is_some_and(|loading| *loading != "0") {
            return Err("it is loading its data".into());
        }
        Ok(fingerprint(fields.get("run_id"), fields.get("master_replid")))
    }

    /// Reads when this server was first seen, and has that remembered for as long as a gateway lives: were it forgotten,
    /// buckets nobody knows would be empty again for those who connect then, and full for the others.
    async fn remember_epoch(&self, wire: &mut Wire, connection: &Connection) -> Result<(), RedisError> {
        if connection.fingerprint == 0 {
            return Ok(());
        }
        let mut epoch = self.epoch.key(format!("tollgate:epoch:{:013x}", connection.fingerprint));
        let (epoch, new): (u64, u8) = epoch.arg(self.pinned_now()).arg(EPOCH_SECONDS).invoke_async(wire).await?;
        connection.epoch.store(signed(epoch), Ordering::Relaxed);
        if new == 1 {
            tracing::info!(
                "nothing is known of this server's past (it is new, was emptied, restarted or promoted): buckets of limits \
                 with on_failover = \"drain\" begin drained there"
            );
        }
        Ok(())
    }

    /// Zero: the server's clock decides.
    fn pinned_now(&self) -> i64 {
        self.pinned.as_ref().map_or(0, |clock| signed(clock.now().as_micros()))
    }

    /// The arguments of the general script; see its head. `far`: the server's time, when it has asked for more boundaries
    /// of calendars than are told at first.
    fn arguments(&self, connection: &Connection, batch: &Batch, far: Option<Timestamp>) -> Vec<u8> {
        let mut shapes: Vec<*const crate::store::shape::Shape> = Vec::new();
        let mut numbers: Vec<i64> = Vec::with_capacity(64);
        let mut boundaries = Vec::new();
        let pinned = self.pinned_now();
        let about = far.unwrap_or_else(|| self.pinned.as_ref().unwrap_or(&self.clock).now());
        numbers.extend([VERSION, pinned, self.id, connection.fingerprint, connection.epoch.load(Ordering::Relaxed), 0]);
        let mut places = Vec::with_capacity(batch.buckets.len());
        for (_, shape) in &batch.buckets {
            let this = Arc::as_ptr(shape);
            let place = shapes.iter().position(|known| *known == this).unwrap_or_else(|| {
                shapes.push(this);
                let mut own = shape.numbers(about);
                if pinned != 0 && shape.holds() {
                    // Heartbeats keep the real time; a test's clock may run ahead of them.
                    own[3] = signed(HOLD_PINNED.0);
                }
                if let Some(floor) = shape.floor_of_steps() {
                    // (Where the numbers have a boundary: this script is told them apart.)
                    (own[8], own[9]) = (0, floor);
                }
                if let Some(listed) = shape.boundaries(about, far.map(|_| FAR)) {
                    own[8] = count(listed.len());
                    boundaries.extend(listed);
                }
                numbers.extend_from_slice(&own);
                shapes.len() - 1
            });
            places.push(count(place));
        }
        numbers[5] = count(shapes.len());
        debug_assert_eq!(numbers.len(), 6 + NUMBERS * shapes.len(), "each shape once");
        numbers.extend(boundaries);
        numbers.extend(places);
        numbers.push(count(batch.returns.len()));
        for (bucket, id, left) in &batch.returns {
            numbers.extend([i64::from(*bucket), signed(*id), signed(*left).min(UNITS_MAX)]);
        }
        numbers.push(count(batch.corrections.len()));
        for (bucket, adjust) in &batch.corrections {
            let (what, units) = adjust.numbers();
            numbers.extend([i64::from(*bucket), what, signed(units).min(UNITS_MAX)]);
        }
        numbers.push(count(batch.groups.len()));
        for group in &batch.groups {
            numbers.extend([i64::from(group.count), count(group.parts.len())]);
            for part in &group.parts {
                let cost = signed(part.cost).min(UNITS_MAX);
                numbers.extend([i64::from(part.bucket), cost, i64::from(part.enforced)]);
            }
        }
        numbers.push(count(batch.wishes.len()));
        for (bucket, wish) in &batch.wishes {
            let units = [wish.units, wish.needed].map(|units| signed(units).min(UNITS_MAX));
            numbers.extend([i64::from(*bucket), signed(wish.id), units[0], units[1]]);
        }
        let mut out = Vec::with_capacity(numbers.len() * 3 + 8);
        pack::array(&mut out, u32::try_from(numbers.len()).expect("a batch is bounded"));
        for number in numbers {
            pack::integer(&mut out, number);
        }
        out
    }
}

impl Link for RedisLink {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        let attempt = async {
            let mut wire = self.wire().await.map_err(|error| error.to_string())?;
            let fingerprint = self.greet(&mut wire).await?;
            let connection = Connection { wire, fingerprint, epoch: AtomicI64::new(0) };
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
        let mut reply = run(connection, script, source, batch, &arguments).await?;
        if let Some(now) = asks_for_more(&reply) {
            // Nothing was done.
            self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
            let arguments = [self.arguments(connection, batch, Some(now))];
            reply = Box::pin(run(connection, script, source, batch, &arguments)).await?;
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
        self.shared.replicas.store(replicas, Ordering::Relaxed);
        self.remember_epoch(&mut wire, connection).await.map_err(trouble)?;
        if self.shared.is_audit_due() {
            self.look(&mut wire).await.map_err(trouble)?;
        }
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        HEARTBEAT
    }
}

/// A user who may not read INFO can still draw; the audit and the fail-over rule are then blind: `None`.
fn seen_or_blind<T>(seen: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
    match seen {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if error.code() == Some("NOPERM") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every master of a cluster: its address, INFO and clock.
async fn masters(cluster: &mut ClusterConnection) -> Result<Vec<(String, String, u64)>, RedisError> {
    let everywhere = || RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let infos = cluster.route_command(redis::cmd("INFO"), everywhere()).await?;
    let infos: HashMap<String, String> = redis::from_redis_value(infos)?;
    let times = cluster.route_command(redis::cmd("TIME"), everywhere()).await?;
    let times: HashMap<String, (u64, u64)> = redis::from_redis_value(times)?;
    let both = |(node, info): (String, String)| Some((micros(*times.get(&node)?), node, info));
    let mut masters: Vec<_> = infos.into_iter().filter_map(both).map(|(time, node, info)| (node, info, time)).collect();
    masters.sort_unstable();
    Ok(masters)
}

/// What TIME says, in microseconds.
fn micros((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// The master that the first sentinel to answer names. redis-rs asks sentinels by itself, but speaks to the master they
/// name with the system's authorities only.
async fn master_by_hand(
    sentinels: &[ConnectionInfo],
    name: &str,
    master: &ConnectionInfo,
    certificates: &TlsCertificates,
    config: &AsyncConnectionConfig,
) -> Result<Client, RedisError> {
    let mut last = RedisError::from((redis::ErrorKind::MasterNameNotFoundBySentinel, "no sentinel answers"));
    for sentinel in sentinels {
        let found: Result<(String, u16), RedisError> = async {
            let client = Client::open(sentinel.clone())?;
            let mut wire = client.get_multiplexed_async_connection_with_config(config).await?;
            redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut wire).await
        }
        .await;
        match found {
            Ok((host, port)) => {
                let addr = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
                return Client::build_with_tls(master.clone().set_addr(addr), certificates.clone());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs a script on the server.
async fn run(
    connection: &Connection,
    script: &Script,
    source: &str,
    batch: &Batch,
    arguments: &[Vec<u8>],
) -> Result<Vec<u8>, Trouble> {
    let mut wire = connection.wire.clone();
    let reply = match command("EVALSHA", script.get_hash(), batch, arguments).query_async(&mut wire).await {
        // Nothing ran: sending it once more, with its source, is safe. Restarts and promotions empty the cache.
        Err(error) if is_unknown_script(&error) => {
            // (Boxed, as is what is rare below: every request that is alone carries this future along.)
            let command = command("EVAL", source, batch, arguments);
            Box::pin(async move { command.query_async::<Vec<u8>>(&mut wire).await }).await
        }
        reply => reply,
    };
    reply.map_err(trouble)
}

/// The server's time, when the general script needs more boundaries of a calendar than it was told: minus one, then that.
fn asks_for_more(reply: &[u8]) -> Option<Timestamp> {
    // (Looked at first: every answer passes here.)
    if !reply.starts_with(&[0x92, 0xff]) {
        return None;
    }
    match pack::integers(reply)?.as_slice() {
        [-1, now] => Some(Timestamp::from_micros(u64::try_from(*now).ok()?)),
        _ => None,
    }
}

fn command(verb: &str, script: &str, batch: &Batch, arguments: &[Vec<u8>]) -> Cmd {
    let bytes =
        verb.len() + script.len() + 8 + batch.buckets.len() * KEY + arguments.iter().map(Vec::len).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + batch.buckets.len() + arguments.len(), bytes);
    command.arg(verb).arg(script).arg(batch.buckets.len());
    for (name, _) in &batch.buckets {
        command.arg(key(name).as_slice());
    }
    for argument in arguments {
        command.arg(argument.as_slice());
    }
    command
}

/// A key's length.
const KEY: usize = 40;

/// `tollgate:{tag}:name`; the tag in braces decides the cluster slot. Base64 for URLs has no brace in it.
fn key(name: &Name) -> [u8; KEY] {
    let mut key = *b"tollgate:{......}:......................";
    let written = URL_SAFE_NO_PAD.encode_slice(name.tag.to_be_bytes(), &mut key[10..16]);
    debug_assert_eq!(written, Ok(6), "four bytes are six letters");
    let written = URL_SAFE_NO_PAD.encode_slice(name.hash.to_be_bytes(), &mut key[18..]);
    debug_assert_eq!(written, Ok(22), "sixteen bytes are 22 letters");
    key
}

fn read(batch: &Batch, reply: &[u8]) -> Option<Answer> {
    let numbers = pack::integers(reply)?;
    let mut numbers = numbers.as_slice();
    let now = Timestamp::from_micros(u64::try_from(*numbers.split_off_first()?).ok()?);
    let mut before = Vec::with_capacity(batch.buckets.len());
    for (_, shape) in &batch.buckets {
        let count = usize::try_from(*numbers.split_off_first()?).ok()?;
        let state = numbers.split_off(..count)?;
        before.push(if count == 0 { None } else { Some(shape.seen(state)?) });
    }
    let (granted, leased) = numbers.split_at_checked(batch.groups.len())?;
    let granted = granted.iter().map(|granted| u32::try_from(*granted).ok()).collect::<Option<Vec<_>>>()?;
    let leased = leased.iter().map(|units| u64::try_from(*units).ok()).collect::<Option<Vec<_>>>()?;
    Some(Answer { now, before, granted, leased, unreadable: Vec::new() })
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// What an error means for the connection.
fn trouble(error: RedisError) -> Trouble {
    let other_server = matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS"));
    let text = error.to_string();
    if other_server || error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_io_error() {
        Trouble::Lost(text)
    } else {
        Trouble::Refused(text)
    }
}

/// Of the process and of its data's history, in 52 bits.
fn fingerprint(run_id: Option<&&str>, replid: Option<&&str>) -> i64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher13::new();
    for part in [run_id, replid].into_iter().flatten() {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    signed(hasher.finish() >> 12)
}

fn count(value: usize) -> i64 {
    i64::try_from(value).expect("a batch is bounded")
}

/// No limit has more units; above, a cost never fits, as it should not.
const UNITS_MAX: i64 = 1 << 52;

/// Counts the gateways heard of lately, this one included, by the server's clock.
const HEARTBEAT_SCRIPT: &str = "
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
";

/// When the server was first seen, in microseconds, and whether that was now. A clock of a test's own may say what now is.
const EPOCH_SCRIPT: &str = "
local time = redis.call('TIME')
local now = ARGV[1] ~= '0' and ARGV[1] or string.format('%.0f', time[1] * 1000000 + time[2])
local new = redis.call('SET', KEYS[1], now, 'NX') and 1 or 0
redis.call('EXPIRE', KEYS[1], ARGV[2])
return { redis.call('GET', KEYS[1]), new }
";
