//! Where the report says `equal`, a log through both meanings differs in no request: each gateway's documented
//! algorithm, written down plainly, against a replay through what was imported, verdict by verdict.

use std::collections::HashMap;
use std::fmt::Write;

use tollgate_config::Config;
use tollgate_import::{Imported, Outcome, Peer, Source, import};
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
    let source = Source {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    import(&[source], peer, &|_| Ok(Vec::new())).unwrap_or_else(|error| panic!("{error}"))
}

fn config(made: &Imported) -> Config {
    tollgate_config::parse(&made.toml, "made.toml", &|_| None, Timestamp::default())
        .unwrap_or_else(|error| panic!("{error}\n{}", made.toml))
}

/// Bursts, pauses and steady traffic of a few clients, with stamps that are multiples of `step`; `pace` times as dense
/// as once every 50 ms.
fn trace(seed: u64, step: u64, pace: u64) -> Vec<Request> {
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
        at += pause / pace / step * step + if random.u8(0..4) == 0 { step } else { 0 };
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
    pace: u64,
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
        assert_eq!(finding.outcome, Outcome::Equal, "{}", made.report());
    }
    let mut all = 0;
    for step in steps {
        for seed in 0..4 {
            let (differ, refused, _) = compared(&made, &trace(seed, *step, pace), model());
            assert_eq!(differ, 0, "seed {seed}, step {step}\n{}", made.toml);
            all += refused;
        }
    }
    assert!(all > 300, "the model refuses {all}: nothing is compared");
}

/// `limit_req`: excess in thousandths of a request, rounded down at each request; keys that were quiet for a minute
/// and owe nothing are forgotten.
struct Nginx {
    rate: i64,
    burst: i64,
    keys: HashMap<u8, (i64, u64)>,
}

impl Nginx {
    fn new(rate: i64, burst: i64) -> Self {
        Self {
            rate,
            burst: burst * 1_000,
            keys: HashMap::new(),
        }
    }

    /// The excess of a request, and what is kept if it is admitted. `None`: it is refused.
    fn excess(&mut self, request: Request) -> Option<i64> {
        let now = request.at / MILLISECOND;
        let rate = self.rate;
        let owes = |excess: i64, last: u64| excess - rate * (now - last).cast_signed() / 1_000;
        self.keys
            .retain(|_, (excess, last)| now - *last < 60_000 || owes(*excess, *last) > 0);
        let excess = match self.keys.get(&request.client) {
            None => 0,
            Some((excess, last)) => (owes(*excess, *last) + 1_000).max(0),
        };
        (excess <= self.burst).then_some(excess)
    }

    fn account(&mut self, request: Request, excess: i64) {
        self.keys
            .insert(request.client, (excess, request.at / MILLISECOND));
    }
}

fn nginx(zones: Vec<Nginx>) -> Model {
    let mut zones = zones;
    Box::new(move |request| {
        let found: Option<Vec<i64>> = zones.iter_mut().map(|zone| zone.excess(request)).collect();
        let Some(found) = found else { return false };
        zones
            .iter_mut()
            .zip(found)
            .for_each(|(zone, excess)| zone.account(request, excess));
        true
    })
}

fn nginx_conf(zones: &str, uses: &str) -> String {
    format!(
        "http {{ {zones}\nserver {{ listen 80; location / {{ {uses}\nproxy_pass http://127.0.0.1:3000; }} }} }}"
    )
}

#[test]
fn equal_nginx_rate_per_second_judges_every_request_alike() {
    let steps = [MILLISECOND, SECOND];
    for (rate, rest, burst) in [
        (2_u32, "burst=5 nodelay", 5),
        (1, "", 0),
        (10, "burst=7", 7),
        (5, "burst=4 delay=2", 4),
        (7, "burst=9 nodelay", 9),
    ] {
        let zone = format!("limit_req_zone $binary_remote_addr zone=a:10m rate={rate}r/s;");
        let text = nginx_conf(&zone, &format!("limit_req zone=a {rest};"));
        equal_at(
            "nginx.conf",
            &text,
            Peer::Nginx,
            &steps,
            u64::from(rate),
            &|| nginx(vec![Nginx::new(i64::from(rate) * 1_000, burst)]),
        );
    }
    let zones = "limit_req_zone $binary_remote_addr zone=a:10m rate=2r/s; limit_req_zone $remote_addr zone=b:10m rate=60r/m;";
    let text = nginx_conf(
        zones,
        "limit_req zone=a burst=3 nodelay; limit_req zone=b burst=20 nodelay;",
    );
    equal("nginx.conf", &text, Peer::Nginx, &steps, &|| {
        nginx(vec![Nginx::new(2_000, 3), Nginx::new(1_000, 20)])
    });
}

