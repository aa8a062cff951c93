//! Logs through policies: figures that can be counted by hand, and what is not judged.

use std::fmt::Write as _;
use std::io::Write as _;

use tollgate_config::Config;
use tollgate_limit::Timestamp;

use crate::log::{Fields, Options};
use crate::report::{self, Format};
use crate::suggest::{Ask, Rate, Suggestion, suggest};
use crate::{Outcome, Traffic, edit, html};

fn config(text: &str) -> Config {
    tollgate_config::parse(text, "test.toml", &|_| None, Timestamp::default()).expect("a good file")
}

fn per_address(rate: &str, burst: u64) -> Config {
    config(&format!(
        "[limits.one]\nrate = \"{rate}\"\nburst = {burst}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n"
    ))
}

/// A combined line: the client's last octet, and seconds after ten.
fn line(client: u8, second: u32) -> String {
    format!(
        "192.0.2.{client} - - [17/May/2015:10:{:02}:{:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x\"\n",
        second / 60,
        second % 60
    )
}

fn replayed(text: &str, config: &Config) -> (Outcome, crate::log::Survey) {
    let mut traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &[&config.policy]);
    let outcome = traffic.replay();
    (outcome, traffic.survey)
}

fn suggested(text: &str, rates: &[(u64, u64)]) -> Suggestion {
    let config = per_address("1/second", 1);
    let mut traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &[&config.policy]);
    let rate = |(amount, period): &(u64, u64)| Rate {
        text: format!("{amount}/{period}us"),
        amount: *amount,
        period: *period,
    };
    let ask = Ask {
        rates: rates.iter().map(rate).collect(),
        refuse: 1_000,
        rule: 0,
        today: None,
    };
    suggest(&mut traffic, "address", ask).expect("numbers")
}

#[test]
fn replay_counts_refusals_in_any_order_of_lines() {
    // Five at once, then one each second: a bucket of 3 with one every two seconds.
    let mut lines: Vec<String> = (0..5).map(|_| line(1, 0)).collect();
    lines.extend((1..=4).map(|second| line(1, second)));
    lines.push(line(2, 3));
    let config = per_address("30/minute", 3);
    let (outcome, survey) = replayed(&lines.concat(), &config);
    let limit = &outcome.limits[0];
    assert_eq!((survey.lines, survey.requests), (10, 10));
    // Three of five, then those of the second and fourth second; the other client's one.
    assert_eq!((limit.counts.admitted, limit.counts.refused), (6, 4));
    assert_eq!((limit.counts.keys, limit.counts.keys_refused), (2, 1));
    assert_eq!((limit.peak.per_second, limit.peak.per_minute), (5, 9));
    assert_eq!(limit.top.len(), 1);
    assert_eq!(
        (
            limit.top[0].key.as_str(),
            limit.top[0].requests,
            limit.top[0].refused
        ),
        ("192.0.2.1", 9, 4)
    );
    assert_eq!(report::moment(survey.from), "2015-05-17T10:00:00Z");
    lines.reverse();
    let (reversed, _) = replayed(&lines.concat(), &config);
    assert_eq!(reversed.limits, outcome.limits);
}

#[test]
fn replay_against_another_file_lists_who_is_judged_otherwise() {
    let text: String = (0..5)
        .map(|_| line(1, 0))
        .chain((0..2).map(|_| line(2, 0)))
        .collect();
    let (new, old) = (per_address("1/minute", 1), per_address("1/minute", 3));
    let mut traffic = Traffic::read_text(
        text.as_bytes(),
        &Options::default(),
        &[&new.policy, &old.policy],
    );
    let against = traffic.replay().against.expect("compared");
    assert_eq!(
        (against.newly_refused.requests, against.newly_refused.keys),
        (3, 2)
    );
    assert_eq!(
        against.newly_refused.examples[0],
        crate::Example {
            limit: "one".to_owned(),
            key: "192.0.2.1".to_owned(),
            requests: 2
        }
    );
    assert_eq!(against.newly_admitted.requests, 0);
}

#[test]
fn replay_of_a_limit_whose_key_the_log_lacks_is_not_judged() {
    let file = config(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n\
         [limits.key]\nrate = \"1/minute\"\nper = \"tenant\"\n\
         [limits.places]\nin_flight = 1\nper = \"everyone\"\n\
         [limits.address]\nrate = \"1/minute\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"key\", \"places\", \"address\"]\n",
    );
    let (outcome, survey) = replayed(&line(1, 0).repeat(3), &file);
    let why = |place: usize| outcome.limits[place].not_judged.clone().unwrap_or_default();
    assert!(why(0).contains("x-api-key"), "{}", why(0));
    assert!(why(1).contains("no durations"), "{}", why(1));
    assert_eq!(outcome.limits[2].counts.refused, 2);
    let condition = crate::Condition::parse("key.refused > 100").expect("good");
    assert!(
        condition.fails(&survey, &outcome).is_some(),
        "never passes on what is not judged"
    );
    let text = r#"{"ts":1431857103.25,"request":{"remote_ip":"127.0.0.1","method":"GET","host":"a","uri":"/","headers":{"X-Api-Key":["k"]}},"duration":0.1,"status":200}"#;
    let (outcome, _) = replayed(&format!("{text}\n{text}"), &file);
    assert_eq!(outcome.limits[0].not_judged, None);
    assert_eq!(outcome.limits[0].counts.refused, 1);
    assert_eq!(outcome.limits[0].top[0].key, "\"k\"");
}

