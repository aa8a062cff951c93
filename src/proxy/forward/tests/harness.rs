//! A gateway with nothing but a forwarder in it, and scripted upstreams.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use http::{Request, Response};

use crate::clock::Clock;
use crate::limit::Micros;
use crate::limiter::{Decision, Limiter};
use crate::policy::route::{HeaderEdits, HostPattern, Pattern, Route, Target};
use crate::policy::upstream::{
    Balance, Eject, HostPolicy, ProxyProtocol, Retry, Server, ServerAddress, TlsFiles, Upstream,
};
use crate::policy::{FilledEdits, UpstreamTimeouts};
use crate::proxy::body::{Ended, Guard, Guarded, Received, ResponseBody};
use crate::proxy::conduct::Conduct;
use crate::proxy::forward::{Forwarder, Passage};
use crate::proxy::framing;
use crate::proxy::headers::{Present, Seen};
use crate::proxy::listener::{Address, Listen, bind};
use crate::proxy::rejection::{Asked, Rejection};
use crate::proxy::server::{ConnInfo, Handler, Inbound, Settings, Shared, serve};
use crate::proxy::worker::Workers;
use crate::store::Backend;
use crate::store::local::ColdStart;

/// No event of these tests takes longer.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Forwards everything to one upstream.
struct Relay {
    forwarder: Forwarder,
    limiter: Limiter,
    clock: Clock,
    upstream: Arc<Upstream>,
    route: Arc<Route>,
    conduct: Arc<Conduct>,
}

impl Relay {
    async fn answer(
        &self,
        connection: &ConnInfo,
        mut request: Request<Inbound>,
    ) -> Result<Response<Guarded<ResponseBody, Nobody>>, Rejection> {
        let seen = Seen::of(request.headers());
        let form = framing::admit(&mut request, &seen)?;
        // No limit claims anything: the limiter admits.
        let Some(Decision::Allow(permit)) = self.limiter.try_check(&[], self.clock.now()) else {
            return Err(Rejection::Internal);
        };
        let passage = Passage {
            peer: connection.peer(),
            trusted: false,
            present: form.present,
            host: form.host,
            route: &self.route,
            permit: &permit,
            request_edits: FilledEdits::default(),
            caller: 0,
            body_max: self.route.body_max,
            conduct: &self.conduct,
            interim: connection.interim.as_ref(),
            window: connection.window.as_ref(),
            received: Received::default(),
            verbatim: !connection.http2,
        };
        let forwarded = self.forwarder.forward(passage, &self.upstream, request)?.await?;
        if let Some(tunnel) = forwarded.tunnel {
            tokio::task::spawn_local(async move {
                let task = crate::proxy::worker::Worker::current().map(|worker| worker.task());
                tunnel.run(task.as_ref()).await
            });
        }
        Ok(forwarded.response.map(|body| Guarded::bare(body).with(forwarded.verbatim)))
    }
}

/// Nobody waits for the end of an answer.
struct Nobody;

impl Guard for Nobody {
    fn on_end(self, _: Ended<'_>) {}
}

impl Handler for Relay {
    type Body = Guarded<ResponseBody, Nobody>;

    async fn handle(&self, connection: &Rc<ConnInfo>, request: Request<Inbound>) -> Response<Self::Body> {
        let asked = Asked::of(&request, Present::of(request.headers()));
        match self.answer(connection, request).await {
            Ok(response) => response,
            Err(rejection) => rejection.respond(&asked, None, "").map(Guarded::bare),
        }
    }
}

/// A running gateway; it stops when dropped.
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    workers: Workers,
}

/// An upstream at `address` with short bounds.
pub(in crate::proxy::forward) fn upstream(address: SocketAddr) -> Upstream {
    Upstream {
        name: "test".into(),
        servers: vec![server(address)],
        balance: Balance::default(),
        timeouts: UpstreamTimeouts {
            connect: Micros::from_secs(5),
            response: Micros::from_secs(5),
            idle: Micros::from_secs(5),
        },
        idle_connections: 8,
        connections: 64,
        host: HostPolicy::Keep,
        http2: false,
        early_hints: false,
        attempts: 1,
        pending: 8,
        queue_timeout: Micros::from_secs(5),
        tls: TlsFiles::default(),
        health: None,
        eject: Eject { failures: 3, wait: Micros::from_secs(1) },
        retry: Retry::default(),
        total: None,
        resolve_every: Micros::from_secs(5),
        slow_start: Micros::ZERO,
        proxy_protocol: ProxyProtocol::Off,
    }
}

