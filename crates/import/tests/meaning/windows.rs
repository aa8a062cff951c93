//! Gateways that count in windows: Kong and Envoy's service.

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

/// Istio's examples call the descriptor of `:path` `PATH`; as a header of that name it would never count.
#[test]
fn envoy_descriptor_of_the_request_line_is_a_route_however_it_is_spelt() {
    for key in ["PATH", "Path", ":path", "path"] {
        let text = format!(
            "domain: edge\ndescriptors:\n\
             - key: {key}\n  value: /page\n  rate_limit: {{ unit: minute, requests_per_unit: 1, name: page }}\n\
             - key: {key}\n  rate_limit: {{ unit: minute, requests_per_unit: 100, name: others }}\n"
        );
        let made = imported("ratelimit.yaml", &text, Peer::Envoy);
        let policy = config(&made).policy;
        let limits = |path: &str| {
            let route = policy.routes.iter().find(|route| &*route.name == path);
            let limits = route.into_iter().flat_map(|route| &route.limits);
            let name = |limit: usize| policy.rules[limit].name.to_string();
            limits.map(|limit| name(limit.rule)).collect::<Vec<_>>()
        };
        assert_eq!(limits("/page"), ["page"], "{key}: {}", made.toml);
        assert_eq!(limits("/**"), ["others"], "{key}: {}", made.toml);
        assert!(!made.toml.contains("header:"), "{}", made.toml);
    }
}
