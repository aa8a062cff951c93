//! A store whose server and network are simulated, for `prove/fleet`. Everything else is what ships: the
//! queue, the calls, the leases, the bounds and the corrections of a gateway. The server decides each call
//! by the code that decides the transactions of SQL databases, which is the pure core on rows of integers.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::RemoteStore;
use crate::batch::{
    Adjust, Answer, Batch, LaneState, Link, NewDocument, Obstacle, Receipt, Servers,
    StoredDocument, Trouble, lane,
};
use crate::lease::Leases;
use crate::options::RemoteOptions;
use crate::sql::decide::{Decider, Locked};
use crate::sql::mark::Mark;
use crate::sql::{LEASED_LEAST, ROW_MARGIN};
use crate::wire_form::signed;
use tollgate_limit::{Change, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    /// It recognises corrections that are sent again, and leases a bucket only where that pays.
    Sql,
}

/// The rows of a server and the mark of its data. A clone is a replica.
#[derive(Clone, Debug)]
pub struct Server {
    /// The row of each bucket, and from when it may be deleted.
    rows: BTreeMap<u128, (Vec<i64>, i64)>,
    /// The number of the last call with corrections of each gateway.
    receipts: BTreeMap<u64, u64>,
    mark: Mark,
    decider: Decider,
}

impl Server {
    /// A server without rows whose data is complete since `since`.
    pub fn new(since: Timestamp) -> Self {
        Self {
            rows: BTreeMap::new(),
            receipts: BTreeMap::new(),
            mark: mark(since),
            decider: Decider::new(false),
        }
    }

    /// Decides a call at `now` by the server's clock.
    pub fn decide(&mut self, call: &Call, now: Timestamp) -> Reply {
        let Call { gateway, batch } = call;
        let number = batch.receipt.number;
        if number > 0 {
            let last = self.receipts.entry(*gateway).or_default();
            batch.receipt.found(*last >= number);
            *last = number.max(*last);
        }
        let stands = |(_, gone): &&(Vec<i64>, i64)| gone + ROW_MARGIN > signed(now.as_micros());
        let rows = batch.buckets.iter().map(|(name, _)| {
            let row = self.rows.get(&name.hash).filter(stands);
            Ok(row.map(|(row, _)| row.clone()))
        });
        let locked = Locked {
            rows: rows.collect(),
            resets: vec![None; batch.buckets.len()],
            mark: self.mark,
            now,
        };
        let decided = self.decider.decide(batch, locked);
        for (place, row) in decided.written {
            let hash = batch.buckets[place].0.hash;
            match row {
                Some(row) => drop(self.rows.insert(hash, row)),
                None => drop(self.rows.remove(&hash)),
            }
        }
        Reply(decided.answer)
    }

    /// Gives the server a new mark at `now`, as a replica that was promoted has one.
    pub fn promote(&mut self, now: Timestamp) {
        self.mark = mark(now);
    }

    /// Removes all leases from the rows, which no server does: a test plants this mistake.
    pub fn forget_leases(&mut self) {
        for (row, _) in self.rows.values_mut() {
            crate::sql::forget_leases(row);
        }
    }
}

fn mark(since: Timestamp) -> Mark {
    Mark {
        print: Mark::new_print(),
        since: signed(since.as_micros()),
    }
}

#[derive(Debug)]
pub struct Call {
    gateway: u64,
    batch: Batch,
}

impl Call {
    pub(crate) fn of(batch: &Batch, gateway: u64) -> Self {
        let mut receipt = Receipt::default();
        receipt.number = batch.receipt.number;
        let batch = Batch {
            buckets: batch.buckets.clone(),
            corrections: batch.corrections.clone(),
            groups: batch.groups.clone(),
            returns: batch.returns.clone(),
            leases: batch.leases.clone(),
            receipt,
        };
        Self { gateway, batch }
    }

    /// Removes all refunds, which no network does: a test plants this mistake.
    pub fn drop_refunds(&mut self) {
        let is_refund =
            |adjust: &Adjust| matches!(adjust, Adjust::Change(Change::Refund { .. }, _));
        self.batch
            .corrections
            .retain(|(_, adjust)| !is_refund(adjust));
    }
}

#[derive(Debug)]
pub struct Reply(pub(crate) Answer);

/// Why a message got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection had ended before: nothing was sent.
    NotSent,
    /// The connection was lost. What the server has done is unknown.
    Lost,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent => Self::Unfit("the connection had ended".into()),
            Failure::Lost => Self::Lost("the connection is lost".into()),
        }
    }
}

/// The network between a gateway and the server. A message whose future is dropped still arrives.
pub trait Network: 'static {
    type Connection: 'static;

    /// Connects; fails if the server refuses.
    fn connect(&self) -> impl Future<Output = Option<Self::Connection>>;

    /// Takes a call to the server and brings its reply back.
    fn call(
        &self,
        connection: &Self::Connection,
        call: Call,
    ) -> impl Future<Output = Result<Reply, Failure>>;

    /// Takes any other message (such as a heartbeat) there and back; returns the server's time.
    fn other(
        &self,
        connection: &Self::Connection,
    ) -> impl Future<Output = Result<Timestamp, Failure>>;

    /// Waits until the connection has ended.
    fn ended(&self, connection: &Self::Connection) -> impl Future<Output = ()>;
}

/// The store of the gateway with this number, and its task, which runs on a `LocalSet`.
pub fn start(
    kind: Kind,
    gateway: u64,
    network: impl Network,
    options: RemoteOptions,
) -> (RemoteStore, impl Future<Output = ()> + 'static) {
    let clock = options.clock;
    let mut shared = LaneState::new(clock.clone(), options.answer_within, options.local_refusals);
    let leases = Leases::new(clock.clone(), false);
    shared.leases = Some(Arc::new(match kind {
        Kind::Redis => leases,
        Kind::Sql => leases.with_least(LEASED_LEAST),
    }));
    let shared = Arc::new(shared);
    let store = RemoteStore::without_thread(&options.key_secret, Servers::one(shared.clone()));
    let link = SimulatedLink {
        kind,
        gateway,
        network,
    };
    (store, lane(shared, Rc::new(link)))
}

struct SimulatedLink<N> {
    kind: Kind,
    gateway: u64,
    network: N,
}

impl<N: Network> Link for SimulatedLink<N> {
    type Connection = N::Connection;

    async fn connect(&self) -> Result<N::Connection, Obstacle> {
        let connection = self.network.connect().await;
        connection.ok_or_else(|| String::from("the server refuses").into())
    }

    async fn call(&self, connection: &N::Connection, batch: &Batch) -> Result<Answer, Trouble> {
        if batch.receipt.number > 0 {
            batch.receipt.committing();
        }
        let call = Call::of(batch, self.gateway);
        let Reply(answer) = self.network.call(connection, call).await?;
        Ok(answer)
    }

    async fn ended(&self, connection: &N::Connection) {
        self.network.ended(connection).await;
    }

    fn keeps_receipts(&self) -> bool {
        self.kind == Kind::Sql
    }

    fn has_document(&self, _: &N::Connection) -> bool {
        true
    }

    async fn document(
        &self,
        connection: &N::Connection,
        known: u64,
        _: Option<&NewDocument>,
    ) -> Result<StoredDocument, Trouble> {
        Ok(StoredDocument {
            epoch: 0,
            now: self.network.other(connection).await?,
            written: false,
            text: (known != 0).then(String::new),
            origin: None,
        })
    }

    async fn housekeep(&self, connection: &N::Connection) -> Result<(), Trouble> {
        self.network.other(connection).await?;
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(1)
    }
}
