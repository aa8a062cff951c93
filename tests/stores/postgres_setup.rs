//! How a PostgreSQL may be set up: by its owner for a user of few rights, behind a transaction pooler, with hostile
//! defaults, read-only, of another version. What cannot work says why.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate_limit::{Claim, Kind, Micros};
use tollgate_store::audit::Weight;
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::servers::StoreKind;
use crate::servers::{Pooler, Postgres, wait_until};

const HOUR: Micros = Micros::from_secs(3600);

/// A store that may never be ready.
fn open(url: &str, create: bool) -> RemoteStore {
    StoreKind::Postgres.open(url, |options| options.create = create)
}

/// What `tollgate schema --sql postgres` prints.
fn printed_schema() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["schema", "--sql", "postgres"])
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Why a store does not work; it must say so.
fn obstacle(store: &RemoteStore) -> String {
    wait_until("word of why it does not work", || {
        !store.health().last_error.is_empty()
    });
    assert!(!store.health().up);
    assert!(
        store
            .findings()
            .iter()
            .any(|finding| finding.weight == Weight::Refusal),
        "{:?}",
        store.findings()
    );
    store.health().last_error
}

/// Everything a gateway does: one limit, several, one of a kind the functions do not carry, settlements.
async fn works(store: &RemoteStore) {
    let one = bucket("one", 0, 5, HOUR, 5);
    assert_eq!(drain(store, &one, b"k").await, 5);
    let both = [
        bucket("a", 1, 3, HOUR, 3),
        limit("b", 2, &terms(Kind::FixedWindow, 9, HOUR)),
    ];
    let claims = [0, 1].map(|place| Claim::new(&both[place], b"k", 1));
    let mut granted = 0;
    while store.draw(&claims).await.unwrap().granted {
        granted += 1;
    }
    assert_eq!(granted, 3);
    assert_eq!(drain(store, &both[1], b"k").await, 6);
    let log = limit("log", 3, &terms(Kind::SlidingLog, 4, HOUR));
    assert_eq!(drain(store, &log, b"k").await, 4);
    assert_eq!(store.counters().diverged.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_owner_makes_the_table_and_a_user_of_few_rights_uses_it_in_a_schema_of_its_own() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    server.psql(
        "postgres",
        "CREATE ROLE owner LOGIN; CREATE ROLE gate LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC;
         CREATE SCHEMA limits AUTHORIZATION owner; GRANT USAGE ON SCHEMA limits TO gate;
         ALTER ROLE owner SET search_path = limits; ALTER ROLE gate SET search_path = limits",
    );
    let nothing = open(&server.url_of("gate"), false);
    assert!(
        obstacle(&nothing).contains("no table tollgate_buckets"),
        "{:?}",
        nothing.health()
    );
    let may_not = open(&server.url_of("gate"), true);
    assert!(
        obstacle_of_making(&may_not).contains("permission denied"),
        "{:?}",
        may_not.health()
    );
    for _ in 0..2 {
        // Again changes nothing.
        server.psql("owner", &printed_schema());
    }
    let no_rights = open(&server.url_of("gate"), false);
    let told = obstacle(&no_rights);
    assert!(
        told.contains("UPDATE ON tollgate_buckets") && told.contains("GRANT"),
        "{told}"
    );
    server.psql(
        "owner",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate_buckets, tollgate_gateways TO gate",
    );
    let store = open(&server.url_of("gate"), true);
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    works(&store).await;
    assert_eq!(store.findings(), [], "nothing to say of such a server");
    assert_ne!(
        server
            .psql(
                "owner",
                "SELECT count(*) FROM tollgate_buckets WHERE key <> 'tollgate'"
            )
            .trim(),
        "0"
    );
    // Those that waited find what was made.
    assert!(nothing.ready(PATIENCE).await, "{:?}", nothing.health());
}

/// A server with the printed schema, and a user `gate` who may use these tables.
fn with_gate(tables: &str) -> Postgres {
    let server = Postgres::start_with(&["fsync=off"]);
    server.psql("postgres", &printed_schema());
    server.psql(
        "postgres",
        &format!(
            "CREATE ROLE gate LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO gate"
        ),
    );
    server
}

/// The write of the document takes the right to read it away.
#[tokio::test]
async fn postgres_document_written_and_not_read_back_may_have_been_written() {
    if !Postgres::available() {
        return;
    }
    let server = with_gate("tollgate_buckets, tollgate_gateways, tollgate_overrides");
    let store = open(&server.url_of("gate"), false);
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    let mut watched = store.document();
    let heard = watched.wait_for(|document| document.heard);
    assert!(heard.await.is_ok());
    server.psql(
        "postgres",
        "CREATE FUNCTION shut() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
         'BEGIN REVOKE SELECT ON tollgate_overrides FROM gate; RETURN NULL; END';
         CREATE TRIGGER shuts AFTER INSERT ON tollgate_overrides EXECUTE FUNCTION shut()",
    );
    let replaced = store.replace_document(0, "{}".to_owned(), PATIENCE).await;
    let error = replaced.expect_err("it cannot be read back");
    assert!(error.may_have_charged(), "{error:?}");
    let text = server.psql("postgres", "SELECT text FROM tollgate_overrides");
    assert!(text.contains("{}"), "{text}");
    // A write that is refused itself is none.
    let replaced = store.replace_document(1, "{}".to_owned(), PATIENCE).await;
    let error = replaced.expect_err("it may not be written");
    assert!(!error.may_have_charged(), "{error:?}");
}

/// As [`obstacle`], where the making failed and nothing was audited after it.
fn obstacle_of_making(store: &RemoteStore) -> String {
    wait_until("word of why it cannot be made", || {
        store.health().last_error.contains("cannot be made")
    });
    store.health().last_error
}

#[tokio::test]
async fn functions_of_another_version_or_without_the_right_to_call_them_say_what_to_do() {
    if !Postgres::available() {
        return;
    }
    let server = with_gate("tollgate_buckets, tollgate_gateways");
    server.psql(
        "postgres",
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC",
    );
    let store = open(&server.url_of("gate"), true);
    let told = obstacle(&store);
    assert!(
        told.contains("EXECUTE ON FUNCTION tollgate_draw(") && told.contains("GRANT"),
        "{told}"
    );
    server.psql(
        "postgres",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO gate",
    );
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    works(&store).await;

    let of_version = |version: u32| {
        server.psql(
            "postgres",
            &format!("CREATE OR REPLACE FUNCTION tollgate_version() RETURNS bigint LANGUAGE sql AS 'SELECT {version}::bigint'"),
        );
    };
    of_version(1);
    let may_not = open(&server.url_of("gate"), false);
    assert!(
        obstacle(&may_not).contains("no functions of this version"),
        "{:?}",
        may_not.health()
    );
    // A user with the right creates them again.
    assert!(open(&server.url(), true).ready(PATIENCE).await);
    assert!(may_not.ready(PATIENCE).await, "{:?}", may_not.health());
    of_version(99);
    let older = open(&server.url(), true);
    assert!(
        obstacle(&older).contains("of version 99"),
        "{:?}",
        older.health()
    );
    // So does a connection that was open when they were replaced.
    wait_until("word of the later version", || {
        may_not.health().last_error.contains("of version 99")
    });
    assert!(!may_not.health().up);
}

#[tokio::test]
async fn requests_go_between_the_pages_of_a_sweep() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = StoreKind::Postgres
        .connect_with(&server.url(), |options| {
            options.answer_within = Micros(900_000)
        })
        .await;
    let limit = bucket("one", 0, 1_000_000, Micros::from_secs(1), 1_000_000);
    assert!(draw(&store, &limit, b"k").await.unwrap());
    // Deleting takes 1 ms a row: a page of 500 half a second, all of them four.
    server.psql(
        "postgres",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(0.001 * (SELECT count(*) FROM gone)); RETURN NULL; END';
         CREATE TRIGGER slow AFTER DELETE ON tollgate_buckets REFERENCING OLD TABLE AS gone EXECUTE FUNCTION slow();
         INSERT INTO tollgate_buckets (key, expires) SELECT decode(md5(n::text), 'hex'), 1 FROM generate_series(1, 4000) AS n",
    );
    let left = || {
        server
            .psql(
                "postgres",
                "SELECT count(*) FROM tollgate_buckets WHERE key <> 'tollgate'",
            )
            .trim()
            .parse::<u32>()
            .unwrap()
    };
    let mut turns = 0;
    while left() > 1 {
        turns += 1;
        assert!(turns < 100_000, "it is swept");
        draw(&store, &limit, b"k")
            .await
            .expect("no request waits for more than one page");
    }
}

