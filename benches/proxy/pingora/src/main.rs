//! Pingora limiting per `x-api-key`: `/deny` admits a key once a day, other paths have a limit that never trips.
//!
//! `tollgate-bench-pingora PORT H2C_PORT UPSTREAM_PORT WORKERS LOG`; with a LOG of `-` it writes no access log and sends no
//! forwarding headers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::apps::HttpServerOptions;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_limits::rate::Rate;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

type Log = Arc<Mutex<BufWriter<File>>>;

/// What both listeners share.
#[derive(Clone)]
struct Gate {
    upstream: SocketAddr,
    ample: Arc<Rate>,
    once: Arc<Rate>,
    /// Made once: a refusal only copies it.
    refusal: ResponseHeader,
    /// `None`: lean.
    log: Option<Log>,
}

#[async_trait]
impl ProxyHttp for Gate {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn request_filter(&self, session: &mut Session, (): &mut ()) -> Result<bool> {
        let header = session.req_header();
        let key = header.headers.get("x-api-key").map_or(&b""[..], |value| value.as_bytes());
        let refused = if header.uri.path() == "/deny" {
            self.once.observe(&key, 1) > 1
        } else {
            self.ample.observe(&key, 1) > 1_000_000_000
        };
        if refused {
            // Not `respond_error`, which closes the client's connection.
            session.write_response_header(Box::new(self.refusal.clone()), true).await?;
        }
        Ok(refused)
    }

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.upstream, false, String::new());
        peer.options.connection_timeout = Some(Duration::from_secs(1));
        peer.options.read_timeout = Some(Duration::from_secs(30));
        peer.options.write_timeout = Some(Duration::from_secs(30));
        peer.options.idle_timeout = Some(Duration::from_secs(60));
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        (): &mut (),
    ) -> Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        let client =
            session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip().to_string());
        let client = client.ok_or_else(|| Error::new(ErrorType::InternalError))?;
        let header = session.req_header();
        // Over HTTP/2 the host is in the target.
        let host = header.headers.get("host").map(|host| host.as_bytes().to_vec());
        let host = host.or_else(|| header.uri.authority().map(|host| host.as_str().as_bytes().to_vec()));
        request.insert_header("x-forwarded-for", client)?;
        request.insert_header("x-forwarded-proto", "http")?;
        if let Some(host) = host {
            request.insert_header("x-forwarded-host", host)?;
        }
        Ok(())
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, (): &mut ()) {
        let Some(log) = &self.log else { return };
        let status = session.response_written().map_or(0, |response| response.status.as_u16());
        let request = session.req_header();
        let mut log = log.lock().expect("no thread panics while it holds the lock");
        let _ = writeln!(log, "{} {} {status} {}", request.method, request.uri, session.body_bytes_sent());
    }
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [port, h2c, upstream, workers, log] = given.as_slice() else {
        panic!("PORT H2C_PORT UPSTREAM_PORT WORKERS LOG");
    };
    let conf = ServerConf {
        threads: workers.parse().expect("a number"),
        // A thread keeps its connections: cheaper here than the default, which moves work between threads.
        work_stealing: false,
        // More than the clients there are.
        upstream_keepalive_pool_size: 2048,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let log: Option<Log> = (log != "-").then(|| {
        // Lines are gathered, and written 64 KiB at a time or after a second, as NGINX does with `buffer` and `flush`.
        let log = Arc::new(Mutex::new(BufWriter::with_capacity(1 << 16, File::create(log).expect("a log"))));
        let flushed = Arc::clone(&log);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let _ = flushed.lock().expect("no thread panics while it holds the lock").flush();
            }
        });
        log
    });
    let mut refusal = ResponseHeader::build(429, Some(2)).expect("a status");
    refusal.insert_header("content-length", "0").expect("a header");
    refusal.insert_header("retry-after", "60").expect("a header");
    let gate = Gate {
        upstream: format!("127.0.0.1:{upstream}").parse().expect("a port"),
        ample: Arc::new(Rate::new(Duration::from_secs(1))),
        once: Arc::new(Rate::new(Duration::from_secs(86_400))),
        refusal,
        log,
    };
    for (port, is_h2c) in [(port, false), (h2c, true)] {
        let mut service = http_proxy_service(&server.configuration, gate.clone());
        if is_h2c {
            let mut options = HttpServerOptions::default();
            options.h2c = true;
            service.app_logic_mut().expect("just made").server_options = Some(options);
        }
        service.add_tcp(&format!("127.0.0.1:{port}"));
        server.add_service(service);
    }
    server.run_forever();
}
