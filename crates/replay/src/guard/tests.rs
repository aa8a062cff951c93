//! The guard's verdicts against those of the limiter that serves.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::Traffic;
use crate::log::{Fields, Options};
use tollgate_config::Config;
use tollgate_gateway::recent::{Drawing, Recent};
use tollgate_limit::Timestamp;
use tollgate_policy::Peer;

fn config(text: &str) -> Config {
    tollgate_config::parse(text, "test.toml", &|_| None, Timestamp::default()).expect("a good file")
}

/// A file with two routes; the second has a limit that all share, too.
fn file(first: &str, second: &str) -> Config {
    config(&format!(
        "[limits.one]\n{first}\nper = \"address\"\n[limits.all]\n{second}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/a\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n\
         [[routes]]\nmatch = \"/b\"\nupstream = \"builtin:echo\"\nlimits = [\"one\", \"all\"]\n"
    ))
}

/// Records requests as workers do: when, from which client, to which path and with which API key.
fn record<'r>(
    recent: &Recent,
    recorders: &[tollgate_gateway::recent::Recorder],
    policy: &Policy,
    requests: impl Iterator<Item = (u64, u8, &'static str, &'r str)>,
) {
    let numbers = recent.numbers(policy, 1 << 20).expect("it records");
    for (place, (at, client, path, key)) in requests.enumerate() {
        let (uri, mut headers) = (Uri::from_static(path), HeaderMap::new());
        headers.insert("x-api-key", key.parse().expect("a header"));
        let client = IpAddr::V4(Ipv4Addr::new(192, 0, 2, client));
        let peer = Peer {
            address: Some(client),
            port: 0,
            tls: false,
            unnamed: false,
        };
        let described = policy
            .describe(Some("x"), &Method::GET, &uri, &headers, peer, None)
            .expect("it is good");
        let matched = policy.route(&described).expect("a route");
        let who = policy.identify(&matched, &described, 0).expect("known");
        let claims = policy.claims(&matched, &who, &headers, Some(0));
        let drawing = Drawing {
            at: Timestamp::from_micros(at),
            route: matched.route,
            client: Some(client),
            who: &who,
            claims: &claims,
        };
        recorders[place % recorders.len()].record(&numbers, policy, &drawing);
    }
}

/// Requests without a caller, to the first route or the second.
fn paths(
    requests: &[(u64, u8, bool)],
) -> impl Iterator<Item = (u64, u8, &'static str, &'static str)> {
    requests
        .iter()
        .map(|(at, client, second)| (*at, *client, if *second { "/b" } else { "/a" }, "none"))
}

/// What the limiter that serves refuses newly: requests.
fn by_replay(requests: &[(u64, u8, bool)], old: &Config, new: &Config) -> u64 {
    let mut text = String::from("t,client,path\n");
    for (at, client, second) in requests {
        let path = if *second { "/b" } else { "/a" };
        let _ = writeln!(text, "{at},192.0.2.{client},{path}");
    }
    let options = Options {
        fields: Some(Fields::parse("time=t,client=client,path=path").expect("a mapping")),
        ..Options::default()
    };
    let policies = [&*new.policy, &*old.policy];
    let mut traffic = Traffic::read_text(text.as_bytes(), &options, &policies);
    assert_eq!(traffic.survey.requests, requests.len() as u64);
    traffic
        .replay()
        .against
        .expect("two policies")
        .newly_refused
        .requests
}

const NUMBERS: [&str; 6] = [
    "rate = \"3/second\"\nburst = 2",
    "rate = \"2/second\"\nburst = 5\nalgorithm = \"interval\"",
    "rate = \"4/second\"\nalgorithm = \"fixed_window\"",
    "rate = \"4/second\"\nalgorithm = \"sliding_window\"",
    "rate = \"3/second\"\nalgorithm = \"sliding_log\"",
    "rate = \"1/second\"\nburst = 1\nmode = \"shadow\"",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn guard_agrees_with_the_limiter_that_serves(
        steps in prop::collection::vec((0_u64..400_000, 1_u8..6, any::<bool>()), 1..200),
        numbers in prop::array::uniform4(0_usize..6),
        workers in 1_usize..4,
    ) {
        let mut at = 1_700_000_000_000_000;
        let requests: Vec<_> = steps.iter().map(|(step, client, second)| { at += step; (at, *client, *second) }).collect();
        let old = file(NUMBERS[numbers[0]], NUMBERS[numbers[1]]);
        let new = file(NUMBERS[numbers[2]], NUMBERS[numbers[3]]);
        let recent = Recent::default();
        let recorders: Vec<_> = (0..workers).map(|_| recent.recorder()).collect();
        record(&recent, &recorders, &old.policy, paths(&requests));
        let judged = judge(&recent.requests(), &old.policy, &new.policy, 1_000);
        prop_assert_eq!(judged.requests, requests.len() as u64);
        prop_assert_eq!(judged.newly_refused, by_replay(&requests, &old, &new));
        let unchanged = judge(&recent.requests(), &old.policy, &old.policy, 1_000);
        prop_assert_eq!(unchanged.newly_refused, 0);
    }
}

