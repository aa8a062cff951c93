//! The numbers that are suggested for a log, and a replay of it with them.

use super::*;
use crate::suggest::Corner;

fn bursts(corners: &[Corner]) -> Vec<u64> {
    corners.iter().map(|corner| corner.burst).collect()
}

#[test]
fn suggest_frontier_choices_and_floods_agree_with_a_replay() {
    // Three ordinary clients with a page of 20 images each, and a scan.
    let mut text = String::new();
    for client in 1..=3 {
        for page in 0..3 {
            text.push_str(&line(client, u32::from(client) + page * 40).repeat(20));
        }
    }
    for second in 0..20 {
        text.push_str(&line(9, 100 + second).repeat(282));
    }
    let suggestion = suggested(&text, &[(1, 1_000_000), (10, 1_000_000), (1, 60_000_000)]);
    assert_eq!(suggestion.keys, 4);
    assert_eq!(bursts(&suggestion.frontier), [5_621, 5_450, 5_640]);
    assert_eq!(bursts(&suggestion.frontier_without_floods), [20, 20, 59]);
    assert_eq!(suggestion.frontier[1].bar, 10, "whole seconds");
    let floods: Vec<&str> = suggestion
        .floods
        .iter()
        .map(|(key, _)| key.as_str())
        .collect();
    assert_eq!(floods, ["192.0.2.9"]);
    for (name, choice) in &suggestion.choices {
        let rate = choice.rate.as_str();
        let (amount, unit) = rate.split_once('/').expect("a rate");
        let unit = if unit == "1000000us" {
            "second"
        } else {
            "minute"
        };
        let config = per_address(&format!("{amount}/{unit}"), choice.burst);
        let (outcome, _) = replayed(&text, &config);
        assert_eq!(
            outcome.limits[0].counts.refused, choice.requests_refused,
            "{name}"
        );
        assert_eq!(
            outcome.limits[0].counts.keys_refused, choice.keys_refused,
            "{name}"
        );
        assert_eq!(choice.keys_refused, 1, "{name}: the scan");
    }
    // At the frontier no request is refused; one unit below some are.
    let (at, below) = (
        per_address("10/second", 5_450),
        per_address("10/second", 5_449),
    );
    assert_eq!(replayed(&text, &at).0.refused, 0);
    assert!(replayed(&text, &below).0.refused > 0);
}

#[test]
fn suggest_of_a_censored_log_computes_offered_and_admitted_apart() {
    // Ten at once, of which a limiter refused six; then one each second.
    let mut text = line(1, 0).repeat(4);
    text.push_str(&line(1, 0).repeat(6).replace(" 200 ", " 429 "));
    (1..=3).for_each(|second| text.push_str(&line(1, second)));
    text.push_str(&line(2, 1));
    let suggestion = suggested(&text, &[(1, 1_000_000), (1, 60_000_000)]);
    assert_eq!(bursts(&suggestion.frontier), [10, 13]);
    assert_eq!(bursts(&suggestion.frontier_admitted), [4, 7]);
    let config = per_address("1/second", 10);
    let mut traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &[&config.policy]);
    let outcome = traffic.replay();
    assert_eq!(
        outcome.refused, 0,
        "a replay judges what was offered, refusals included"
    );
    assert!(
        outcome
            .warnings
            .iter()
            .any(|warning| warning.contains("computed apart")),
        "{:?}",
        outcome.warnings
    );
    let document = suggestion.document(&traffic.survey, "");
    assert_eq!(document["frontier_admitted"][0]["burst"], 4);
    assert!(
        suggestion
            .text(&traffic.survey, "")
            .contains("of what was admitted then")
    );
    // Without a refusal there is one frontier.
    let plain = suggested(&line(1, 0).repeat(4), &[(1, 1_000_000)]);
    assert!(plain.frontier_admitted.is_empty());
    assert!(
        plain
            .document(&traffic.survey, "")
            .get("frontier_admitted")
            .is_none()
    );
}

#[test]
fn suggest_and_replay_count_huge_costs_exactly_and_never_overflow() {
    let file = of_one_limit("1/second", 4_000_000_000_000, "everyone");
    let options = Options {
        fields: Some(Fields::parse("time=t,cost=c").expect("a mapping")),
        ..Options::default()
    };
    // The first three are no units of any limit; the others need more than 32 bits.
    let text = "t,c\n2015-05-17T10:00:00Z,18446744073709551615\n2015-05-17T10:00:00Z,9223372036854775807\n\
                2015-05-17T10:00:00Z,1000000000000000\n2015-05-17T10:00:00Z,5000000000\n\
                2015-05-17T10:00:05Z,6000000000\n2015-05-17T10:02:00Z,7\n";
    let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&file.policy]);
    assert_eq!((traffic.survey.requests, traffic.survey.unreadable), (3, 3));
    let outcome = traffic.replay();
    assert_eq!(outcome.limits[0].peak.per_second, 6_000_000_000);
    assert_eq!(outcome.limits[0].peak.per_minute, 11_000_000_000);
    let ask = Ask {
        rates: vec![Rate {
            text: "1/second".into(),
            amount: 1,
            period: 1_000_000,
        }],
        refuse: 1_000,
        rule: 0,
        today: None,
    };
    let suggestion = suggest(&traffic, "everyone", ask.clone()).expect("numbers");
    assert_eq!(suggestion.frontier[0].burst, 10_999_999_995);
    let text = format!(
        "t,c\n{}",
        "2015-05-17T10:00:00Z,999999999999999\n".repeat(20_000)
    );
    let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&file.policy]);
    assert_eq!(traffic.replay().refused, 20_000);
    let why = suggest(&traffic, "everyone", ask).expect_err("too much to be counted");
    assert!(why.contains("add up to more than"), "{why}");
}