#[test]
fn replay_charges_the_cost_that_a_mapping_names() {
    let file = config(
        "[limits.tokens]\nrate = \"1/minute\"\nburst = 100\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"tokens\"]\n",
    );
    let options = Options {
        fields: Some(Fields::parse("time=TIMESTAMP,cost=GeneratedTokens").expect("a mapping")),
        ..Options::default()
    };
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,60\n\
                2023-11-16 18:15:46.9951690,396,50\n2023-11-16 18:15:47.0,1,40\n";
    let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&file.policy]);
    let outcome = traffic.replay();
    assert_eq!((outcome.admitted, outcome.refused), (2, 1));
    assert_eq!(outcome.limits[0].peak.per_second, 150);
}

#[test]
fn replay_of_clients_by_name_keeps_them_apart() {
    let text = "unicomp6.unicomp.net - - [01/Jul/1995:00:00:06 -0400] \"GET / HTTP/1.0\" 200 3985\n\
                burger.letters.com - - [01/Jul/1995:00:00:06 -0400] \"GET / HTTP/1.0\" 200 1\n\
                unicomp6.unicomp.net - - [01/Jul/1995:00:00:06 -0400] \"GET / HTTP/1.0\" 200 3985\n";
    let (outcome, _) = replayed(text, &per_address("1/minute", 1));
    assert_eq!(outcome.limits[0].counts.keys, 2);
    assert_eq!(outcome.limits[0].top[0].key, "unicomp6.unicomp.net");
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
    let bursts = |corners: &[crate::suggest::Corner]| {
        corners
            .iter()
            .map(|corner| corner.burst)
            .collect::<Vec<_>>()
    };
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
    let bursts = |corners: &[crate::suggest::Corner]| {
        corners
            .iter()
            .map(|corner| corner.burst)
            .collect::<Vec<_>>()
    };
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
fn fail_if_never_passes_on_a_log_that_was_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for number in 0..2_000_u32 {
        encoder
            .write_all(line(u8::try_from(number % 200).unwrap_or(0), number % 3_000).as_bytes())
            .expect("written");
    }
    let whole = encoder.finish().expect("compressed");
    let condition = crate::Condition::parse("refused > 100%").expect("good");
    let config = per_address("1/minute", 1);
    for (length, passes) in [(whole.len(), true), (whole.len() / 2, false)] {
        std::fs::write(&path, &whole[..length]).expect("written");
        let files = [path.clone()];
        let policies = [&*config.policy];
        let mut traffic =
            Traffic::read(&files, &Options::default(), &policies, |_| {}).expect("opened");
        assert!(traffic.survey.requests > 100);
        let outcome = traffic.replay();
        let why = condition.fails(&traffic.survey, &outcome);
        assert_eq!(why.is_none(), passes, "{why:?}");
        let said = outcome.warnings.join("\n");
        assert_eq!(
            !said.contains("cannot be read beyond line"),
            passes,
            "{said}"
        );
    }
}

#[test]
fn suggest_and_replay_count_huge_costs_exactly_and_never_overflow() {
    let file = config(
        "[limits.bytes]\nrate = \"1/second\"\nburst = 4000000000000\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"bytes\"]\n",
    );
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
    let suggestion = suggest(&mut traffic, "everyone", ask.clone()).expect("numbers");
    assert_eq!(suggestion.frontier[0].burst, 10_999_999_995);
    let text = format!(
        "t,c\n{}",
        "2015-05-17T10:00:00Z,999999999999999\n".repeat(20_000)
    );
    let mut traffic = Traffic::read_text(text.as_bytes(), &options, &[&file.policy]);
    assert_eq!(traffic.replay().refused, 20_000);
    let why = suggest(&mut traffic, "everyone", ask).expect_err("too much to be counted");
    assert!(why.contains("add up to more than"), "{why}");
}

