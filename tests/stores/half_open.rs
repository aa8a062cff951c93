//! Connections that are dead without a sign of it: the network was away, or a firewall has forgotten them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tollgate_limit::Micros;
use tollgate_store::{RemoteOptions, RemoteStore};

use crate::faults::{PATIENCE, draw, recovers};
use crate::limits::bucket;
use crate::servers::{Pooler, Postgres, Server, StoreKind, eventually};

const HOUR: Micros = Micros::from_secs(3600);

/// A network that can go away. What is connected then, or connects meanwhile, never hears anything again.
struct Network {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    away: AtomicBool,
    /// Turns of going away: a connection belongs to one.
    turn: AtomicUsize,
    /// Connections that began while it was away and have not been given up.
    hanging: AtomicUsize,
    hanging_most: AtomicUsize,
}

impl Network {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let own = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = own.clone();
                std::thread::spawn(move || state.carry(client, server));
            }
        });
        Self { port, state }
    }

    fn go_away(&self) {
        self.state.turn.fetch_add(1, Ordering::SeqCst);
        self.state.away.store(true, Ordering::SeqCst);
    }

    fn come_back(&self) {
        self.state.away.store(false, Ordering::SeqCst);
    }
}

impl State {
    fn carry(self: Arc<Self>, mut client: TcpStream, server: u16) {
        let turn = self.turn.load(Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            let hanging = self.hanging.fetch_add(1, Ordering::SeqCst) + 1;
            self.hanging_most.fetch_max(hanging, Ordering::SeqCst);
            let _ = std::io::copy(&mut client, &mut std::io::sink());
            self.hanging.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let Ok(mut there) = TcpStream::connect(("127.0.0.1", server)) else {
            return;
        };
        let (mut back, mut to_client) = (there.try_clone().unwrap(), client.try_clone().unwrap());
        let state = self.clone();
        std::thread::spawn(move || {
            state.pass(&mut back, &mut to_client, turn);
            let _ = to_client.shutdown(std::net::Shutdown::Both);
        });
        self.pass(&mut client, &mut there, turn);
        let _ = there.shutdown(std::net::Shutdown::Both);
    }

    /// Passes on what is read, and loses it once the network has gone away.
    fn pass(&self, from: &mut TcpStream, to: &mut TcpStream, turn: usize) {
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if self.turn.load(Ordering::SeqCst) == turn && to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    }
}

/// The store is asked again as soon as it can be reached, whatever hangs.
async fn comes_back(store: &RemoteStore, network: &Network) {
    let limit = bucket("many", 0, 1 << 30, HOUR, 1 << 30);
    recovers(store, &limit).await;
    // Away and back at once: the dead connection is given up by its second silence, not by its third.
    network.go_away();
    network.come_back();
    let mut failures = 0;
    eventually("answer over a new connection", PATIENCE, async || {
        let answered = draw(store, &limit, b"k").await.is_ok();
        failures += u32::from(!answered);
        answered
    })
    .await;
    // How many fail before the new connection is there is a matter of the machine's load.
    assert!(failures >= 1, "the connection was not dead");
    // Away for long: an attempt that hangs does not keep the next from being made.
    network.go_away();
    eventually("failure", PATIENCE, async || {
        draw(store, &limit, b"k").await.is_err() && !store.health().up
    })
    .await;
    let most = async || network.state.hanging_most.load(Ordering::SeqCst) >= 3;
    eventually("attempts beside those that hang", PATIENCE, most).await;
    network.come_back();
    recovers(store, &limit).await;
}

pub async fn connection_is_replaced(server: Server) {
    let network = Network::to(server.port());
    replaced_through(server.kind(), &server.url_through(network.port), &network).await;
}

async fn replaced_through(kind: StoreKind, url: &str, network: &Network) {
    let change = |options: &mut RemoteOptions| {
        options.answer_within = Micros(300_000);
        options.local_refusals = false;
    };
    let store = kind.connect_with(url, change).await;
    comes_back(&store, network).await;
}

#[tokio::test]
async fn pgbouncer_half_open_connection_is_replaced_while_it_is_suspected() {
    if !Postgres::available() || !Pooler::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    let pooler = Pooler::start(&server);
    let network = Network::to(pooler.port);
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
        network.port
    );
    replaced_through(StoreKind::Postgres, &url, &network).await;
}
