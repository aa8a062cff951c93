//! How many lines of a combined log are read in a second of CPU time, alone, with the frontier, and judged; how long a
//! guarded reload takes.
//!
//! `cargo bench -p tollgate-replay`

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, Method, Uri};
use rustix::time::{ClockId, clock_gettime};
use tollgate_gateway::recent::{Drawing, Recent};
use tollgate_limit::Timestamp;
use tollgate_policy::Peer;
use tollgate_replay::Traffic;
use tollgate_replay::guard::judge;
use tollgate_replay::log::{Options, read_text};
use tollgate_replay::suggest::{Ask, suggest};

fn main() {
    guard();
    let mut text = String::new();
    for number in 0..LINES {
        let second = number / 50;
        let _ = writeln!(
            text,
            "10.{}.{}.{} - - [{:02}/May/2015:{:02}:{:02}:{:02} +0000] \"GET /presentations/{number}/images/kibana-search.png HTTP/1.1\" 200 {} \"http://semicomplete.com/presentations/\" \"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko)\"",
            number % 3,
            number * 7 % 251,
            number * 13 % 199,
            17 + second / 86_400,
            second / 3_600 % 24,
            second / 60 % 60,
            second % 60,
            number % 9_999
        );
    }
    let options = Options::default();
    measure("read", || {
        let survey = read_text(text.as_bytes(), &options, |_, _| {});
        assert_eq!(survey.requests, LINES);
    });
    let quick = tollgate_config::quick("builtin:echo", "1/second", "address");
    let config =
        tollgate_config::parse(&quick, "bench", &|_| None, Timestamp::default()).expect("a policy");
    measure("read and frontier", || {
        let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&config.policy]);
        let ask = Ask {
            rates: Vec::new(),
            refuse: 1_000,
            rule: 0,
            today: None,
        };
        let suggestion = suggest(&mut traffic, "address", ask).expect("a frontier");
        assert_eq!(suggestion.requests, LINES);
    });
    measure("read and replay", || {
        let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&config.policy]);
        let outcome = traffic.replay();
        assert_eq!(outcome.admitted + outcome.refused, LINES);
    });
}

/// Ten million recent requests of 100,000 clients, recorded as a worker does and judged by two files.
fn guard() {
    let quick = |rate: &str| tollgate_config::quick("builtin:echo", rate, "address");
    let parse = |text: &str| {
        tollgate_config::parse(text, "bench", &|_| None, Timestamp::default()).expect("a policy")
    };
    let (old, new) = (parse(&quick("100/minute")), parse(&quick("50/minute")));
    let (recent, policy) = (Recent::default(), &old.policy);
    let numbers = recent.numbers(policy, 512 << 20).expect("on");
    let recorder = recent.recorder();
    let (uri, headers) = (Uri::from_static("/"), HeaderMap::new());
    let mut took = 0;
    for number in 0..CLIENTS {
        let client = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number * 37 % CLIENTS));
        let peer = Peer {
            address: Some(client),
            port: 0,
            tls: false,
            unnamed: false,
        };
        let described = policy
            .describe(Some("x"), &Method::GET, &uri, &headers, peer, None)
            .expect("good");
        let matched = policy.route(&described).expect("a route");
        let who = policy.identify(&matched, &described, 0).expect("known");
        let claims = policy.claims(&matched, &who, &headers, Some(0));
        let before = cpu();
        for again in 0..100_u64 {
            let drawing = Drawing {
                at: Timestamp::from_micros(
                    1_700_000_000_000_000 + u64::from(number) * 600 + again * 6,
                ),
                route: matched.route,
                client: Some(client),
                who: &who,
                claims: &claims,
            };
            recorder.record(&numbers, policy, &drawing);
        }
        took += cpu() - before;
    }
    println!("record: {} ns a request", took * 1_000 / RECENT);
    let requests = recent.requests();
    for (what, new) in [("another rate", &new), ("the same file", &old)] {
        let before = cpu();
        let judged = judge(&requests, policy, &new.policy, 10_000_000);
        assert_eq!(judged.requests, RECENT);
        println!(
            "judge {RECENT} recent requests by {what}: {} ms, {} newly refused",
            (cpu() - before) / 1_000,
            judged.newly_refused
        );
    }
}

fn measure(what: &str, run: impl Fn()) {
    run();
    let before = cpu();
    run();
    let took = cpu() - before;
    println!("{what}: {} lines a second", LINES * 1_000_000 / took.max(1));
}

/// CPU time of this process, microseconds: other work on the machine does not count.
fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000
}

const LINES: u64 = 1_000_000;
const CLIENTS: u32 = 100_000;
const RECENT: u64 = 10_000_000;