#[test]
fn differs_nginx_rate_per_minute_only_as_the_report_says() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:10m rate=50r/m;";
    let made = imported(
        "nginx.conf",
        &nginx_conf(zone, "limit_req zone=a burst=20 nodelay;"),
        Peer::Nginx,
    );
    let Outcome::Differs(differences) = &made.findings[0].outcome else {
        panic!("{}", made.report())
    };
    assert!(
        differences
            .iter()
            .all(|difference| difference.favour == tollgate_import::Favour::Clients)
    );
    assert!(
        made.report()
            .contains("833/1000 a second, 49.98 a minute; here it is 50 a minute, 0.04 % more"),
        "{}",
        made.report()
    );
    let mut differ_somewhere = false;
    for seed in 0..8 {
        let requests = trace(seed, MILLISECOND, 1);
        let (differ, theirs, ours) = compared(&made, &requests, nginx(vec![Nginx::new(833, 20)]));
        differ_somewhere |= differ > 0;
        // At most 0.04 % and 0.1 % more of what is admitted, and one request for each client's last moment.
        let admitted = requests.len() as u64 - theirs;
        assert!(
            ours <= theirs && theirs - ours <= admitted / 500 + 3,
            "seed {seed}: {theirs} and {ours}"
        );
    }
    assert!(
        differ_somewhere,
        "a report that says `differs` is about something"
    );
}

#[test]
fn equal_nginx_connections_judge_every_request_alike() {
    let zone = "limit_conn_zone $binary_remote_addr zone=c:10m;";
    equal(
        "nginx.conf",
        &nginx_conf(zone, "limit_conn c 2;"),
        Peer::Nginx,
        &[MILLISECOND],
        &|| in_flight(2),
    );
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

#[test]
fn equal_ingress_annotations_judge_every_request_alike() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: a\n  annotations:\n    \
                nginx.ingress.kubernetes.io/limit-rps: \"2\"\nspec:\n  rules:\n    - http:\n        paths:\n          \
                - path: /\n            pathType: Prefix\n            backend: {service: {name: a, port: {number: 80}}}\n";
    // Five times the rate is the burst.
    equal(
        "ingress.yaml",
        text,
        Peer::Ingress,
        &[MILLISECOND, SECOND],
        &|| nginx(vec![Nginx::new(2_000, 10)]),
    );
}

/// A token bucket in floating point that lets a request wait for half a token, and forgets idle clients.
fn traefik(rate: f64, burst: f64, longest: u64) -> Model {
    let mut keys: HashMap<u8, (f64, u64, u64)> = HashMap::new();
    Box::new(move |request| {
        let now = request.at;
        if keys
            .get(&request.client)
            .is_some_and(|(_, _, asked)| now - asked >= SECOND)
        {
            keys.remove(&request.client);
        }
        let (tokens, last, asked) = keys.entry(request.client).or_insert((burst, now, now));
        *asked = now;
        #[allow(clippy::cast_precision_loss)]
        let elapsed = (now - *last) as f64 / 1e6;
        let tokens_now = (*tokens + elapsed * rate).min(burst) - 1.0;
        (*tokens, *last) = (tokens_now, now);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wait = (-tokens_now / rate * 1e9).max(0.0) as u64;
        if wait > longest {
            *tokens += 1.0;
            return false;
        }
        true
    })
}

