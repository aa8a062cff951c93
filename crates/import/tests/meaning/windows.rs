//! Gateways that count in windows: Kong, Envoy's service, Caddy, HAProxy.

use super::*;

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
