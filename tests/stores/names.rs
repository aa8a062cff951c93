//! The name of a store: gateways that share its buckets have the same one, and no others.

use tollgate_store::RemoteStore;

use crate::faults::PATIENCE;
use crate::servers::{Server, StoreKind, eventually};

/// The name, once the store has told it.
pub async fn name(store: &RemoteStore) -> u64 {
    eventually("name", PATIENCE, async || store.name().is_some()).await;
    store.name().unwrap()
}

pub async fn is_that_of_the_data_and_the_secret(server: Server) {
    let (one, two) = (server.connect().await, server.connect().await);
    let own = name(&one).await;
    assert_eq!(name(&two).await, own);
    let secret = |options: &mut tollgate_store::RemoteOptions| {
        options.key_secret = b"another secret".to_vec();
    };
    assert_ne!(name(&server.connect_with(secret).await).await, own);
    let kind = server.kind();
    if kind == StoreKind::Redis {
        let database = format!("{}/1", server.url().trim_end_matches("/0"));
        assert_ne!(name(&kind.connect(&database).await).await, own);
    }
    drop((one, two, server));
    let other = kind.start().expect("it is installed");
    assert_ne!(name(&other.connect().await).await, own);
}
