//! Setting up a store in MariaDB: its tables, rights, replicas, encryption, and what the audit says of the server.

use std::os::unix::fs::PermissionsExt;

use tollgate_limit::Micros;
use tollgate_store::RemoteStore;
use tollgate_store::audit::Weight;
use tollgate_store::mysql::schema_sql;
use tollgate_store::tls::Tls;

use crate::faults::{PATIENCE, drain};
use crate::limits::bucket;
use crate::postgres_encrypted::Authority;
use crate::servers::{Maria, eventually};
use crate::servers::{QUICK, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);

/// Waits until the store says why it has no connection, in words that contain these.
async fn says(store: &RemoteStore, words: &str) {
    eventually(words, PATIENCE, async || {
        let health = store.health();
        assert!(!health.up, "it must not work");
        health.last_error.contains(words)
    })
    .await;
}

async fn works(store: &RemoteStore, key: &[u8]) {
    assert_eq!(drain(store, &bucket("five", 0, 5, HOUR, 5), key).await, 5);
}

#[tokio::test]
async fn mysql_gateway_without_the_right_to_create_says_what_to_do_and_works_once_it_is_done() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    server.sql("CREATE USER gate@'%'; GRANT SELECT ON tollgate.* TO gate@'%'");
    let url = server.url_of("gate");
    says(
        &StoreKind::Mysql.open(&url, |_| ()),
        "the tables and procedures cannot be made",
    )
    .await;
    let store = StoreKind::Mysql.open(&url, |options| options.create = false);
    says(&store, "there is no table tollgate_buckets").await;
    server.sql(schema_sql());
    server.sql(schema_sql());
    says(&store, "may not call it").await;
    server.sql("GRANT EXECUTE ON tollgate.* TO gate@'%'");
    says(&store, "INSERT command denied").await;
    let refused = store.findings();
    assert!(
        refused.iter().any(
            |finding| finding.weight == Weight::Refusal && finding.message.contains("GRANT it")
        ),
        "{refused:?}"
    );
    drop(store);
    server.sql("GRANT INSERT, UPDATE, DELETE ON tollgate.* TO gate@'%'");
    works(
        &StoreKind::Mysql
            .connect_with(&url, |options| options.create = false)
            .await,
        b"a",
    )
    .await;
    server.sql("ALTER TABLE tollgate_buckets COMMENT = 'tollgate 3'");
    says(
        &StoreKind::Mysql.open(&url, |_| ()),
        "is of another version",
    )
    .await;
    server.sql("ALTER TABLE tollgate_buckets COMMENT = 'tollgate 2', ENGINE = Aria");
    says(&StoreKind::Mysql.open(&url, |_| ()), "has the engine Aria").await;
}

#[tokio::test]
async fn mysql_read_only_server_is_refused_and_the_next_of_the_address_is_taken() {
    if !Maria::available() {
        return;
    }
    let (replica, primary) = (
        Maria::start_with(&[QUICK, "read-only=1"]),
        Maria::start_with(&[QUICK]),
    );
    says(
        &StoreKind::Mysql.open(&replica.url(), |_| ()),
        "the server is read-only",
    )
    .await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", replica.port, primary.port);
    let store = StoreKind::Mysql
        .connect(&format!("mariadb://root@{hosts}/tollgate"))
        .await;
    works(&store, b"k").await;
    let rows = "SELECT COUNT(*) FROM tollgate_buckets WHERE kind = 1";
    assert_eq!(primary.sql(rows).trim(), "1");
    // It becomes one while it is in use: nothing is charged, and the other is found.
    replica.sql("SET GLOBAL read_only = 0");
    primary.sql("CREATE USER gate@'%' IDENTIFIED BY 'secret'; GRANT ALL ON tollgate.* TO gate@'%'");
    replica.sql("CREATE USER gate@'%' IDENTIFIED BY 'secret'; GRANT ALL ON tollgate.* TO gate@'%'");
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port, replica.port);
    let store = StoreKind::Mysql
        .connect(&format!("mysql://gate:secret@{hosts}/tollgate"))
        .await;
    works(&store, b"other").await;
    primary.sql("SET GLOBAL read_only = 1");
    let limit = bucket("five", 0, 5, HOUR, 5);
    let claim = [tollgate_limit::Claim::new(&limit, b"new", 1)];
    if let Err(error) = tollgate_store::Store::draw(&store, &claim).await {
        assert!(!error.may_have_charged(), "{error:?}");
    }
    crate::faults::recovers(&store, &bucket("new", 1, 5, HOUR, 5)).await;
    assert_ne!(replica.sql(rows).trim(), "0");
}