#[test]
fn guard_shares_are_compared_exactly_and_by_limit() {
    let judged = Judged {
        requests: 1_000,
        newly_refused: 10,
        limits: [("one".to_owned(), [100, 1]), ("two".to_owned(), [10, 1])].into(),
        ..Judged::default()
    };
    assert!(!judged.exceeds(100, false), "10 of 1,000 are 1 %");
    assert!(judged.exceeds(99, false));
    assert!(!judged.exceeds(1_000, true), "1 of 10 keys is 10 %");
    assert!(judged.exceeds(999, true));
    assert!(!Judged::default().exceeds(0, true));
}

#[test]
fn guard_of_a_ring_that_overflows_keeps_the_newest_and_stays_within_its_bytes() {
    let (old, new) = (
        file("rate = \"9/second\"", "rate = \"9999/second\""),
        file("rate = \"1/minute\"", "rate = \"9999/second\""),
    );
    let recent = Recent::default();
    let recorders = [recent.recorder(), recent.recorder()];
    let requests: Vec<_> = (0..100_000_u64)
        .map(|number| {
            (
                1_700_000_000_000_000 + number * 200_000,
                u8::try_from(number % 250).unwrap_or(0),
                number % 3 == 0,
            )
        })
        .collect();
    record(&recent, &recorders, &old.policy, paths(&requests));
    let held = recent.requests();
    let (mut count, mut first, mut last, mut words) = (0, u64::MAX, 0, 0);
    held.each(|seen| {
        assert!(seen.at.as_micros() >= last, "in the order of time");
        last = seen.at.as_micros();
        first = first.min(last);
        count += 1;
        words += 3 + 2 * seen.len();
    });
    assert_eq!(last, requests[requests.len() - 1].0, "the newest is kept");
    assert!(count > 10_000 && words * 8 <= 1 << 20, "{count} {words}");
    assert!(first > requests[requests.len() / 2].0, "the oldest are not");
    // Fewer buckets than there are keys: what is beyond is said, and nothing else changes.
    let few = judge(&held, &old.policy, &new.policy, 10);
    assert!(
        few.unknown > 0 && few.requests > 0 && few.unknown + few.requests == count,
        "{few:?}"
    );
    let all = judge(&held, &old.policy, &new.policy, 1_000);
    assert_eq!((all.unknown, all.requests), (0, count));
    assert!(all.newly_refused > 0 && all.hits.len() == 10);
    assert!(recent.numbers(&old.policy, 0).is_none(), "off");
    assert_eq!(
        judge(&recent.requests(), &old.policy, &new.policy, 1_000),
        Judged::default()
    );
}

/// Two callers at one address, one of them of another tier: they draw from one bucket, whose units
/// are not those of the other tier's numbers.
#[test]
fn guard_bucket_that_two_tiers_draw_from_keeps_its_units() {
    let file = |rate: &str, tier: &str| {
        config(&format!(
            "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
             [identities.tenant.callers]\n\
             \"sha256:ad95d5fa651ba86d8923fe1238d24a4f1988a752acfe426ac72ac7c04471bc17\" = {{ name = \"free\" }}\n\"sha256:07ed400759a0f606a8b5bfa84712aabe7d1b1c45cb6536c8a5727446b6647b84\" = {{ name = \"pro\", tier = \"pro\" }}\n\
             [tiers.pro]\none = {{ {tier} }}\n[limits.one]\n{rate}\nper = \"address\"\n\
             [[routes]]\nmatch = \"/a\"\nupstream = \"builtin:echo\"\nlimits = [\"one\", \"each\"]\n\
             [limits.each]\nrate = \"9999/hour\"\nper = \"tenant\"\n"
        ))
    };
    let wide = "rate = \"1000/hour\"";
    let old = file(wide, wide);
    let new = file("rate = \"10/hour\"", "rate = \"100/hour\"");
    // Which caller comes how often, and how many of these requests the new file refuses.
    let traces: [(&[(&str, u64)], u64); 3] = [
        (&[("pro", 95), ("free", 8)], 3),
        (&[("free", 9), ("pro", 3)], 2),
        (&[("pro", 50), ("free", 10), ("pro", 5)], 5),
    ];
    for (trace, refused) in traces {
        let (recent, mut at) = (Recent::default(), 1_700_000_000_000_000);
        let requests = trace
            .iter()
            .flat_map(|(key, count)| (0..*count).map(move |_| *key))
            .map(|key| {
                at += 1;
                (at, 1, "/a", key)
            });
        let recorders = [recent.recorder()];
        record(&recent, &recorders, &old.policy, requests);
        let judged = judge(&recent.requests(), &old.policy, &new.policy, 1_000);
        assert_eq!(judged.newly_refused, refused, "{trace:?}: {judged:?}");
    }
}
