//! Pingora with what every proxy of the comparison has: a limit per `x-api-key`, an access log, forwarding fields, timeouts.
//!
//! `tollgate-bench-pingora PORT H2C_PORT UPSTREAM_PORT WORKERS LOG`

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::apps::HttpServerOptions;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use pingora_limits::rate::Rate;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

struct Gate {
    upstream: String,
    ample: Rate,
    log: Arc<Mutex<BufWriter<File>>>,
}

#[async_trait]
impl ProxyHttp for Gate {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn request_filter(&self, session: &mut Session, (): &mut ()) -> Result<bool> {
        let header = session.req_header();
        let key = header.headers.get("x-api-key").map_or(&b""[..], |value| value.as_bytes());
        let asked = self.ample.observe(&key, 1);
        if header.uri.path() == "/deny" || asked > 1_000_000_000 {
            session.respond_error(429).await?;
            return Ok(true);
        }
        Ok(false)
    }

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.upstream.as_str(), false, String::new());
        peer.options.connection_timeout = Some(Duration::from_secs(1));
        peer.options.read_timeout = Some(Duration::from_secs(30));
        peer.options.write_timeout = Some(Duration::from_secs(30));
        peer.options.idle_timeout = Some(Duration::from_secs(60));
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(&self, session: &mut Session, request: &mut RequestHeader, (): &mut ()) -> Result<()> {
        let client = session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip().to_string());
        let client = client.ok_or_else(|| Error::new(ErrorType::InternalError))?;
        let host = session.req_header().headers.get("host").cloned();
        request.insert_header("x-forwarded-for", client)?;
        request.insert_header("x-forwarded-proto", "http")?;
        if let Some(host) = host {
            request.insert_header("x-forwarded-host", host)?;
        }
        Ok(())
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, (): &mut ()) {
        let status = session.response_written().map_or(0, |response| response.status.as_u16());
        let request = session.req_header();
        let mut log = self.log.lock().expect("nobody panics with it");
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
        work_stealing: false,
        upstream_keepalive_pool_size: 512,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let log = Arc::new(Mutex::new(BufWriter::with_capacity(1 << 16, File::create(log).expect("a log"))));
    for (port, is_h2c) in [(port, false), (h2c, true)] {
        let gate = Gate {
            upstream: format!("127.0.0.1:{upstream}"),
            ample: Rate::new(Duration::from_secs(1)),
            log: log.clone(),
        };
        let mut service = http_proxy_service(&server.configuration, gate);
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