#[tokio::test]
async fn a_table_of_another_version_and_a_standby_say_what_to_do() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    server.psql(
        "postgres",
        "CREATE TABLE tollgate_buckets (key bytea PRIMARY KEY, state bigint[], expires bigint)",
    );
    let store = open(&server.url(), true);
    assert!(
        obstacle(&store).contains("another version: drop it"),
        "{:?}",
        store.health()
    );
    server.psql("postgres", "DROP TABLE tollgate_buckets");
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    drop(server);

    let standby = Postgres::start_prepared(&["fsync=off", "hot_standby=on"], |data| {
        std::fs::write(data.join("standby.signal"), "").unwrap();
    });
    let store = open(&standby.url(), true);
    assert!(obstacle(&store).contains("standby"), "{:?}", store.health());
}

#[tokio::test]
async fn what_a_server_would_lose_is_said() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off", "full_page_writes=off"]);
    let warned = StoreKind::Postgres
        .connect_with(&server.url(), |options| options.long_quotas = true)
        .await;
    let weights: Vec<_> = warned
        .findings()
        .iter()
        .map(|finding| finding.weight)
        .collect();
    assert_eq!(
        weights,
        [Weight::Warning, Weight::Warning],
        "{:?}",
        warned.findings()
    );
    server.psql("postgres", "ALTER TABLE tollgate_buckets SET LOGGED");
    let refused = StoreKind::Postgres
        .connect_with(&server.url(), |options| {
            options.long_quotas = true;
            options.synchronous_commit = false;
        })
        .await;
    let found = refused.findings();
    let weights: Vec<_> = found.iter().map(|finding| finding.weight).collect();
    assert_eq!(
        weights,
        [Weight::Refusal, Weight::Warning, Weight::Warning],
        "{found:?}"
    );
    assert!(found[2].message.contains("synchronous_commit"), "{found:?}");
    works(&refused).await;
}