#[test]
fn equal_traefik_rates_judge_every_request_alike() {
    for (average, burst) in [(4_u32, 3_u32), (10, 9), (5, 1), (20, 10)] {
        let text = format!(
            "http:\n  routers:\n    a: {{rule: 'PathPrefix(`/`)', middlewares: [m], service: s}}\n  middlewares:\n    \
             m:\n      rateLimit:\n        average: {average}\n        burst: {burst}\n"
        );
        let longest = 1_000_000_000 / (u64::from(average) * 2);
        equal_at(
            "traefik.yml",
            &text,
            Peer::Traefik,
            &[MILLISECOND, SECOND, 1],
            u64::from(average),
            &|| traefik(f64::from(average), f64::from(burst), longest),
        );
    }
}

#[test]
fn equal_traefik_places_judge_every_request_alike() {
    let text = "[http.routers.a]\nrule = \"PathPrefix(`/`)\"\nmiddlewares = [\"m\"]\n\
                [http.middlewares.m.inFlightReq]\namount = 2\n[http.middlewares.m.inFlightReq.sourceCriterion.ipStrategy]\n";
    equal(
        "traefik.toml",
        text,
        Peer::Traefik,
        &[MILLISECOND, SECOND],
        &|| in_flight(2),
    );
}

/// Windows of the clock, each with its number, counted by `window_of`.
fn windows(limits: Vec<(fn(u64) -> u64, u64)>, counts_refused: bool) -> Model {
    let mut counts: HashMap<(usize, u8, u64), u64> = HashMap::new();
    Box::new(move |request| {
        let keys: Vec<_> = limits
            .iter()
            .enumerate()
            .map(|(index, (window, most))| {
                ((index, request.client, window(request.at / SECOND)), *most)
            })
            .collect();
        let fits = keys
            .iter()
            .all(|(key, most)| counts.get(key).copied().unwrap_or(0) < *most);
        if fits || counts_refused {
            keys.into_iter()
                .for_each(|(key, _)| *counts.entry(key).or_default() += 1);
        }
        fits
    })
}

/// The month that a second of UTC is in, counted from 1970 (civil calendar).
fn month(second: u64) -> u64 {
    let (mut days, mut month) = (second / 86_400, 0);
    loop {
        let year = 1970 + month / 12;
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let length = match month % 12 {
            1 => 28 + u64::from(leap),
            3 | 5 | 8 | 10 => 30,
            _ => 31,
        };
        if days < length {
            return month;
        }
        days -= length;
        month += 1;
    }
}

#[test]
fn equal_kong_windows_judge_every_request_alike() {
    let text = "_format_version: \"3.0\"\nservices:\n  - name: s\n    url: http://127.0.0.1:3000\n    routes:\n      - paths: [/]\n\
                plugins:\n  - name: rate-limiting\n    config: {second: 3, minute: 20, month: 700, limit_by: ip, policy: local}\n";
    equal("kong.yml", text, Peer::Kong, &[1, SECOND], &|| {
        windows(
            vec![
                (|second| second, 3),
                (|second| second / 60, 20),
                (month, 700),
            ],
            false,
        )
    });
}

#[test]
fn equal_envoy_windows_judge_every_request_alike() {
    for (unit, window) in [
        ("second", (|second| second) as fn(u64) -> u64),
        ("minute", |second| second / 60),
        ("hour", |second| second / 3_600),
        ("week", |second| second / 604_800),
        ("month", |second| second / 2_592_000),
    ] {
        let most = if unit == "second" { 3 } else { 30 };
        let text = format!(
            "domain: d\ndescriptors:\n  - key: remote_address\n    rate_limit: {{unit: {unit}, requests_per_unit: {most}}}\n"
        );
        equal("ratelimit.yaml", &text, Peer::Envoy, &[1, SECOND], &|| {
            windows(vec![(window, most)], true)
        });
    }
}

/// A ring of the last events: a request passes once the oldest is more than a window ago.
fn caddy(events: usize, window: u64) -> Model {
    let mut rings: HashMap<u8, Vec<u64>> = HashMap::new();
    Box::new(move |request| {
        let ring = rings.entry(request.client).or_default();
        let fits = ring.len() < events || request.at - ring[ring.len() - events] > window;
        if fits {
            ring.push(request.at);
        }
        fits
    })
}