pub(in crate::proxy::forward) fn server(address: SocketAddr) -> Server {
    Server {
        address: ServerAddress::Tcp(address.ip().to_string(), address.port()),
        tls: None,
        authority: address.to_string().parse().expect("an authority"),
        base_path: String::new(),
        weight: 1,
    }
}

pub(in crate::proxy::forward) fn route() -> Route {
    Route {
        name: "/**".into(),
        pattern: Pattern { methods: Vec::new(), host: HostPattern::Any, path: Vec::new(), headers: Vec::new() },
        target: Target::Upstream(0),
        limits: Vec::new(),
        strip_prefix: None,
        add_prefix: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        refusal: None,
        body_max: None,
    }
}

/// A gateway in front of `upstream`.
pub(super) fn gateway(upstream: Upstream) -> Gateway {
    gateway_on(upstream, route())
}

/// A gateway in front of `upstream`, by `route`.
pub(super) fn gateway_on(upstream: Upstream, route: Route) -> Gateway {
    gateway_with(upstream, route, conduct())
}

/// What is asked of every request: silence for five seconds at most. It adds nothing to what the tests compare.
pub(super) fn conduct() -> Conduct {
    Conduct { body_idle: Micros::from_secs(5), upgrade_idle: Micros::from_secs(5), via: None, ..Conduct::default() }
}

/// A gateway in front of `upstream`, by `route`, that treats requests like this.
pub(super) fn gateway_with(upstream: Upstream, route: Route, conduct: Conduct) -> Gateway {
    let listen = Listen { address: Address::Tcp((Ipv4Addr::LOCALHOST, 0).into()), tls: None };
    let bound = bind(&[listen], 1).expect("a free port");
    let Address::Tcp(address) = bound[0].address else { panic!("bound to TCP") };
    let (upstream, route, conduct) = (Arc::new(upstream), Arc::new(route), Arc::new(conduct));
    let workers = serve(bound, 1, Arc::new(Shared::new(Settings::default())), move |_| Relay {
        forwarder: Forwarder::new(),
        limiter: Limiter::new(&[], Arc::new(Backend::None), Clock::system(), ColdStart::Full),
        clock: Clock::system(),
        upstream: Arc::clone(&upstream),
        route: Arc::clone(&route),
        conduct: Arc::clone(&conduct),
    })
    .expect("started");
    Gateway { address, workers }
}

impl Gateway {
    /// Tells it to go away, and returns when its worker has heard: then it listens no more.
    pub(super) fn drain(&self) {
        let grace = std::time::Duration::ZERO;
        self.workers.drain(crate::proxy::worker::Drain { span: DEADLINE, grace, handed_over: false });
        while TcpStream::connect(self.address).is_ok() {
            std::thread::yield_now();
        }
    }

    pub(super) fn connect(&self) -> TcpStream {
        dial(self.address)
    }

    /// The answer to `request`, on a connection of its own.
    pub(super) fn ask(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        read_answer(&mut stream)
    }

    /// Everything sent back until the connection closes.
    pub(super) fn talk(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut out = Vec::new();
        // A reset after the answer is an end too.
        let _ = stream.read_to_end(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

pub(super) fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream.set_write_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// An answer as it stood on the wire.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
    /// Whether the body ended as its framing says.
    pub(super) whole: bool,
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

pub(super) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (left, right) = line.split_once(':')?;
        left.eq_ignore_ascii_case(name).then(|| right.trim())
    })
}

/// Reads a head, up to and with its blank line.
pub(super) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Reads one answer, leaving the connection behind it.
pub(super) fn read_answer(stream: &mut impl Read) -> Answer {
    let head = read_head(stream).expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let (body, whole) = if status == 204 || status == 304 || status == 101 {
        (Vec::new(), true)
    } else if let Some(length) = field(&head, "content-length") {
        let length = length.parse().expect("a length");
        let mut body = Vec::new();
        let _ = stream.take(length).read_to_end(&mut body);
        let whole = body.len() as u64 == length;
        (body, whole)
    } else if field(&head, "transfer-encoding").is_some() {
        let mut body = Vec::new();
        let mut byte = [0];
        let mut whole = true;
        while !(body.ends_with(b"0\r\n\r\n") || is_end_with_trailers(&body)) {
            if stream.read_exact(&mut byte).is_err() {
                whole = false;
                break;
            }
            body.push(byte[0]);
        }
        (body, whole)
    } else {
        let mut body = Vec::new();
        let whole = stream.read_to_end(&mut body).is_ok();
        (body, whole)
    };
    Answer { status, head, body: String::from_utf8_lossy(&body).into_owned(), whole }
}

