//! Draws that nobody takes, and connections that the server has closed: neither costs a caller units or
//! a response.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_limit::{Claim, Limit, Micros};
use tollgate_store::{Deadline, RemoteStore, Store, StoreError};

use crate::faults::{PATIENCE, drain, draw};
use crate::limits::bucket;
use crate::servers::{Maria, Postgres, eventually};
use crate::servers::{Server, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);

async fn left(store: &RemoteStore, limit: &Limit) -> Option<u64> {
    let peeked = store.peek(&[Claim::new(limit, b"k", 0)]).await.ok()?;
    Some(peeked[0].remaining())
}

/// So many units can be drawn, and no more: some of them once they are given back.
async fn are_left(store: &RemoteStore, limit: &Limit, units: u64) {
    let mut drawn = 0;
    eventually("units", PATIENCE, async || {
        store.forget_bounds();
        drawn += drain(store, limit, b"k").await;
        drawn >= units
    })
    .await;
    assert_eq!(drawn, units);
}

/// The store decides while its server is stopped, and the client leaves meanwhile.
pub async fn client_leaves(server: Server) {
    let store = server.connect().await;
    let ten = bucket("ten", 0, 10, HOUR, 10);
    assert!(draw(&store, &ten, b"k").await.expect("it answers"));
    server.signal("-STOP");
    for _ in 0..3 {
        let asked = draw(&store, &ten, b"k");
        let left = tokio::time::timeout(Duration::from_millis(50), asked).await;
        assert!(left.is_err(), "the server is stopped");
    }
    server.signal("-CONT");
    are_left(&store, &ten, 9).await;
}

/// The store does not respond in time, its limit refuses the request, and the store grants it later.
pub async fn refused_in_time(server: Server) {
    let store = server.kind().connect_in_haste(&server.url()).await;
    let patient = server.connect().await;
    let ten = bucket("ten", 0, 10, HOUR, 10);
    assert!(draw(&patient, &ten, b"k").await.expect("it answers"));
    server.signal("-STOP");
    let mut charged = 0;
    for _ in 0..3 {
        let deadline = Deadline::default();
        let claims = [Claim::new(&ten, b"k", 1)];
        let error = store.draw_until(&claims, &deadline).await;
        let error = error.expect_err("the server is stopped");
        charged += u64::from(error == StoreError::Timeout);
        store.forgo(&deadline);
    }
    assert!(charged > 0, "the server was asked");
    server.signal("-CONT");
    are_left(&patient, &ten, 9).await;
    let unknown = store.counters().draws_unknown.load(Ordering::Relaxed);
    assert_eq!(unknown, 0);
}

/// Ends the connections of the gateways.
fn close_all(server: &Server) {
    match server.name() {
        "redis" => drop(server.redis().ask("CLIENT KILL TYPE normal SKIPME yes")),
        "mysql" => {
            let ids = server.sql(
                "SELECT id FROM information_schema.PROCESSLIST
                 WHERE user = 'root' AND id <> CONNECTION_ID()",
            );
            for id in ids.split_whitespace() {
                server.sql(&format!("KILL {id}"));
            }
        }
        _ => {
            let own = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE application_name = 'tollgate'";
            server.sql(own);
        }
    }
}

pub async fn first_request_after_a_close(server: Server) {
    let store = server.connect().await;
    let many = bucket("many", 0, 1_000, HOUR, 1_000);
    assert!(draw(&store, &many, b"k").await.expect("it answers"));
    for turn in 1..=5 {
        close_all(&server);
        // What the server has closed is seen by this process a moment later. (A request that is sent
        // in that moment may have been decided, as far as is known.)
        tokio::time::sleep(Duration::from_millis(150)).await;
        let drawn = draw(&store, &many, b"k").await;
        assert_eq!(drawn, Ok(true), "the {turn}. time");
    }
    assert_eq!(
        left(&store, &many).await,
        Some(994),
        "each was charged once"
    );
}

/// A user, or a proxy, that may run scripts and not load them.
#[tokio::test]
async fn redis_that_loads_no_scripts_decides_all_the_same() {
    let Some(server) = StoreKind::Redis.start_with(&["--rename-command", "SCRIPT", ""]) else {
        return;
    };
    let store = server.connect().await;
    let five = bucket("five", 0, 5, HOUR, 5);
    assert_eq!(drain(&store, &five, b"k").await, 5);
}

#[tokio::test]
async fn postgres_database_in_latin1_is_set_up_and_decides() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    server.psql(
        "postgres",
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'",
    );
    let (address, _) = server
        .url()
        .rsplit_once('/')
        .map(|(at, name)| (at.to_owned(), name.to_owned()))
        .expect("a path");
    let store = StoreKind::Postgres
        .connect(&format!("{address}/latin"))
        .await;
    let five = bucket("five", 0, 5, HOUR, 5);
    assert_eq!(drain(&store, &five, b"k").await, 5);
}

/// Whatever a server's defaults and its database's characters are.
#[tokio::test]
async fn mysql_hostile_defaults_and_wide_characters_change_no_decision() {
    if !Maria::available() {
        return;
    }
    for characters in ["utf16", "ucs2"] {
        let Some(server) = StoreKind::Mysql.start() else {
            return;
        };
        server.sql(&format!(
            "ALTER DATABASE tollgate CHARACTER SET {characters};
             SET GLOBAL sql_safe_updates = 1; SET GLOBAL completion_type = 'CHAIN';
             SET GLOBAL sql_select_limit = 1; SET GLOBAL character_set_server = {characters}"
        ));
        let store = server.connect().await;
        let five = bucket("five", 0, 5, HOUR, 5);
        assert_eq!(drain(&store, &five, b"k").await, 5);
        let three = bucket("three", 1, 3, HOUR, 3);
        let claims = [
            Claim::new(&five, b"both", 1),
            Claim::new(&three, b"both", 1),
        ];
        let mut granted = 0;
        while store.draw(&claims).await.expect("it answers").granted {
            granted += 1;
        }
        assert_eq!(granted, 3);
        assert_eq!(left(&store, &bucket("five", 0, 5, HOUR, 5)).await, Some(0));
    }
}

/// Forwards to `port`; while `doubles` is set, each reply is sent twice.
fn doubling_proxy(port: u16, doubles: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            let (mut up, mut up_to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut up, &mut up_to));
            let (doubles, mut client) = (doubles.clone(), client);
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(read @ 1..) = server.read(&mut buffer) {
                    let times = if doubles.load(Ordering::Acquire) {
                        2
                    } else {
                        1
                    };
                    let sent = buffer[..read].repeat(times);
                    if client.write_all(&sent).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(std::net::Shutdown::Both);
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    own
}

#[tokio::test]
async fn mysql_reply_that_is_doubled_grants_nothing() {
    let Some(server) = StoreKind::Mysql.start() else {
        return;
    };
    let doubles = Arc::new(AtomicBool::new(false));
    let port = doubling_proxy(server.port(), doubles.clone());
    let store = StoreKind::Mysql
        .connect_with(&server.url_through(port), |options| {
            options.answer_within = Micros::from_secs(1);
            options.local_refusals = false;
        })
        .await;
    let five = bucket("five", 0, 5, HOUR, 5);
    let mut granted = 0;
    for turn in 0..40 {
        doubles.store(turn % 2 == 0, Ordering::Release);
        granted += u32::from(matches!(draw(&store, &five, b"k").await, Ok(true)));
    }
    assert!(granted <= 5, "{granted} of 5");
}
