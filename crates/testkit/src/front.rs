//! hyper's own HTTP/1 server in front of the gateway under test, for a second pass of the end-to-end suite
//! (`TOLLGATE_TEST_FRONT=hyper`).

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tollgate_gateway::{ConnectionService, Gateway, GatewayState};
use tollgate_net::listener::Address;
use tollgate_net::server::ConnInfo;

/// The environment variable by which the second pass is asked for.
pub const FRONT: &str = "TOLLGATE_TEST_FRONT";

/// A server of hyper's on a thread of its own; it stops when dropped.
pub struct Front {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Starts one before a gateway that is `shared` with our own server, where the second pass asks for it.
    pub fn start_if_asked(shared: &GatewayState) -> Option<Self> {
        std::env::var_os(FRONT)?;
        let (stop, stopped) = oneshot::channel();
        let (bound, address) = std::sync::mpsc::channel();
        let shared = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build_local(tokio::runtime::LocalOptions::default())
                .expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                bound
                    .send(listener.local_addr().expect("an address"))
                    .expect("a test waits for it");
                tokio::select! {
                    () = serve(&listener, &shared) => {}
                    _ = stopped => {}
                }
            });
        });
        Some(Self {
            address: address.recv().expect("it is bound"),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

async fn serve(listener: &TcpListener, shared: &GatewayState) {
    let gateway = Rc::new(Gateway::new(shared));
    let address = Arc::new(Address::Tcp(listener.local_addr().expect("an address")));
    loop {
        let (stream, peer) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let connection = ConnInfo {
            peer: Some(peer),
            direct: Some(peer),
            unnamed: false,
            listener: Arc::clone(&address),
            tls: None,
            http2: false,
            interim: None,
            window: None,
        };
        let service = ConnectionService::new(Rc::clone(&gateway), connection);
        tokio::task::spawn_local(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // A connection that breaks is the client's doing, or what a test is about.
            let _ = connection.await;
        });
    }
}