fn is_end_with_trailers(body: &[u8]) -> bool {
    body.ends_with(b"\r\n\r\n") && body.windows(5).any(|window| window == b"\r\n0\r\n")
}

/// An upstream that plays a script on each connection and records every byte it receives.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
    closed: mpsc::Receiver<usize>,
}

/// One connection of an [`Origin`].
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    /// Which connection, from 0.
    pub(super) index: usize,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Origin {
    /// Runs `script` on each connection, on a thread of its own. Errors of its sockets end it.
    pub(super) fn start(script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let records = Arc::new(Mutex::new(Vec::new()));
        let (tell, closed) = mpsc::channel();
        let (script, all) = (Arc::new(script), Arc::clone(&records));
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(DEADLINE)).expect("set");
                stream.set_write_timeout(Some(DEADLINE)).expect("set");
                all.lock().expect("not poisoned").push(Vec::new());
                let (script, tell) = (Arc::clone(&script), tell.clone());
                let mut conn = Conn { stream, index, records: Arc::clone(&all) };
                std::thread::spawn(move || {
                    let _ = script(&mut conn);
                    drop(conn);
                    let _ = tell.send(index);
                });
            }
        });
        Self { address, records, closed }
    }

    /// Takes one connection, listens no more, and runs `script` on it.
    pub(super) fn leaving(script: impl FnOnce(&mut Conn) -> io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let records = Arc::new(Mutex::new(vec![Vec::new()]));
        let (tell, closed) = mpsc::channel();
        let all = Arc::clone(&records);
        std::thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else { return };
            drop(listener);
            stream.set_read_timeout(Some(DEADLINE)).expect("set");
            stream.set_write_timeout(Some(DEADLINE)).expect("set");
            let mut conn = Conn { stream, index: 0, records: all };
            let _ = script(&mut conn);
            drop(conn);
            let _ = tell.send(0);
        });
        Self { address, records, closed }
    }

    /// Answers every request with the same bytes, connections kept.
    pub(super) fn answering(answer: &'static str) -> Self {
        Self::start(move |conn| {
            loop {
                conn.request()?;
                conn.send(answer)?;
            }
        })
    }

    /// What each connection has received.
    pub(super) fn records(&self) -> Vec<String> {
        let records = self.records.lock().expect("not poisoned");
        records.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// Waits until a script has ended.
    pub(super) fn wait_closed(&self) -> usize {
        self.closed.recv_timeout(DEADLINE).expect("a script ends")
    }
}

impl Conn {
    /// Receives some bytes; an error at the end.
    pub(super) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        let read = loop {
            match self.stream.read(&mut buffer) {
                // A signal is no end: a socket with a timeout reports it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.truncate(read);
        self.records.lock().expect("not poisoned")[self.index].extend_from_slice(&buffer);
        Ok(buffer)
    }

    /// Receives until what came ends with `end`.
    pub(super) fn until(&mut self, end: &str) -> io::Result<String> {
        let mut all = Vec::new();
        while !all.ends_with(end.as_bytes()) {
            all.extend(self.receive()?);
        }
        Ok(String::from_utf8_lossy(&all).into_owned())
    }

    /// Receives one request, whatever its framing.
    pub(super) fn request(&mut self) -> io::Result<String> {
        let mut all = Vec::new();
        loop {
            all.extend(self.receive()?);
            let text = String::from_utf8_lossy(&all).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let whole = if field(head, "transfer-encoding").is_some() {
                body.ends_with("0\r\n\r\n") || is_end_with_trailers(body.as_bytes())
            } else {
                body.len() >= field(head, "content-length").map_or(0, |length| length.parse().unwrap_or(0))
            };
            if whole {
                return Ok(text);
            }
        }
    }

    pub(super) fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())
    }
}

/// A plain answer.
pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
