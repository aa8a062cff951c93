//! A gateway with nothing but a forwarder in it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use http::{Request, Response};

use super::edits;
use super::wire::{DEADLINE, RawResponse, dial, read_response};
use crate::forward::body::{BodyOutcome, Guard, Guarded, Received};
use crate::forward::{ForwardContext, Forwarder, UpstreamHealth};
use crate::framing;
use crate::headers::{HeaderSet, RequestHeaders};
use crate::proxy_defaults::ProxyDefaults;
use crate::rejection::Rejection;
use tollgate_limit::Micros;
use tollgate_limiter::{Cause, Decision, Limiter};
use tollgate_net::listener::{Address, Listen, bind};
use tollgate_net::server::{ConnInfo, Handler, Inbound, ServerState, Settings, serve};
use tollgate_net::worker::Workers;
use tollgate_policy::routes::{HeaderEdits, HostPattern, Pattern, Route, Target};
use tollgate_policy::upstream::{
    Balance, Eject, HostPolicy, ProxyProtocol, Retry, Server, ServerAddress, TlsFiles, Upstream,
};
use tollgate_policy::{Policy, UpstreamTimeouts};
use tollgate_response::RefusalForm;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

/// Forwards everything to one upstream.
struct Relay {
    forwarder: Forwarder,
    limiter: Limiter,
    clock: Clock,
    upstream: Arc<Upstream>,
    policy: Arc<Policy>,
    defaults: Arc<ProxyDefaults>,
    causes: Arc<Mutex<Vec<Cause>>>,
}

impl Relay {
    async fn relay(
        &self,
        connection: &ConnInfo,
        mut request: Request<Inbound>,
    ) -> Result<Response<Guarded<NoGuard>>, Rejection> {
        let seen = RequestHeaders::of(request.headers());
        let form = framing::normalise(&mut request, &seen)?;
        // No limit claims anything: the limiter admits.
        let deciding = self.limiter.decide(&[], self.clock.now());
        let Some(Decision::Allow(permit)) = deciding.at_once() else {
            return Err(Rejection::Internal);
        };
        let route = &self.policy.routes[0];
        let forwarding = ForwardContext {
            connection,
            target: form,
            policy: &self.policy,
            defaults: &self.defaults,
            route,
            request_edits: edits::filled(&self.policy, &request, connection.peer()),
            caller: 0,
            body_max: route.body_max,
            received: Received::default(),
            verbatim: !connection.http2,
        };
        let forwarded = self
            .forwarder
            .forward(&permit, forwarding, &self.upstream, request)?
            .await?;
        self.record(forwarded.blame.cause);
        if let Some(tunnel) = forwarded.tunnel {
            tokio::task::spawn_local(async move {
                let task = tollgate_net::worker::Worker::current().map(|worker| worker.task());
                tunnel.run(task.as_ref()).await
            });
        }
        Ok(forwarded
            .response
            .map(|body| Guarded::bare(body).with(forwarded.verbatim)))
    }

    fn record(&self, cause: Cause) {
        self.causes.lock().expect("not poisoned").push(cause);
    }
}

/// A guard for responses whose end no test waits for.
struct NoGuard;

impl Guard for NoGuard {
    fn on_end(self, _: u64, _: BodyOutcome<'_>) {}
}

impl Handler for Relay {
    type Body = Guarded<NoGuard>;

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<Self::Body> {
        let asked = RefusalForm::of(
            &request,
            HeaderSet::of(request.headers()).decides_form(),
            false,
        );
        match self.relay(connection, request).await {
            Ok(response) => response,
            Err(rejection) => {
                self.record(rejection.cause());
                rejection.response(&asked, None, "").map(Guarded::bare)
            }
        }
    }
}

/// A running gateway; it stops when dropped.
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    workers: Workers,
    causes: Arc<Mutex<Vec<Cause>>>,
}

