//! Where the report says `equal`, a log through both meanings differs in no request: each gateway's documented
//! algorithm, written down plainly, against a replay through what was imported, verdict by verdict.

mod nginx;
mod traefik;
mod windows;

use std::collections::HashMap;
use std::fmt::Write;

use tollgate_config::Config;
use tollgate_import::{Difference, Imported, Outcome, Peer, SourceFile, import};
use tollgate_limit::Timestamp;
use tollgate_replay::Traffic;
use tollgate_replay::log::Options;

/// A request: its moment and its duration in microseconds, and its client.
#[derive(Clone, Copy, Debug)]
struct Request {
    at: u64,
    lasting: u64,
    client: u8,
}

/// What a gateway says of a request.
type Model = Box<dyn FnMut(Request) -> bool>;

fn imported(name: &str, text: &str, peer: Peer) -> Imported {
    let source = SourceFile {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    import(&[source], peer, &|_| Ok(Vec::new())).unwrap_or_else(|error| panic!("{error}"))
}

fn config(made: &Imported) -> Config {
    tollgate_config::parse(&made.toml, "made.toml", &|_| None, Timestamp::default())
        .unwrap_or_else(|error| panic!("{error}\n{}", made.toml))
}

/// Bursts, pauses and steady traffic of a few clients, with stamps that are multiples of `step`; `density` times as dense
/// as once every 50 ms.
fn trace(seed: u64, step: u64, density: u64) -> Vec<Request> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = 1_436_000_000_000_000 / step * step;
    let mut requests = Vec::new();
    while requests.len() < 3_000 {
        let pause = match random.u8(0..100) {
            0 => random.u64(30_000_000..200_000_000),
            1..8 => random.u64(500_000..5_000_000),
            8..50 => random.u64(0..200_000),
            _ => 0,
        };
        at += pause / density / step * step + if random.u8(0..4) == 0 { step } else { 0 };
        let lasting = random.u64(0..400_000) / step * step;
        requests.push(Request {
            at,
            lasting,
            client: random.u8(1..4),
        });
    }
    requests
}

/// A log of Tollgate with the model's verdicts.
fn log(requests: &[Request], model: &mut Model) -> (String, u64) {
    let (mut log, mut refused) = (String::new(), 0);
    for request in requests {
        let admitted = model(*request);
        refused += u64::from(!admitted);
        let (status, more) = match admitted {
            true => (200, ""),
            false => (429, ",\"refused\":true,\"reason\":\"denied\""),
        };
        let _ = writeln!(
            log,
            "{{\"time\":{}.{:06},\"status\":{status},\"method\":\"GET\",\"path\":\"/\",\"client\":\"192.0.2.{}\"{more},\"id\":\"-\",\"limits\":[{{\"name\":\"m\",\"cost\":1,\"outcome\":\"allow\"}}],\"duration_us\":{}}}",
            request.at / 1_000_000,
            request.at % 1_000_000,
            request.client,
            if admitted { request.lasting } else { 0 },
        );
    }
    (log, refused)
}

/// How many verdicts differ between the model and a replay, and how many each refuses.
fn compared(made: &Imported, requests: &[Request], mut model: Model) -> (u64, u64, u64) {
    let (log, refused) = log(requests, &mut model);
    let config = config(made);
    let mut traffic = Traffic::read_text(log.as_bytes(), &Options::default(), &[&config.policy]);
    assert_eq!(
        traffic.survey.requests,
        requests.len() as u64,
        "{}",
        &log[..300]
    );
    let outcome = traffic.replay();
    assert!(
        outcome
            .limits
            .iter()
            .all(|limit| limit.not_judged.is_none()),
        "{:?}",
        outcome.limits
    );
    assert_eq!(outcome.recorded.refused, refused);
    (outcome.recorded.differ, refused, outcome.refused)
}

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000;

#[track_caller]
fn equal(name: &str, text: &str, peer: Peer, steps: &[u64], model: &dyn Fn() -> Model) {
    equal_at(name, text, peer, steps, 1, model);
}

#[track_caller]
fn equal_at(
    name: &str,
    text: &str,
    peer: Peer,
    steps: &[u64],
    density: u64,
    model: &dyn Fn() -> Model,
) {
    let made = imported(name, text, peer);
    let limits: Vec<_> = made
        .findings
        .iter()
        .filter(|finding| finding.limit.is_some())
        .collect();
    assert!(!limits.is_empty(), "{}", made.report());
    for finding in limits {
        // Envoy's service knows no routes.
        let is_everywhere = |differences: &[Difference]| {
            let mut words = differences.iter().map(|difference| &difference.what);
            words.all(|words| words.contains("do not say which requests meet it"))
        };
        match &finding.outcome {
            Outcome::Differs(differences) if peer == Peer::Envoy && is_everywhere(differences) => {}
            outcome => assert_eq!(*outcome, Outcome::Equal, "{}", made.report()),
        }
    }
    let mut all = 0;
    for step in steps {
        for seed in 0..4 {
            let (differ, refused, _) = compared(&made, &trace(seed, *step, density), model());
            assert_eq!(differ, 0, "seed {seed}, step {step}\n{}", made.toml);
            all += refused;
        }
    }
    assert!(all > 300, "the model refuses {all}: nothing is compared");
}

/// So many requests at the same time.
fn in_flight(most: usize) -> Model {
    let mut running: HashMap<u8, Vec<u64>> = HashMap::new();
    Box::new(move |request| {
        let ends = running.entry(request.client).or_default();
        ends.retain(|end| *end > request.at);
        if ends.len() >= most {
            return false;
        }
        if request.lasting > 0 {
            ends.push(request.at + request.lasting);
        }
        true
    })
}