#[test]
fn a_gateway_told_to_refuse_does_not_start_on_a_server_that_loses_buckets() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    server.psql("postgres", &printed_schema());
    server.psql("postgres", "ALTER TABLE tollgate_buckets SET LOGGED");
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("secret"), "a secret that gateways share").unwrap();
    let run = |audit: &str| {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nkind = \"postgres\"\nurl = \"{}\"\n\
             when_down = \"refuse\"\nkey_secret_file = \"secret\"\naudit = \"{audit}\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
            server.url()
        );
        let file = home.path().join(format!("{audit}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--config"]).arg(file);
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let mut warned = run("warn");
    let refused = run("refuse").wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success()
            && told.contains("fsync is off")
            && told.contains("audit = \"refuse\""),
        "{told}"
    );
    assert!(
        warned.try_wait().unwrap().is_none(),
        "one that only warns runs"
    );
    warned.kill().unwrap();
    warned.wait().unwrap();
}

#[tokio::test]
async fn a_limit_of_other_numbers_is_carried_over_by_the_transaction() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = StoreKind::Postgres.connect(&server.url()).await;
    let window = |amount| limit("b", 1, &terms(Kind::FixedWindow, amount, HOUR));
    let draws = async |limits: [&tollgate_limit::Limit; 2]| {
        let claims = limits.map(|limit| Claim::new(limit, b"k", 1));
        store.draw(&claims).await.unwrap().granted
    };
    let small = [bucket("a", 0, 5, HOUR, 5), window(9)];
    for _ in 0..3 {
        assert!(draws([&small[0], &small[1]]).await);
    }
    // One limit: whole units stay as they are, though the burst is larger now.
    assert_eq!(drain(&store, &bucket("a", 0, 50, HOUR, 50), b"k").await, 2);
    // Several limits: the window of 9, of which 3 are spent, is one of 7 with 4 left.
    let large = [bucket("c", 2, 50, HOUR, 50), window(7)];
    let mut granted = 0;
    while draws([&large[0], &large[1]]).await {
        granted += 1;
    }
    assert_eq!(granted, 4);
    assert_eq!(store.counters().diverged.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn behind_a_transaction_pooler_nothing_is_lost() {
    if !(Postgres::available() && Pooler::available()) {
        return;
    }
    let mut server = Postgres::start_with(&["fsync=off"]);
    let pooler = Pooler::start(&server);
    let stores = [
        StoreKind::Postgres.connect(&pooler.url()).await,
        StoreKind::Postgres.connect(&pooler.url()).await,
        StoreKind::Postgres.connect(&pooler.url()).await,
    ];
    // Three gateways on two connections: each transaction may go over another one than the last.
    works(&stores[0]).await;
    let ten = bucket("ten", 8, 10, Micros::from_secs(1), 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 32, Duration::from_secs(2)).await;
    let most = 10 + 10 * u64::try_from(start.elapsed().as_millis()).unwrap() / 1000 + 1;
    assert!(
        (15..=most).contains(&granted),
        "granted {granted}, at most {most}"
    );
    assert_eq!(failed, []);
    // The server goes and comes back behind it: our connections to the pooler may never notice.
    let mut draining = tollgate_limit::Limit::clone(&bucket("drain", 9, 5, HOUR, 5));
    draining.on_failover = tollgate_limit::OnFailover::Drain;
    assert!(
        !draw(&stores[0], &draining, b"before").await.unwrap(),
        "nothing is known of the time before the start"
    );
    server.crash();
    server.run();
    recovers(&stores[0], &bucket("other", 10, 1000, HOUR, 1000)).await;
    assert!(
        !draw(&stores[0], &draining, b"after").await.unwrap(),
        "drain: no bucket is refilled by a crash"
    );
}

#[tokio::test]
async fn a_database_that_is_serializable_and_read_only_by_default_is_written_all_the_same() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    server.psql(
        "postgres",
        "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
    );
    server.psql(
        "postgres",
        "ALTER DATABASE postgres SET default_transaction_read_only = on",
    );
    let stores = [
        StoreKind::Postgres.connect(&server.url()).await,
        StoreKind::Postgres.connect(&server.url()).await,
    ];
    works(&stores[0]).await;
    let said = stores[0].findings();
    assert!(
        said.iter()
            .any(|finding| finding.message.contains("serializable")),
        "{said:?}"
    );
    assert!(
        said.iter()
            .any(|finding| finding.message.contains("read_only")),
        "{said:?}"
    );
    let many = bucket("many", 8, 1_000_000, HOUR, 1_000_000);
    let (granted, failed) = storm(&stores, &many, b"k", 64, Duration::from_secs(2)).await;
    assert!(granted > 0);
    assert_eq!(failed, [], "no serialization error reaches a caller");
}