#[test]
fn differs_caddy_windows_only_at_the_instant_that_the_report_names() {
    let text = ":8080 {\n rate_limit {\n  zone a {\n   key {remote_host}\n   events 20\n   window 10s\n  }\n }\n reverse_proxy 127.0.0.1:3000\n}\n";
    let made = imported("Caddyfile", text, Peer::Caddy);
    assert!(
        made.report().contains("exactly 10s after the event"),
        "{}",
        made.report()
    );
    for seed in 0..4 {
        // Odd microseconds: no two requests are exactly a window apart that is even in all but them.
        let mut requests = trace(seed, SECOND, 60);
        for (index, request) in requests.iter_mut().enumerate() {
            request.at += index as u64;
        }
        let (differ, refused, _) = compared(&made, &requests, caddy(20, 10 * SECOND));
        assert!(
            differ == 0 && refused > 50,
            "seed {seed}: {differ}, {refused}"
        );
    }
    let at = |second: u64| Request {
        at: 1_436_000_000 * SECOND + second * SECOND,
        lasting: 0,
        client: 1,
    };
    let mut requests = vec![at(0); 20];
    requests.push(at(10));
    assert_eq!(
        compared(&made, &requests, caddy(20, 10 * SECOND)),
        (1, 1, 0)
    );
}

/// A stick table's estimate: the previous period by the part of it that is still within one period, and this one;
/// refused requests count.
fn haproxy(most: u64, period: u64) -> Model {
    let mut keys: HashMap<u8, (u64, u64, u64)> = HashMap::new();
    Box::new(move |request| {
        let (start, current, previous) = keys.entry(request.client).or_insert((request.at, 0, 0));
        let passed = (request.at - *start) / period;
        if passed > 0 {
            *previous = if passed == 1 { *current } else { 0 };
            *current = 0;
            *start = if passed == 1 {
                *start + period
            } else {
                request.at
            };
        }
        *current += 1;
        let left = period - (request.at - *start);
        *current + *previous * left / period <= most
    })
}

#[test]
fn differs_haproxy_estimate_admits_no_less_over_a_trace() {
    let text = "frontend f\n bind :80\n stick-table type ip size 1m expire 1m store http_req_rate(10s)\n \
                http-request track-sc0 src\n http-request deny if { sc_http_req_rate(0) gt 20 }\n default_backend b\n\
                backend b\n server s 127.0.0.1:3000\n";
    let made = imported("haproxy.cfg", text, Peer::Haproxy);
    assert!(
        made.report()
            .contains("a client that goes on asking stays refused"),
        "{}",
        made.report()
    );
    for seed in 0..4 {
        let (_, theirs, ours) = compared(
            &made,
            &trace(seed, MILLISECOND, 1),
            haproxy(20, 10 * SECOND),
        );
        assert!(
            ours < theirs,
            "seed {seed}: {theirs} refused there, {ours} here"
        );
    }
}

#[test]
fn differs_nginx_held_requests_only_by_microseconds() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:10m rate=7r/s;";
    let text = nginx_conf(zone, "limit_req zone=a burst=9;");
    let made = imported("nginx.conf", &text, Peer::Nginx);
    assert!(
        made.report().contains("each waits up to 1 us longer"),
        "{}",
        made.report()
    );
    let mut all = 0;
    for seed in 0..4 {
        let (differ, ..) = compared(
            &made,
            &trace(seed, MILLISECOND, 7),
            nginx(vec![Nginx::new(7_000, 9)]),
        );
        assert!(differ < 10, "seed {seed}: {differ}");
        all += differ;
    }
    assert!(all > 0, "a report that says `differs` is about something");
}

#[test]
fn import_nginx_key_of_a_server_without_a_name_limits_no_request() {
    let zone = "limit_req_zone $server_name zone=a:10m rate=7r/s;";
    let made = imported(
        "nginx.conf",
        &nginx_conf(zone, "limit_req zone=a;"),
        Peer::Nginx,
    );
    let outcome = &made.findings[0].outcome;
    assert!(
        matches!(outcome, Outcome::Nothing(why) if why.contains("the key is empty")),
        "{}",
        made.report()
    );
    assert!(!made.toml.contains("[limits"), "{}", made.toml);
}