/// An upstream at `address` with short bounds.
pub(in crate::forward) fn upstream(address: SocketAddr) -> Upstream {
    Upstream {
        name: "test".into(),
        servers: vec![server(address)],
        balance: Balance::default(),
        timeouts: UpstreamTimeouts {
            connect: Micros::from_secs(5),
            response: Micros::from_secs(5),
            idle: Micros::from_secs(5),
            keep_alive: Micros::from_secs(5),
            total: None,
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
        eject: Eject {
            failures: 3,
            wait: Micros::from_secs(1),
        },
        retry: Retry {
            connect_failure: true,
            refused_stream: true,
            connection_closed: true,
            statuses: Vec::new(),
        },
        resolve_every: Micros::from_secs(5),
        slow_start: Micros::ZERO,
        proxy_protocol: ProxyProtocol::Off,
    }
}

pub(in crate::forward) fn server(address: SocketAddr) -> Server {
    Server {
        address: ServerAddress::Tcp(address.ip().to_string(), address.port()),
        tls: None,
        authority: address.to_string().parse().expect("an authority"),
        base_path: String::new(),
        weight: 1,
    }
}

/// `upstream` with one more server at `address`, in turn; one failure leaves a server out for a minute.
pub(super) fn in_turn(upstream: Upstream, address: SocketAddr) -> Upstream {
    let mut both = upstream;
    both.servers.push(server(address));
    both.balance = Balance::RoundRobin;
    both.eject = Eject {
        failures: 1,
        wait: Micros::from_secs(60),
    };
    both
}

/// The responses to this request, which is sent six times to `failing` and to a server at `well`, in
/// turn, and their causes.
pub(super) fn ask_six(
    failing: Upstream,
    well: SocketAddr,
    request: &str,
) -> (Vec<RawResponse>, Vec<Cause>) {
    let gateway = gateway(in_turn(failing, well));
    let responses = (0..6).map(|_| gateway.ask(request)).collect();
    (responses, gateway.causes())
}

pub(in crate::forward) fn route() -> Route {
    Route {
        name: "/**".into(),
        pattern: Pattern {
            methods: Vec::new(),
            host: HostPattern::Any,
            path: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
        },
        target: Target::Upstream(0),
        limits: Vec::new(),
        over_limit: Vec::new(),
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
    gateway_with(upstream, route, defaults())
}

/// What is asked of every request: silence for five seconds at most. It adds nothing to what the tests compare.
pub(super) fn defaults() -> ProxyDefaults {
    ProxyDefaults {
        body_idle: Micros::from_secs(5),
        upgrade_idle: Micros::from_secs(5),
        via: None,
        ..ProxyDefaults::default()
    }
}

/// A gateway in front of `upstream`, by `route`, that treats requests like this.
pub(super) fn gateway_with(upstream: Upstream, route: Route, defaults: ProxyDefaults) -> Gateway {
    gateway_of(upstream, route, defaults, UpstreamHealth::default())
}

/// A gateway in front of `upstream` that knows names and servers as `health` does.
pub(super) fn gateway_of(
    upstream: Upstream,
    route: Route,
    defaults: ProxyDefaults,
    health: UpstreamHealth,
) -> Gateway {
    let listen = Listen {
        address: Address::Tcp((Ipv4Addr::LOCALHOST, 0).into()),
        tls: None,
    };
    let bound = bind(&[listen], 1).expect("a free port");
    let Address::Tcp(address) = bound[0].address else {
        panic!("bound to TCP")
    };
    let (upstream, defaults) = (Arc::new(upstream), Arc::new(defaults));
    let policy = Arc::new(edits::policy(&upstream, route));
    let causes = Arc::<Mutex<Vec<Cause>>>::default();
    let recorded = Arc::clone(&causes);
    let workers = serve(
        bound,
        1,
        Arc::new(ServerState::new(Settings::default())),
        move |_| Relay {
            forwarder: Forwarder::of(health.clone()),
            limiter: Limiter::new(
                &[],
                Arc::new(Backend::None),
                Clock::system(),
                ColdStart::Full,
            ),
            clock: Clock::system(),
            upstream: Arc::clone(&upstream),
            policy: Arc::clone(&policy),
            defaults: Arc::clone(&defaults),
            causes: Arc::clone(&recorded),
        },
    )
    .expect("started");
    Gateway {
        address,
        workers,
        causes,
    }
}

impl Gateway {
    /// The party that caused the outcome of each request.
    pub(super) fn causes(&self) -> Vec<Cause> {
        self.causes.lock().expect("not poisoned").clone()
    }

    /// Tells it to go away, and returns when its worker has heard: then it listens no more.
    pub(super) fn drain(&self) {
        let grace = std::time::Duration::ZERO;
        self.workers.drain(tollgate_net::worker::Drain {
            span: DEADLINE,
            grace,
            handed_over: false,
        });
        while TcpStream::connect(self.address).is_ok() {
            std::thread::yield_now();
        }
    }

    pub(super) fn connect(&self) -> TcpStream {
        dial(self.address)
    }

    /// The response to `request`, on a connection of its own.
    pub(super) fn ask(&self, request: &str) -> RawResponse {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        read_response(&mut stream)
    }

    /// Everything sent back until the connection closes.
    pub(super) fn talk(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut out = Vec::new();
        // A reset after the response is an end too.
        let _ = stream.read_to_end(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}
