//! A server that runs, and a raw client of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::by_path::ByPath;
use crate::listener::{Address, Listen, bind};
use crate::server::{ServerState, Settings, serve};
use crate::tls::ServerTls;
use crate::worker::Workers;

/// Far above what any of these takes.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) shared: Arc<ServerState>,
    pub(super) handler: ByPath,
    pub(super) workers: Workers,
}

pub(super) fn start(settings: Settings) -> Server {
    start_with(settings, None)
}

pub(super) fn start_with(settings: Settings, tls: Option<Arc<ServerTls>>) -> Server {
    let listen = Listen {
        address: Address::Tcp(([127, 0, 0, 1], 0).into()),
        tls,
    };
    let bound = bind(&[listen], 2).expect("a free port");
    let Address::Tcp(address) = bound[0].address else {
        panic!("bound to TCP")
    };
    let shared = Arc::new(ServerState::new(settings));
    let handler = ByPath {
        held: Arc::new(tokio::sync::Semaphore::new(0)),
        released: Arc::new(tokio::sync::Semaphore::new(0)),
        events: Arc::default(),
    };
    let each = handler.clone();
    let workers = serve(bound, 2, Arc::clone(&shared), move |_| each.clone()).expect("started");
    Server {
        address,
        shared,
        handler,
        workers,
    }
}

impl Server {
    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("set");
        stream.set_write_timeout(Some(DEADLINE)).expect("set");
        stream
    }

    /// How often the handler observed this.
    pub(super) fn observed(&self, event: &str) -> usize {
        let events = self.handler.events.lock().expect("no panic");
        events.iter().filter(|one| **one == event).count()
    }

    /// What the server sends until it closes.
    pub(super) fn talk(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("sent");
        read_to_end(&mut stream)
    }

    pub(super) fn await_held(&self, many: u32) {
        run(async {
            let held = tokio::time::timeout(DEADLINE, self.handler.held.acquire_many(many)).await;
            held.expect("held in time").expect("never closed").forget();
        });
    }
}

/// Runs `work` on a runtime of its own.
pub(super) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

pub(super) fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is an end like any other.
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("not closed in time")
        }
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

/// Reads one answer whose body has `body` bytes.
pub(super) fn read_answer(stream: &mut TcpStream, body: &str) -> String {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
        let read = stream.read_exact(&mut byte);
        read.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&answer)));
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..DEADLINE.as_millis() / 5 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not in time: {what}");
}
