//! TLS to Redis, and users with few rights: certificates are checked both ways, and what is wrong is said.

use std::path::{Path, PathBuf};

use tollgate_limit::Micros;
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw};
use crate::limits::{bucket, limit, terms};
use crate::postgres_encrypted::Authority;
use crate::servers::StoreKind;
use crate::servers::{Redis, available, eventually, free_port};

const HOUR: Micros = Micros::from_secs(3600);

fn open(url: &str, tls: &Tls) -> RemoteStore {
    StoreKind::Redis.open_encrypted(url, tls, |_| ())
}

/// A server that takes TLS on a second port, from callers whom `clients` certifies.
fn start(site: &Authority, clients: &Authority, home: &Path) -> (Redis, u16) {
    let (chain, key) = site.issue("localhost");
    let file = |name: &str, text: &str| -> PathBuf {
        std::fs::write(home.join(name), text).unwrap();
        home.join(name)
    };
    let (chain, key, ca) = (
        file("site.pem", &chain),
        file("site.key", &key),
        file("clients.pem", &clients.pem),
    );
    let port = free_port();
    let [chain, key, ca] = [&chain, &key, &ca].map(|path| path.to_str().unwrap());
    let server = Redis::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        chain,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        ca,
    ]);
    (server, port)
}

#[tokio::test]
async fn both_sides_show_certificates_and_a_stranger_s_is_refused() {
    if !available("redis-server") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (site, clients, other) = (
        Authority::new("site"),
        Authority::new("clients"),
        Authority::new("other"),
    );
    let (_server, port) = start(&site, &clients, home.path());
    let bytes = |(chain, key): (String, String)| Some((chain.into_bytes(), key.into_bytes()));
    let tls = |ca: &Authority, client| Tls {
        ca: Some(ca.pem.clone().into_bytes()),
        client,
    };
    let five = bucket("five", 0, 5, HOUR, 5);

    let store = open(
        &format!("rediss://localhost:{port}"),
        &tls(&site, bytes(clients.issue("gate"))),
    );
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    assert_eq!(drain(&store, &five, b"k").await, 5);

    for (what, host, tls) in [
        (
            "another authority's server",
            "localhost",
            tls(&other, bytes(clients.issue("gate"))),
        ),
        (
            "another name",
            "127.0.0.1",
            tls(&site, bytes(clients.issue("gate"))),
        ),
        ("no certificate of ours", "localhost", tls(&site, None)),
        (
            "a certificate of an unknown authority",
            "localhost",
            tls(&site, bytes(other.issue("gate"))),
        ),
    ] {
        let store = open(&format!("rediss://{host}:{port}"), &tls);
        eventually(what, PATIENCE, async || {
            !store.health().last_error.is_empty()
        })
        .await;
        assert!(!store.health().up, "{what}");
        assert!(draw(&store, &five, b"k").await.is_err(), "{what}");
    }
}

#[tokio::test]
async fn a_user_with_few_rights_is_enough_and_a_wrong_password_is_said() {
    if !available("redis-server") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("users.acl");
    let few = "resetkeys ~tollgate:* -@all +evalsha +eval +get +mget +set +setrange +del +time +zadd +zremrangebyscore +zcard +expire +script|load";
    std::fs::write(
        &file,
        format!(
            "user default on nopass ~* &* +@all\nuser gate on >hunter2 {few} +info\nuser blind on >hunter2 {few}\n\
             user stranger on >hunter2 resetkeys ~else:* +@all\n"
        ),
    )
    .unwrap();
    let server = Redis::start_with(&["--aclfile", file.to_str().unwrap()]);
    let url = |user: &str, password: &str| {
        format!("redis://{user}:{password}@127.0.0.1:{}/0", server.port)
    };
    // One that may not read INFO draws as well; only the audit and the rule for fail-overs see nothing then, and say so.
    for (index, user) in ["gate", "blind"].into_iter().enumerate() {
        let store = open(&url(user, "hunter2"), &Tls::default());
        assert!(store.ready(PATIENCE).await, "{:?}", store.health());
        assert_eq!(
            drain(&store, &bucket(user, index, 5, HOUR, 5), b"k").await,
            5,
            "{user}"
        );
        let jobs = limit(
            "jobs",
            2,
            &terms(tollgate_limit::Kind::InFlight, 3, Micros::ZERO),
        );
        assert_eq!(drain(&store, &jobs, user.as_bytes()).await, 3, "{user}");
        assert_eq!(
            store.replicas(),
            u32::try_from(index + 1).unwrap(),
            "heartbeats are heard"
        );
        let says_so = store
            .findings()
            .iter()
            .any(|finding| finding.message.contains("INFO"));
        assert_eq!(says_so, user == "blind", "{:?}", store.findings());
    }
    for (what, user, password, word) in [
        ("a wrong password", "gate", "hunter3", "password"),
        ("keys of another user", "stranger", "hunter2", "permission"),
    ] {
        let store = open(&url(user, password), &Tls::default());
        eventually(what, PATIENCE, async || {
            !store.health().last_error.is_empty()
        })
        .await;
        let error = store.health().last_error;
        assert!(error.to_lowercase().contains(word), "{what}: {error}");
        assert!(!error.contains(password), "no secret is told: {error}");
        assert!(
            draw(&store, &bucket("x", 0, 5, HOUR, 5), b"k")
                .await
                .is_err(),
            "{what}"
        );
    }
}