#[test]
fn suggest_writes_a_shadow_limit_and_keeps_comments() {
    let suggestion = suggested(&line(1, 0).repeat(3), &[(1, 1_000_000)]);
    let mut choice = suggestion.choice("balanced").expect("a choice").clone();
    choice.rate = "1/second".into();
    let evidence = ["From 3 requests".to_owned()];
    let file = "# mine\n[limits.old] # in force\nrate = \"5/minute\" # hand made\nper = \"everyone\"\n\n\
                [[routes]] # all\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"old\"] # one\n";
    let (written, name) =
        edit::written(file, "old", "everyone", &choice, &evidence).expect("written");
    assert_eq!(name, "old_suggested");
    for kept in [
        "# mine",
        "# in force",
        "# hand made",
        "# all",
        "# one",
        "rate = \"5/minute\"",
    ] {
        assert!(written.contains(kept), "{kept}: {written}");
    }
    let made = config(&written);
    assert_eq!(made.policy.rules.len(), 2);
    assert_eq!(made.policy.routes[0].limits.len(), 2);
    assert!(
        written.contains("# suggest: From 3 requests\nrate = \"1/second\""),
        "{written}"
    );
    // Once more: the numbers and the evidence are replaced, and nothing is added.
    choice.burst = 77;
    let (again, _) = edit::written(
        &written,
        "old",
        "everyone",
        &choice,
        &["From 9 requests".to_owned()],
    )
    .expect("written");
    assert!(
        again.contains("burst = 77") && !again.contains("From 3 requests"),
        "{again}"
    );
    assert_eq!(config(&again).policy.rules.len(), 2);
    let bare = "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    let (bare, name) =
        edit::written(bare, "per_caller", "header:x-api-key", &choice, &evidence).expect("written");
    assert_eq!(
        (name.as_str(), config(&bare).policy.routes[0].limits.len()),
        ("per_caller", 1)
    );
    config(&format!(
        "{}\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\"]\n",
        edit::table("per_caller", "address", &choice, &evidence)
    ));
}

#[test]
fn fmt_changes_blanks_only_and_nothing_the_second_time() {
    let file = "# top\n\n\n[limits.a]   \nrate=\"1/minute\" # x = y\nper   =  \"address\"\n[[routes]]\nmatch = \"/a=b\"\nlimits = [\n   \"a\", # first\n]\nrespond = { status = 200, body = \"\"\"\n  x   = y\n\"\"\" }\n\n\n";
    let laid_out = edit::formatted(file).expect("good");
    assert_eq!(
        laid_out,
        "# top\n\n[limits.a]\nrate = \"1/minute\" # x = y\nper = \"address\"\n\n[[routes]]\nmatch = \"/a=b\"\nlimits = [\n   \"a\", # first\n]\nrespond = { status = 200, body = \"\"\"\n  x   = y\n\"\"\" }\n"
    );
    assert_eq!(edit::formatted(&laid_out).expect("good"), laid_out);
    assert!(edit::formatted("a = ").is_err());
}

#[test]
fn report_in_every_format_holds_nothing_hostile() {
    let mut text = String::new();
    for _ in 0..3 {
        let _ = writeln!(
            text,
            "<script>alert(1)</script>\u{202e} - - [17/May/2015:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5"
        );
    }
    let file = per_address("1/minute", 1);
    let (outcome, survey) = replayed(&text, &file);
    assert_eq!(outcome.refused, 2);
    let page = html::replay(&survey, &outcome, None);
    assert!(
        !page.contains("<script") && page.contains("&lt;script&gt;"),
        "{page}"
    );
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("default-src 'none'"));
    for (format, wanted) in [
        (Format::Text, "lost 2 of 3"),
        (Format::Csv, "one,true,1,2,1,1"),
        (Format::Markdown, "| one | 1 | 2 |"),
    ] {
        let said = report::replay(&survey, &outcome, format);
        assert!(said.contains(wanted), "{said}");
        assert!(!said.contains('\u{202e}'), "{said}");
    }
    let said = report::replay(&survey, &outcome, Format::Json);
    let document: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(document["limits"][0]["keys_refused"], 1);
    assert_eq!(document["from"], "2015-05-17T10:00:00Z");
}

#[test]
fn reasons_of_the_log_that_a_client_brings_about_are_those_of_the_gateway() {
    use tollgate_gateway::body::BodyError;
    use tollgate_gateway::forward::ForwardError;
    let io = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let all = [
        ForwardError::Connect(io()),
        ForwardError::ConnectTimeout,
        ForwardError::Tls(String::new()),
        ForwardError::Overloaded,
        ForwardError::NoServer,
        ForwardError::ResponseTimeout,
        ForwardError::UploadTimeout,
        ForwardError::ClientDeadline,
        ForwardError::SlowUpload,
        // `Answer` and `Malformed` are logged by the same word.
        ForwardError::Broken(io()),
        ForwardError::Closed,
        ForwardError::ResponseCoding,
        ForwardError::RefusedStream,
        ForwardError::GoingAway,
        ForwardError::Upgrade,
        ForwardError::Bridge,
        ForwardError::Body(BodyError::TooBig),
        ForwardError::Body(BodyError::ClientGone),
        ForwardError::Body(BodyError::ClientMalformed),
        ForwardError::Body(BodyError::ClientIdle),
        ForwardError::Body(BodyError::ClientSlow),
        ForwardError::Body(BodyError::ClientTrailers),
        ForwardError::Rewrite,
    ];
    let mut known = crate::replay::CLIENT.to_vec();
    for error in &all {
        let listed = known.contains(&error.label());
        let clients = error.cause() == tollgate_limiter::Cause::Client;
        assert_eq!(listed, clients, "{}", error.label());
        known.retain(|known| *known != error.label());
    }
    assert!(known.is_empty(), "the gateway never says {known:?}");
}
