//! Redis emptied, promoted, restarted.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{clock, drained_buckets_take_on_numbers, no_bucket_is_refilled};
use crate::servers::StoreKind;
use crate::servers::{Redis, ask, available, wait_until};

/// Every new connection to it leads to the port of that moment.
fn leading_to(port: &Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, port) = (listener.local_addr().unwrap().port(), port.clone());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port.load(Ordering::Acquire))) else {
                continue;
            };
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.flush();
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    own
}

#[tokio::test]
async fn redis_emptied_under_drain_refills_no_bucket() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    for emptied in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        let clock = clock();
        let store = StoreKind::Redis
            .connect_with(&server.url(), |o| {
                (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
            })
            .await;
        no_bucket_is_refilled(&store, &clock, emptied, async || {
            server.ask(emptied);
        })
        .await;
        // For the next one the server is as new.
        server.ask("FLUSHALL");
    }
}

/// The replica has the buckets as they were before they were used up, with the mark of the old master.
#[tokio::test]
async fn redis_replica_behind_is_promoted_and_refills_no_bucket() {
    if !available("redis-server") {
        return;
    }
    let (mut primary, clock) = (Redis::start(), clock());
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    let port = Arc::new(AtomicU16::new(primary.port));
    let url = format!("redis://127.0.0.1:{}", leading_to(&port));
    let store = StoreKind::Redis
        .connect_with(&url, |o| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
        })
        .await;
    clock.advance(super::HOUR);
    for limit in super::limits() {
        let _ = super::draw(&store, &limit, b"used").await;
    }
    wait_until("replicated buckets", || {
        // A replica that loads the primary's data does not respond.
        let copied = ask(replica.port, "DBSIZE");
        copied.is_some() && copied == ask(primary.port, "DBSIZE")
    });
    replica.ask("REPLICAOF NO ONE");
    no_bucket_is_refilled(&store, &clock, "a replica that is behind", async || {
        primary.kill();
        port.store(replica.port, Ordering::Release);
    })
    .await;
}

#[tokio::test]
async fn redis_restarted_from_an_old_file_refills_no_bucket() {
    if !available("redis-server") {
        return;
    }
    let (mut server, clock) = (Redis::start_with(&["--dbfilename", "dump.rdb"]), clock());
    let store = StoreKind::Redis
        .connect_with(&server.url(), |o| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
        })
        .await;
    for limit in super::limits() {
        let _ = super::draw(&store, &limit, b"used").await;
    }
    server.ask("SAVE");
    no_bucket_is_refilled(&store, &clock, "an old file", async || {
        server.kill();
        server.run();
    })
    .await;
}

#[tokio::test]
async fn redis_drained_bucket_that_takes_on_numbers_stays_drained() {
    if !available("redis-server") {
        return;
    }
    let (mut server, clock) = (Redis::start_with(&["--dbfilename", "dump.rdb"]), clock());
    let store = StoreKind::Redis
        .connect_with(&server.url(), |o| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
        })
        .await;
    drained_buckets_take_on_numbers(&store, &clock, async || {
        server.ask("SAVE");
        server.kill();
        server.run();
    })
    .await;
}