#[tokio::test]
async fn mysql_audit_says_what_a_crash_would_lose() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[
        "innodb-flush-log-at-trx-commit=0",
        "innodb-doublewrite=0",
        "innodb-flush-method=nosync",
    ]);
    let store = StoreKind::Mysql
        .connect_with(&server.url(), |options| options.long_quotas = true)
        .await;
    let findings = store.findings();
    for (weight, words) in [
        (Weight::Warning, "innodb_flush_log_at_trx_commit = 0"),
        (Weight::Warning, "innodb_doublewrite is off"),
        (Weight::Refusal, "innodb_flush_method is nosync"),
    ] {
        assert!(
            findings
                .iter()
                .any(|finding| finding.weight == weight && finding.message.contains(words)),
            "{words}: {findings:?}"
        );
    }
    let logging = Maria::start_with(&[QUICK, "log-bin=binlog", "binlog-format=STATEMENT"]);
    says(
        &StoreKind::Mysql.open(&logging.url(), |_| ()),
        "binlog_format is STATEMENT",
    )
    .await;
    let fine = Maria::start();
    let store = StoreKind::Mysql
        .connect_with(&fine.url(), |options| options.long_quotas = true)
        .await;
    assert_eq!(store.findings(), []);
}

#[tokio::test]
async fn mysql_both_sides_show_certificates_and_a_wrong_one_is_said() {
    if !Maria::available() {
        return;
    }
    let (site, clients, other) = (
        Authority::new("site"),
        Authority::new("clients"),
        Authority::new("other"),
    );
    let files = tempfile::tempdir().unwrap();
    let (chain, key) = site.issue("localhost");
    for (name, text) in [
        ("site.pem", &chain),
        ("site.key", &key),
        ("ca.pem", &clients.pem),
    ] {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let setting = |name: &str, file: &str| format!("{name}={}", files.path().join(file).display());
    let settings = [
        setting("ssl-cert", "site.pem"),
        setting("ssl-key", "site.key"),
        setting("ssl-ca", "ca.pem"),
        QUICK.to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Maria::start_with(&settings);
    server.sql("CREATE USER gate@'%' REQUIRE X509; GRANT ALL ON tollgate.* TO gate@'%'");
    let bytes = |(chain, key): (String, String)| Some((chain.into_bytes(), key.into_bytes()));
    let tls = |ca: &Authority, client| Tls {
        ca: Some(ca.pem.clone().into_bytes()),
        client,
    };
    let url = |host: &str| format!("mysql://gate@{host}:{}/tollgate", server.port);
    let with = |url: String, tls: Tls| StoreKind::Mysql.open_encrypted(&url, &tls, |_| ());

    let store = with(url("localhost"), tls(&site, bytes(clients.issue("gate"))));
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    works(&store, b"k").await;
    let wrong = with(url("localhost"), tls(&other, bytes(clients.issue("gate"))));
    says(&wrong, "UnknownIssuer").await;
    let named = with(url("127.0.0.1"), tls(&site, bytes(clients.issue("gate"))));
    says(&named, "not valid for name").await;
    says(&with(url("localhost"), tls(&site, None)), "Access denied").await;
}
