//! What a replay counts, and what it does not judge.

use std::io::Write as _;

use super::*;

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
    let file = of_one_limit("1/minute", 100, "everyone");
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
fn reasons_of_the_log_that_a_client_brings_about_are_those_of_the_gateway() {
    use tollgate_gateway::forward::ForwardError;
    use tollgate_gateway::forward::body::BodyError;
    let io = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let all = [
        ForwardError::Connect(io()),
        ForwardError::ConnectTimeout,
        ForwardError::Tls(String::new()),
        ForwardError::Overloaded,
        ForwardError::NoServer,
        // With a deadline of the client it is logged as `ClientDeadline`.
        ForwardError::ResponseTimeout {
            after_callers_deadline: false,
        },
        ForwardError::UploadTimeout,
        ForwardError::ClientDeadline { unsent: false },
        ForwardError::TotalTimeout,
        ForwardError::SlowUpload,
        // `Response` and `Malformed` are logged by the same word.
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
        ForwardError::Rewrite,
    ];
    let mut known = crate::replay::CLIENT.to_vec();
    for error in &all {
        let listed = known.contains(&error.label());
        let clients = error.blame().cause == tollgate_limiter::Cause::Client;
        assert_eq!(listed, clients, "{}", error.label());
        known.retain(|known| *known != error.label());
    }
    assert!(known.is_empty(), "the gateway never says {known:?}");
}
