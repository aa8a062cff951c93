mod graphql;

use http::{HeaderMap, HeaderValue};

use super::*;
use crate::body::json::{CallId, Calls};
use crate::identity::source::Source;

const FORM: &str = "application/x-www-form-urlencoded";

/// What a body says of these sources, as text.
fn says(
    sources: &[&str],
    kind: &'static str,
    body: &[u8],
) -> Result<Vec<Option<String>>, BodyFlaw> {
    let mut headers = HeaderMap::new();
    if !kind.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    let sources: Vec<Source> = sources
        .iter()
        .map(|source| Source::parse(source).expect("a source"))
        .collect();
    let mut wanted = Wanted::default();
    let asked = sources
        .iter()
        .fold(WantedFacts::default(), |asked, source| {
            asked.and(wanted.ask(source).expect("few"))
        });
    let facts = facts(&Arc::new(wanted), asked, &headers, body)?;
    let text = |source: &Source| {
        let value = facts.value(source)?;
        Some(String::from_utf8_lossy(&value).into_owned())
    };
    Ok(sources.iter().map(text).collect())
}

fn facts(
    wanted: &Arc<Wanted>,
    asked: WantedFacts,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<BodyFacts, BodyFlaw> {
    let mut reading =
        BodyReading::new(wanted, asked, BodySettings::default(), headers)?.expect("not compressed");
    for piece in body.chunks(7) {
        reading.feed(piece)?;
    }
    reading.finish()
}

fn one(source: &str, kind: &'static str, body: &str) -> Result<Option<String>, BodyFlaw> {
    says(&[source], kind, body.as_bytes()).map(|mut values| values.remove(0))
}

#[test]
fn body_json_is_read_whatever_type_the_client_writes() {
    let body = r#" {"model":"gpt"}"#;
    for kind in [
        "",
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/vnd.api+json",
        "text/plain",
        "application/x-www-form-urlencoded",
    ] {
        assert_eq!(
            one("json:model", kind, body),
            Ok(Some("gpt".into())),
            "{kind}"
        );
    }
    assert_eq!(one("json:model", "text/plain", "hello"), Ok(None));
    assert_eq!(one("json:model", "", ""), Ok(None));
    assert_eq!(
        one("json:model", "application/json", "hello"),
        Err(BodyFlaw::Malformed)
    );
    assert_eq!(one("json:model", "", " "), Err(BodyFlaw::Malformed));
    assert_eq!(
        one("json:model", "text/plain", "{model:1}"),
        Err(BodyFlaw::Malformed)
    );
}

#[test]
fn body_in_another_charset_or_compressed_is_refused() {
    for kind in [
        "application/json; charset=utf-16",
        "text/plain;charset=\"latin1\"",
        "application/json; charset =utf-16",
    ] {
        assert_eq!(one("json:a", kind, "{}"), Err(BodyFlaw::Charset), "{kind}");
    }
    for text in [
        &b"\xef\xbb\xbf{\"a\":1}"[..],
        b"\0{\0}",
        b"\0 \0{\0}",
        b"\0\0\0{\0\0\0}",
        b"\0\0\0 \0\0\0{",
        b"\xfe\xff\0{\0}",
        b"\xff\xfe{\0}\0",
    ] {
        let said = says(&["json:a"], "text/plain", text);
        assert_eq!(said, Err(BodyFlaw::Charset), "{text:?}");
    }
    for picture in [
        &b"\xff\xd8\xff\xe0\0"[..],
        b"\0\0\0\x20ftyp",
        b"\x89PNG\r\n\x1a\n",
    ] {
        let said = says(&["json:a"], "image/jpeg", picture);
        assert_eq!(said, Ok(vec![None]), "{picture:?}");
    }
    let wanted = Arc::new(Wanted::default());
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let read = |skips_compressed| {
        let settings = BodySettings {
            skips_compressed,
            ..BodySettings::default()
        };
        BodyReading::new(&wanted, WantedFacts::default(), settings, &headers)
    };
    assert_eq!(read(false).err(), Some(BodyFlaw::Compressed));
    assert!(matches!(read(true), Ok(None)));
    let mut headers = HeaderMap::new();
    headers.append(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.append(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    assert_eq!(kind(&headers), Err(BodyFlaw::Ambiguous));
}

/// `text` in UTF-16 and UTF-32, with the lower byte first or last.
fn encodings(text: &str) -> Vec<Vec<u8>> {
    let units = |text: &str| text.encode_utf16().collect::<Vec<_>>();
    let characters = |text: &str| text.chars().map(u32::from).collect::<Vec<_>>();
    vec![
        text.as_bytes().to_vec(),
        units(text)
            .iter()
            .flat_map(|unit| unit.to_le_bytes())
            .collect(),
        units(text)
            .iter()
            .flat_map(|unit| unit.to_be_bytes())
            .collect(),
        characters(text)
            .iter()
            .flat_map(|unit| unit.to_le_bytes())
            .collect(),
        characters(text)
            .iter()
            .flat_map(|unit| unit.to_be_bytes())
            .collect(),
    ]
}

#[test]
fn body_json_behind_what_some_servers_skip_is_refused_however_it_is_cut() {
    let read = |body: &[u8], piece: usize| {
        let mut wanted = Wanted::default();
        let source = Source::parse("json:model").expect("a source");
        let asked = wanted.ask(&source).expect("room");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        let settings = BodySettings::default();
        let mut reading = BodyReading::new(&Arc::new(wanted), asked, settings, &headers)?
            .expect("not compressed");
        for piece in body.chunks(piece) {
            reading.feed(piece)?;
        }
        Ok(reading.finish()?.value(&source).is_some())
    };
    let openings = [
        "",
        " ",
        "\r\n\t ",
        "\u{b}",
        "\u{c}",
        "\u{1}",
        "\u{7f}",
        "\u{a0}",
        "\u{85}",
        "\u{200b}",
        "\u{3000}",
        "\u{2028}",
        "\u{feff}",
        " \u{feff} ",
        "/**/",
        "/* * { **/ ",
        "//x\n",
        "// {\r",
        "#\n",
        "# [ ]\r\n",
        "//\u{2028}",
        "/*\n*/ // \n #\n",
        ")]}'\n",
        "/* \u{e9} */",
    ];
    for opening in openings {
        for (form, body) in encodings(&format!("{opening}{{\"model\":\"dear\"}}"))
            .iter()
            .enumerate()
        {
            // (No server that detects these skips blanks beyond Latin-1 in them.)
            let is_beyond = |character: char| character > '\u{ff}' && character != '\u{feff}';
            if form > 0 && opening.contains(is_beyond) {
                continue;
            }
            let whole = read(body, body.len());
            let plain = form == 0 && opening.trim_matches([' ', '\t', '\r', '\n']).is_empty();
            match whole {
                Ok(true) if plain => {}
                Err(BodyFlaw::Charset | BodyFlaw::Malformed) if !plain => {}
                _ => panic!("{opening:?} in form {form}: {whole:?}"),
            }
            for piece in 1..body.len() {
                assert_eq!(
                    read(body, piece),
                    whole,
                    "{opening:?} in form {form} by {piece}"
                );
            }
        }
    }
    for text in [
        "",
        "hello {",
        "/",
        "/ {",
        "/a {",
        "// {",
        "/* {",
        "# { [",
        "\u{e9}{",
        "\u{fffd}[",
        "-[1]",
        "\"{\"",
    ] {
        for piece in 1..=text.len().max(1) {
            assert_eq!(
                read(text.as_bytes(), piece),
                Ok(false),
                "{text:?} by {piece}"
            );
        }
    }
    assert_eq!(read(b"/* \xe3*/{}", 1), Err(BodyFlaw::Malformed));
    assert_eq!(read(b"\xa0{}", 1), Err(BodyFlaw::Malformed));
    assert_eq!(read(b"\xff\xfe(\x20{\0}\0", 3), Err(BodyFlaw::Charset));
}

#[test]
fn body_value_that_makes_no_key_is_ambiguous() {
    let json = |body: &str| one("json:id", "", body);
    assert_eq!(json(r#"{"id":17}"#), Ok(Some("17".into())));
    assert_eq!(json(r#"{"id":"17"}"#), Ok(Some("17".into())));
    let most = "9007199254740991";
    assert_eq!(json(&format!(r#"{{"id":{most}}}"#)), Ok(Some(most.into())));
    assert_eq!(json(r#"{"id":false}"#), Ok(Some("false".into())));
    assert_eq!(json(r#"{"id":""}"#), Ok(None));
    // Above 2^53 - 1, Node reads the number after it as the same.
    for odd in [
        "1.0",
        "1e0",
        "-1",
        "[1]",
        "{}",
        "9007199254740992",
        "18446744073709551616",
    ] {
        assert_eq!(
            json(&format!(r#"{{"id":{odd}}}"#)),
            Err(BodyFlaw::Ambiguous),
            "{odd}"
        );
    }
}

#[test]
fn body_form_parameters_are_decoded_and_must_be_unambiguous() {
    let form = |body: &str| one("form:user", FORM, body);
    assert_eq!(form("a=1&us%65r=%41nn+B"), Ok(Some("Ann B".into())));
    assert_eq!(form("a=1"), Ok(None));
    assert_eq!(form("user=a&user=b"), Err(BodyFlaw::Ambiguous));
    assert_eq!(form("user=a&User=a"), Err(BodyFlaw::Ambiguous));
    assert_eq!(one("form:user", "text/plain", "user=a"), Ok(None));
    for kind in [
        "",
        "application/x-www-form-urlencoded,x",
        "application/x-www-form-urlencoded x",
    ] {
        assert_eq!(
            one("form:user", kind, "user=a"),
            Ok(Some("a".into())),
            "{kind}"
        );
    }
    let both = says(&["form:user", "json:user"], FORM, b"user=a");
    assert_eq!(both, Ok(vec![Some("a".into()), None]));
}

#[test]
fn body_value_of_a_condition_that_is_no_key_is_ambiguous() {
    let routed = |source: &str, kind: &'static str, body: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        let mut wanted = Wanted::default();
        let source = Source::parse(source).expect("a source");
        let asked = wanted.ask(&source).expect("room").for_routes();
        facts(&Arc::new(wanted), asked, &headers, body.as_bytes()).map(|_| ())
    };
    let json = "application/json";
    for (source, kind, body) in [
        ("json:method", json, r#"{"method":"tools/call\u0000"}"#),
        ("json:method", json, r#"{"method":"tools/call\n"}"#),
        ("json:method", json, r#"{"method":"\u00a0tools/call"}"#),
        ("form:action", FORM, "action=login%00"),
        ("form:action", FORM, "action=login%0a"),
        ("form:action", FORM, "action=login%C2%A0"),
        ("form:action", FORM, "action=%u006cogin"),
        ("form:action", FORM, "%u0061ction=login"),
        (
            "graphql:operation",
            json,
            r#"{"operationName":"Dear\u0000"}"#,
        ),
    ] {
        let read = routed(source, kind, body);
        assert_eq!(read, Err(BodyFlaw::Ambiguous), "{body}");
    }
    for (source, kind, body) in [
        (
            "json:method",
            json,
            r#"{"method":" tools/call\t","a":"\u0000"}"#,
        ),
        ("form:action", FORM, "action=+login&b=%00"),
        (
            "graphql:operation",
            json,
            r#"{"query":"query Dear {\n a\n}\n"}"#,
        ),
    ] {
        assert_eq!(routed(source, kind, body), Ok(()), "{body}");
    }
}

/// The JSON-RPC calls that a body makes, where they are asked for.
fn calls(body: &str, piece: usize) -> Option<Calls> {
    let mut wanted = Wanted::default();
    let asked = wanted.ask_calls().expect("room");
    let settings = BodySettings::default();
    let wanted = Arc::new(wanted);
    let mut reading = BodyReading::new(&wanted, asked, settings, &HeaderMap::new())
        .expect("a body without headers")
        .expect("it is read");
    for piece in body.as_bytes().chunks(piece) {
        reading.feed(piece).expect("JSON");
    }
    reading.finish().expect("one meaning").take_calls()
}

#[test]
fn body_ids_of_calls_are_kept_as_they_were_sent() {
    let one = |id: CallId| {
        Some(Calls {
            batch: false,
            ids: std::iter::once(id).collect(),
        })
    };
    let number = |text: &str| CallId::Number(text.into());
    let text = |text: &str| CallId::Text(text.into());
    for (id, expected) in [
        ("1", number("1")),
        ("-7", number("-7")),
        ("1.50e+3", number("1.50e+3")),
        ("12345678901234567890123", number("12345678901234567890123")),
        ("null", CallId::Null),
        ("\"\"", text("")),
        ("\"a\\\"\\u00e4\\n\"", text("a\"\u{e4}\n")),
    ] {
        let bodies = [
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"m\",\"params\":{{\"id\":9}}}}"),
            format!(" {{\"method\":\"m\",\"params\":[{{\"id\":3}}],\"id\" : {id} }}\n"),
        ];
        for body in bodies {
            for piece in [1, 2, 5, body.len()] {
                assert_eq!(calls(&body, piece), one(expected.clone()), "{body}");
            }
        }
    }
}

#[test]
fn body_without_a_call_that_gets_a_response_has_no_ids() {
    let long = format!("{{\"id\":\"{}\",\"method\":\"m\"}}", "x".repeat(257));
    let many = format!("[{}]", vec!["{\"id\":1,\"method\":\"m\"}"; 65].join(","));
    for body in [
        "{\"method\":\"notifications/initialized\"}",
        "{\"id\":1,\"result\":{}}",
        "{\"id\":[1],\"method\":\"m\"}",
        "{\"id\":{\"id\":1},\"method\":\"m\"}",
        "{\"id\":true,\"method\":\"m\"}",
        "{\"id\":1,\"method\":7}",
        "[]",
        "[{\"method\":\"m\"},7]",
        &long,
        &many,
    ] {
        assert_eq!(calls(body, 3), None, "{body}");
    }
}

#[test]
fn body_batch_has_the_ids_of_its_calls_in_their_order() {
    let body = "[{\"id\":2,\"method\":\"m\"},{\"method\":\"n\"},{\"id\":\"b\",\"method\":\"m\"},{\"id\":5,\"result\":1}]";
    let found = calls(body, 4).expect("two calls");
    assert!(found.batch);
    assert_eq!(
        found.ids[..],
        [CallId::Number("2".into()), CallId::Text("b".into())]
    );
}
