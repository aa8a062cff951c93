//! The shared stores, on real servers started here, deciding at a manual clock's time.
//!
//! One server of each kind serves all tests of the process and goes with it; each test keys its buckets by a secret of
//! its own, so that none sees another's.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use tollgate_limit::{Claim, Limit, Micros, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::{RemoteOptions, RemoteStore, Store};

use crate::servers::{Server, StoreKind};
use crate::subject::Subject;

/// A kind of server.
pub(crate) trait OnServer: 'static {
    const KIND: StoreKind;

    /// Random traces played.
    const RUNS: u64;

    /// The server of this process; `None`: there is none here.
    fn server() -> Option<&'static Server>;
}

macro_rules! on_servers {
    ($($kind:ident $runs:literal,)*) => {
        $(
            pub(crate) struct $kind;

            impl OnServer for $kind {
                const KIND: StoreKind = StoreKind::$kind;
                const RUNS: u64 = $runs;

                fn server() -> Option<&'static Server> {
                    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
                    SERVER.get_or_init(|| Self::KIND.start()).as_ref()
                }
            }
        )*
    };
}

on_servers! {
    Redis 30,
    Postgres 10,
    Mysql 10,
    Views 3,
    Serializable 3,
    Proxy 1,
    Galera 2,
}

/// A store on such a server, with its clock.
pub(crate) struct Shared<K> {
    store: RemoteStore,
    clock: Clock,
    limit: Arc<Limit>,
    kind: PhantomData<K>,
}

impl<K: OnServer> Subject for Shared<K> {
    type Store = RemoteStore;
    const SHARED: bool = true;
    const RUNS: u64 = K::RUNS;

    async fn new(limits: &[Arc<Limit>], now: Timestamp) -> Option<Self> {
        let (server, clock) = (K::server()?, Clock::manual(now));
        let pin = |options: &mut RemoteOptions| {
            options.pinned = Some(clock.clone());
            options.local_refusals = false;
            options.synchronous_commit = false;
            options.key_secret = fastrand::u128(..).to_le_bytes().to_vec();
        };
        let store = K::KIND.connect_with(&server.url(), pin).await;
        Some(Self {
            store,
            clock,
            limit: limits[0].clone(),
            kind: PhantomData,
        })
    }

    fn store(&self) -> &RemoteStore {
        &self.store
    }

    fn set_time(&mut self, now: Timestamp) {
        // (By what is left to the end of all numbers it goes back.)
        self.clock.advance(Micros(
            now.as_micros().wrapping_sub(self.clock.now().as_micros()),
        ));
    }

    /// Corrections go before the requests of a call: when a later request is answered they have landed.
    async fn settled(&self) {
        let claim = Claim::new(&self.limit, b"unknown", 0);
        self.store.peek(&[claim]).await.expect("the store answers");
    }
}
