//! The name of a store: gateways that share its buckets have the same one, and no others.

use tollgate_store::RemoteStore;

use crate::faults::PATIENCE;
use crate::kinds::StoreKind;
use crate::servers::eventually;

/// The name, once the store has told it.
pub async fn name(store: &RemoteStore) -> u64 {
    eventually("name", PATIENCE, async || store.name().is_some()).await;
    store.name().unwrap()
}

pub async fn is_that_of_the_data_and_the_secret(kind: StoreKind) {
    let (Some(server), Some(other)) = (kind.start(), kind.start()) else {
        return;
    };
    let (one, two) = (server.connect().await, server.connect().await);
    let own = name(&one).await;
    assert_eq!(name(&two).await, own);
    let secret = |options: &mut tollgate_store::RemoteOptions| {
        options.key_secret = b"another secret".to_vec();
    };
    assert_ne!(name(&server.connect_with(secret).await).await, own);
    assert_ne!(name(&other.connect().await).await, own);
    if kind == StoreKind::Redis {
        let database = format!("{}/1", server.url().trim_end_matches("/0"));
        assert_ne!(name(&kind.connect(&database).await).await, own);
    }
}

#[tokio::test]
async fn redis_name_of_a_store_is_that_of_its_data_and_the_secret() {
    is_that_of_the_data_and_the_secret(StoreKind::Redis).await;
}

#[tokio::test]
async fn postgres_name_of_a_store_is_that_of_its_data_and_the_secret() {
    is_that_of_the_data_and_the_secret(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_name_of_a_store_is_that_of_its_data_and_the_secret() {
    is_that_of_the_data_and_the_secret(StoreKind::Mysql).await;
}
