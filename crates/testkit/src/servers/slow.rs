//! A network on which what a server sends arrives late.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The way to a server. From [`SlowNetwork::delay`] on, what the server sends arrives that late.
pub struct SlowNetwork {
    /// The port at which the server can be reached over it.
    pub port: u16,
    is_slow: Arc<AtomicBool>,
}

impl SlowNetwork {
    /// The way to the server at this port, not slow yet.
    ///
    /// # Panics
    /// When there is no port to listen at.
    pub fn to(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let is_slow = Arc::new(AtomicBool::new(false));
        let slow = Arc::clone(&is_slow);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                carry(client, server, Arc::clone(&slow), delay);
            }
        });
        Self { port, is_slow }
    }

    /// Makes it slow.
    pub fn delay(&self) {
        self.is_slow.store(true, Ordering::SeqCst);
    }
}

fn carry(client: TcpStream, server: TcpStream, slow: Arc<AtomicBool>, delay: Duration) {
    let (from_client, to_client) = (client.try_clone().expect("a handle"), client);
    let (from_server, to_server) = (server.try_clone().expect("a handle"), server);
    thread::spawn(move || {
        let (mut from, mut to) = (from_client, to_server);
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let (send, late) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut from_server = from_server;
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer) {
            let wait = match slow.load(Ordering::SeqCst) {
                true => delay,
                false => Duration::ZERO,
            };
            if send
                .send((Instant::now() + wait, buffer[..read].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    thread::spawn(move || {
        let mut to_client = to_client;
        for (due, bytes) in late {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
}
