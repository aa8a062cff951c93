//! What operators' tools cost a request while no operator reads:
//! `cargo bench --bench watched`. The same requests pass a gateway that keeps
//! nothing, one that keeps refusals and counts keys (the ring and the sketch), and one that also has
//! a thousand overrides of other keys. The rounds of all alternate, so that they are comparable on a
//! busy machine. Prints nanoseconds per request, the median of the rounds, and the median of the
//! differences in each round with their quartiles. Each request is parsed and answered by hyper over
//! a pipe in memory, which is the same for all.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tollgate_gateway::forward::UpstreamHealth;
use tollgate_gateway::proxy_defaults::ProxyDefaults;
use tollgate_gateway::refusals::Refusals;
use tollgate_gateway::{ConnectionService, Gateway, GatewayState, Snapshot};
use tollgate_limit::{Micros, Placement, Rate, key};
use tollgate_limiter::{Effect, Limiter, Override};
use tollgate_net::listener::Address;
use tollgate_net::server::ConnInfo;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_telemetry::metrics::Metrics;

const FILE: &str = r#"
[identities.caller]
key = ["header:x-key"]
when_missing = "refuse"

[limits.few]
rate = "1/day"
per = "caller"

[limits.plenty]
rate = "1000000000/second"
burst = 1000000
per = "caller"

[[routes]]
match = "/few"
respond = { status = 200, body = "{}" }
limits = ["few"]

[[routes]]
match = "/plenty"
respond = { status = 200, body = "{}" }
limits = ["plenty"]
"#;

/// Requests of a round, each of another key.
const CALLS: usize = 1_000;
const ROUNDS: usize = 400;
const OVERRIDES: usize = 1_000;

/// What a gateway has besides its limits.
#[derive(Clone, Copy, PartialEq)]
enum With {
    Nothing,
    Refusals,
    Overrides,
}

fn gateway(with: With) -> GatewayState {
    let clock = Clock::system();
    let config = tollgate_config::parse(FILE, "bench", &|_| None, clock.now());
    let policy = config.expect("a valid file").policy;
    let limiter = Limiter::new(
        &policy.limits,
        Arc::new(Backend::None),
        clock.clone(),
        ColdStart::Full,
    );
    if with == With::Overrides {
        let others = (0..OVERRIDES).map(|other| {
            let limit = &policy.limits[other % 2];
            let other = key::identity([format!("other-{other}").as_bytes()]);
            Override {
                limit: Arc::clone(&limit.name),
                placement: Placement::Local,
                bucket: limiter.bucket_hash(limit, &other).expect("a name"),
                effect: Effect::Numbers {
                    rate: Some(Rate::new(5, Micros::from_secs(1))),
                    burst: None,
                },
                since: clock.now(),
                until: clock.now().after(Micros::from_secs(3_600)),
            }
        });
        limiter.put_overrides(others);
    }
    let metrics = Metrics::new(clock.now().as_micros());
    let snapshot = Snapshot::new(policy, limiter, &metrics, ProxyDefaults::default());
    GatewayState {
        current: Arc::new(ArcSwap::from_pointee(snapshot)),
        clock,
        metrics,
        access: None,
        refusals: (with != With::Nothing).then(|| Refusals::new(1)),
        requests: Arc::default(),
        held: Arc::default(),
        held_bodies: Arc::default(),
        under_way: Arc::default(),
        untrusted_proxy: Arc::default(),
        health: UpstreamHealth::default(),
        #[cfg(feature = "otlp")]
        spans: None,
    }
}

/// A connection to a gateway on this thread.
fn connect(shared: &GatewayState) -> DuplexStream {
    let (client, server) = duplex(4 << 20);
    let peer: SocketAddr = ([127, 0, 0, 1], 1).into();
    let connection = ConnInfo {
        peer: Some(peer),
        direct: Some(peer),
        unnamed: false,
        listener: Arc::new(Address::Tcp(peer)),
        tls: None,
        http2: false,
        interim: None,
        window: None,
    };
    let service = ConnectionService::new(Rc::new(Gateway::new(shared)), connection);
    tokio::task::spawn_local(async move {
        let served = http1::Builder::new()
            .pipeline_flush(true)
            .serve_connection(TokioIo::new(server), service);
        served.await.expect("the pipe stays open");
    });
    client
}

fn requests(path: &str) -> Vec<u8> {
    let one = |key| format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-key: key-{key}\r\n\r\n");
    (0..CALLS)
        .map(one)
        .collect::<Vec<_>>()
        .concat()
        .into_bytes()
}

/// Sends all requests at once and reads all responses; returns nanoseconds per request.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn round(stream: &mut DuplexStream, requests: &[u8], status: &[u8]) -> f64 {
    let start = Instant::now();
    stream.write_all(requests).await.expect("the pipe has room");
    let (mut read, mut seen, mut found) = (Vec::with_capacity(1 << 20), 0, 0);
    while found < CALLS || !read.trim_ascii_end().ends_with(b"}") {
        stream.read_buf(&mut read).await.expect("a response");
        let unseen = read.get(seen..).unwrap_or_default();
        found += unseen
            .windows(status.len())
            .filter(|window| *window == status)
            .count();
        // A status line that is cut in two is seen with the next part.
        seen = (read.len() + 1).saturating_sub(status.len()).max(seen);
    }
    start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}

async fn measure() {
    let all = [With::Nothing, With::Refusals, With::Overrides];
    let mut streams = all.map(|with| connect(&gateway(with)));
    for (path, status, words) in [
        ("/plenty", &b"HTTP/1.1 200"[..], "admitted"),
        ("/few", b"HTTP/1.1 429", "refused"),
    ] {
        let requests = requests(path);
        if path == "/few" {
            for stream in &mut streams {
                round(stream, &requests, b"HTTP/1.1 200").await;
            }
        }
        let mut rounds = all.map(|_| Vec::with_capacity(ROUNDS));
        for number in 0..ROUNDS {
            // Each comes first in a third of the rounds: the caches are those of the one before.
            for turn in 0..all.len() {
                let which = (number + turn) % all.len();
                rounds[which].push(round(&mut streams[which], &requests, status).await);
            }
        }
        let [nothing, kept, overridden] = rounds;
        println!("{words}:");
        println!("{:8.0} ns  without", quartiles(nothing.clone())[1]);
        told("with the ring and the sketch", &kept, &nothing);
        let overrides = format!("and {OVERRIDES} overrides of other keys");
        told(&overrides, &overridden, &kept);
    }
}

/// Prints the rounds of a gateway, and by how much they took longer than those of another.
fn told(what: &str, rounds: &[f64], others: &[f64]) {
    let differences = rounds.iter().zip(others).map(|(this, other)| this - other);
    let [low, middle, high] = quartiles(differences.collect());
    let median = quartiles(rounds.to_vec())[1];
    println!("{median:8.0} ns  {what}: {middle:+.0} ns [{low:+.0} to {high:+.0}]");
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, measure());
}
