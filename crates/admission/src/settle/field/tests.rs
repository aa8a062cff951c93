use super::*;

fn path(names: &str) -> Arc<Paths> {
    let path: Vec<String> = names.split('.').map(str::to_owned).collect();
    let mut paths = Paths::default();
    paths.add(&path).expect("room for one");
    Arc::new(paths)
}

/// The number found, whichever way the body is cut into pieces.
fn scan(carrier: Carrier, names: &str, body: &str) -> Option<u64> {
    let whole = {
        let mut scanner = FieldScanner::new(carrier, &path(names), &[]);
        scanner.feed(body.as_bytes());
        scanner.finish()[0]
    };
    for cut in 0..body.len() {
        let mut scanner = FieldScanner::new(carrier, &path(names), &[]);
        scanner.feed(&body.as_bytes()[..cut]);
        scanner.feed(&body.as_bytes()[cut..]);
        assert_eq!(scanner.finish()[0], whole, "cut at {cut}");
    }
    whole
}

fn json(names: &str, body: &str) -> Option<u64> {
    scan(Carrier::Json, names, body)
}

#[test]
fn a_number_is_found_at_its_path_and_nowhere_else() {
    assert_eq!(
        json(
            "usage.total_tokens",
            r#"{"id":"x","usage":{"prompt":3,"total_tokens":41}}"#
        ),
        Some(41)
    );
    assert_eq!(
        json(
            "usage.total_tokens",
            r#"{ "usage" : { "total_tokens" : 7 } , "z" : 9 }"#
        ),
        Some(7)
    );
    assert_eq!(
        json(
            "usage.total_tokens",
            r#"{"total_tokens":5,"usage":{"other":{"total_tokens":6}}}"#
        ),
        None
    );
    assert_eq!(
        json(
            "usage.total_tokens",
            r#"{"other":{"usage":{"total_tokens":6}}}"#
        ),
        None
    );
    assert_eq!(json("a.b", r#"{"a":1,"c":{"b":2}}"#), None);
    assert_eq!(
        json("a.b", r#"{"a":[{"b":2}]}"#),
        None,
        "a path leads through objects only"
    );
    assert_eq!(json("a", r#"[{"a":2}]"#), None);
    assert_eq!(json("n", r#"{"n":12}"#), Some(12));
}

#[test]
fn a_byte_order_mark_at_the_beginning_is_skipped() {
    let (json_body, event) = ("{\"n\":7}", "data: {\"n\":7}\n\n");
    assert_eq!(json("n", &format!("\u{feff}{json_body}")), Some(7));
    let events = |body: &str| scan(Carrier::Events, "n", body);
    assert_eq!(events(&format!("\u{feff}{event}")), Some(7));
    assert_eq!(
        events(&format!("\u{feff}\u{feff}{event}")),
        None,
        "only one is no text"
    );
    // A character that begins like the mark.
    assert_eq!(events(&format!("\u{fefe}{event}")), None);
}

#[test]
fn names_and_braces_inside_strings_do_not_mislead() {
    assert_eq!(json("n", r#"{"text":"\"n\":1,{\"n\":2}","n":3}"#), Some(3));
    assert_eq!(json("n", r#"{"text":"n","m":4}"#), None);
    assert_eq!(json("n", r#"{"m":"n","x":[1,2,{"n":5}]}"#), None);
    assert_eq!(json("n", r#"{"m":"\\","n":6}"#), Some(6));
    assert_eq!(json("n", r#"{"m":"n" ,"n":8}"#), Some(8));
}

#[test]
fn only_numbers_count_and_fractions_round_up() {
    assert_eq!(json("n", r#"{"n":"12"}"#), None);
    assert_eq!(json("n", r#"{"n":null,"m":1}"#), None);
    assert_eq!(json("n", r#"{"n":-4}"#), None);
    assert_eq!(json("n", r#"{"n":2.5}"#), Some(3));
    assert_eq!(json("n", r#"{"n":2.0}"#), Some(2));
    assert_eq!(json("n", r#"{"n":1e3}"#), None);
    assert_eq!(
        json("n", r#"{"n":99999999999999999999999}"#),
        Some(u64::MAX),
        "it saturates"
    );
    assert_eq!(json("n", r#"{"n":1,"n":2}"#), Some(2), "the last one wins");
}

#[test]
fn malformed_text_finds_nothing_and_breaks_nothing() {
    for body in [
        "",
        "}",
        "]]]]{",
        "{\"n\":",
        "\"",
        "{\"n\"",
        "{\"n\" 5}",
        ":::5",
        "{\"n\":}",
        "\\",
        "{\"n\":tru",
    ] {
        assert_eq!(json("n", body), None, "{body}");
    }
    assert_eq!(
        json(
            "n",
            &format!("{}{}", "[".repeat(100_000 / 100), r#"{"n":1}"#)
        ),
        None
    );
}

#[test]
fn an_event_stream_is_read_from_its_data_lines() {
    let events = |names: &str, body: &str| scan(Carrier::Events, names, body);
    let body = "event: a\ndata: {\"usage\":null}\n\n: {\"usage\":{\"t\":1}}\n\ndata: {\"usage\":{\"t\":17}}\r\n\r\ndata: [DONE]\n\n";
    assert_eq!(events("usage.t", body), Some(17));
    assert_eq!(
        events("n", "data: {\"n\":\ndata: 5}\n\n"),
        Some(5),
        "an event's lines are one text"
    );
    assert_eq!(
        events("n", "data: {\"m\":{\n\ndata: {\"n\":4}\n\n"),
        Some(4),
        "a broken event does not spoil the next"
    );
    assert_eq!(events("n", "dat: {\"n\":4}\n\n"), None);
    assert_eq!(
        events("n", "data:{\"n\":9}"),
        Some(9),
        "a stream cut short keeps what it said"
    );
}

#[test]
fn settle_event_of_several_data_lines_is_one_text_whatever_ends_its_lines() {
    let lines = [
        "event: usage",
        "data: {\"usage\":",
        "data: {\"t\":",
        "data: 17}}",
        "",
        ": end",
        "data: [DONE]",
        "",
        "",
    ];
    for end in ["\n", "\r", "\r\n"] {
        assert_eq!(
            scan(Carrier::Events, "usage.t", &lines.join(end)),
            Some(17),
            "{end:?}"
        );
        let broken = ["data: {\"usage\":", "", "data: {\"t\":5}", "", ""].join(end);
        assert_eq!(
            scan(Carrier::Events, "usage.t", &broken),
            None,
            "{end:?}: two events are two texts"
        );
    }
}

#[test]
fn settle_stream_is_done_with_the_event_that_its_format_ends_with() {
    let done = |body: &str| {
        let mut done = None;
        for cut in 0..body.len() {
            let ends = &["message_stop", "response.completed"];
            let mut scanner = FieldScanner::new(Carrier::Events, &path("n"), ends);
            scanner.feed(&body.as_bytes()[..cut]);
            scanner.feed(&body.as_bytes()[cut..]);
            let now = scanner.is_done();
            assert_eq!(*done.get_or_insert(now), now, "{body:?} cut at {cut}");
            assert_eq!(
                scanner.finish()[0].is_some(),
                body.contains(":5"),
                "{body:?}"
            );
        }
        done
    };
    for (name, end) in [
        ("event: message_stop", "\n"),
        ("event:response.completed", "\r\n"),
    ] {
        let last = format!("data: 1{end}{end}{name}{end}data: {{\"n\":5}}{end}");
        assert_eq!(done(&last), Some(false), "its number may still come");
        assert_eq!(done(&format!("{last}{end}")), Some(true), "{name}");
    }
    for body in [
        "event: message_stopped\ndata: {\"n\":5}\n\n",
        "event: x\ndata: event: message_stop\n\n",
        "data: {\"text\":\"event: message_stop\"}\n\n",
        ": event: message_stop\n\n",
        "event: message_stop\nevent: ping\n\n",
        " event: message_stop\n\n",
        "event: message_stop\ndata: {\"n\":5}\n",
    ] {
        assert_eq!(done(body), Some(false), "{body:?}");
    }
}

#[test]
fn settle_name_with_escapes_is_the_name_that_it_spells() {
    for name in [
        r"us\u0061ge",
        r"\u0075\u0073\u0061\u0067\u0065",
        r"\u0075sa\u0067e",
    ] {
        assert_eq!(
            json("usage.t", &format!(r#"{{"{name}":{{"t":7}}}}"#)),
            Some(7),
            "{name}"
        );
        assert_eq!(
            json("a.t", &format!(r#"{{"a":{{"{name}":1,"t":8}}}}"#)),
            Some(8),
            "{name}"
        );
    }
    assert_eq!(json("a/b", r#"{"a\/b":1}"#), Some(1));
    assert_eq!(json("ü", r#"{"\u00fc":2}"#), Some(2));
    assert_eq!(json("ü", r#"{"\u00FC":2}"#), Some(2));
    assert_eq!(json("😀", r#"{"\ud83d\ude00":3}"#), Some(3));
    for other in [
        r"\ud83d",
        r"\ud83d\u0061",
        r"\ude00",
        r"\ud83dx",
        r"\ud83d\n",
        r"\u00zz",
        r"\x",
        r"us\u0062ge",
    ] {
        assert_eq!(
            json("😀", &format!(r#"{{"{other}":4,"😀":5}}"#)),
            Some(5),
            "{other}"
        );
        assert_eq!(
            json("usage", &format!(r#"{{"{other}":4}}"#)),
            None,
            "{other}"
        );
    }
}

#[test]
fn settle_json_is_read_by_content_type() {
    assert_eq!(
        Carrier::of("application/json; charset=utf-8"),
        Some(Carrier::Json)
    );
    assert_eq!(Carrier::of("Application/Problem+JSON"), Some(Carrier::Json));
    assert_eq!(Carrier::of("text/event-stream"), Some(Carrier::Events));
    assert_eq!(Carrier::of("text/html"), None);
}
