use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::values::CALLS_MAX;
use super::*;

fn paths(names: &[&str]) -> Arc<Paths> {
    let mut paths = Paths::default();
    for name in names {
        let path: Vec<String> = name.split('.').map(str::to_owned).collect();
        paths.add(&path).expect("a bit for each");
    }
    Arc::new(paths)
}

/// What a request's text says of `names`, whichever way it is cut into pieces.
fn read(names: &[&str], text: &[u8]) -> Result<Members, BodyFlaw> {
    let paths = paths(names);
    let cut_at = |cut: usize| {
        let mut reader = Reader::request(&paths, paths.all(), paths.all());
        reader.feed(&text[..cut]);
        reader.feed(&text[cut..]);
        reader.finish()
    };
    let whole = cut_at(0);
    for cut in 1..text.len() {
        assert_eq!(cut_at(cut), whole, "cut at {cut}");
    }
    whole
}

/// The value of one member.
fn value(name: &str, text: &str) -> Result<Option<Value>, BodyFlaw> {
    read(&[name], text.as_bytes()).map(|members| members.list[0].value.clone())
}

fn text(value: &str) -> Value {
    Value::Text(value.as_bytes().into())
}

#[test]
fn json_member_of_a_request_is_found_at_its_path_and_nowhere_else() {
    let call = r#"{"jsonrpc":"2.0","method":"tools/call","params":{"x":{"name":"no"},"name":"search","arguments":{"name":1}}}"#;
    assert_eq!(value("method", call), Ok(Some(text("tools/call"))));
    assert_eq!(value("params.name", call), Ok(Some(text("search"))));
    assert_eq!(value("name", call), Ok(None));
    assert_eq!(value("params.name.x", call), Ok(None));
    assert_eq!(value("a", r#"{"a":null}"#), Ok(None));
    assert_eq!(value("a", r#"{"a":true}"#), Ok(Some(Value::Flag(true))));
    assert_eq!(value("a", r#""a""#), Ok(None));
    assert_eq!(
        value("a", r#"{"a":2.5}"#),
        Ok(Some(Value::Number {
            units: 3,
            whole: false
        }))
    );
    for odd in ["-1", "1e2", "[1]", "{}", "-0.5"] {
        assert_eq!(
            value("a", &format!(r#"{{"a":{odd}}}"#)),
            Ok(Some(Value::Odd)),
            "{odd}"
        );
    }
    assert_eq!(
        value("a.b", r#"{"a":[{"b":1}]}"#),
        Ok(Some(Value::Odd)),
        "some servers read a list of one like its element"
    );
    assert_eq!(
        value("a", r#"{"\u0061":"\ud83d\ude00\n"}"#),
        Ok(Some(text("😀\n")))
    );
}

#[test]
fn json_wanted_member_that_servers_could_read_differently_is_ambiguous() {
    for twice in [
        r#"{"model":"a","model":"a"}"#,
        r#"{"model":null,"model":"a"}"#,
        r#"{"model":"a","MODEL":"b"}"#,
        r#"{"Model":"b"}"#,
        r#"{"mo\u0064el":"a","model":"b"}"#,
        r#"{"params":{},"params":{"name":"b"}}"#,
    ] {
        let found = read(&["model", "params.name"], twice.as_bytes());
        assert_eq!(found, Err(BodyFlaw::Ambiguous), "{twice}");
    }
    assert_eq!(
        value("tasks", "{\"ta\u{17f}\u{212a}s\":1}"),
        Err(BodyFlaw::Ambiguous)
    );
    assert!(value("model", r#"{"other":1,"other":2,"model":"a"}"#).is_ok());
    assert!(value("model", r#"{"x":{"model":1,"model":2},"model":"a"}"#).is_ok());
}

#[test]
fn json_request_that_is_not_valid_is_malformed() {
    let deep = format!(
        "{}1{}",
        "[".repeat(DEPTH_MAX + 1),
        "]".repeat(DEPTH_MAX + 1)
    );
    let texts: Vec<&[u8]> = vec![
        b"",
        b"{",
        b"}",
        b"{}}",
        b"{} {}",
        b"[1,]",
        b"{\"a\":1,}",
        b"{\"a\" 1}",
        b"{\"a\"}",
        b"{a:1}",
        b"{'a':1}",
        b"[1 2]",
        b"[01]",
        b"[1.]",
        b"[.5]",
        b"[-]",
        b"[1e]",
        b"[+1]",
        b"[NaN]",
        b"[tru]",
        b"[truex]",
        b"[\"\n\"]",
        b"[\"\\x\"]",
        b"[\"\\ud800\"]",
        b"[\"\\ud800x\"]",
        b"[\"\xff\"]",
        b"[\"\xc3\"]",
        b"\xef\xbb\xbf{}",
        b"// x\n{}",
        b"{]",
        b"[}",
        b"[1}",
        b"\"a",
        b"{\"a\":}",
        deep.as_bytes(),
    ];
    for bad in texts {
        let shown = String::from_utf8_lossy(bad);
        assert_eq!(read(&["a"], bad), Err(BodyFlaw::Malformed), "{shown}");
        assert!(
            bad.len() > DEPTH_MAX || serde_json::from_slice::<Json>(bad).is_err(),
            "{shown}"
        );
    }
    let most = format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert!(read(&["a"], most.as_bytes()).is_ok());
}

#[test]
fn json_name_or_value_of_a_megabyte_is_passed_without_keeping_it() {
    let paths = paths(&["model", "params.name"]);
    let mut reader = Reader::request(&paths, paths.all(), paths.all());
    let long = "model".repeat(1 << 18);
    for piece in [
        r#"{""#,
        &long,
        r#"":{"x":""#,
        &long,
        r#""},"\u0061"#,
        &long,
        r#"":1,"#,
    ] {
        for piece in piece.as_bytes().chunks(1 << 12) {
            reader.feed(piece);
        }
        assert!(reader.text.capacity() <= 64, "{}", reader.text.capacity());
    }
    let wide: String = (0..100_000)
        .map(|member| format!("\"m{member}\":{member},"))
        .collect();
    reader.feed(wide.as_bytes());
    assert!(reader.matched.len() <= 1 && reader.text.capacity() <= 64);
    reader.feed(br#""model":"a"}"#);
    let found = reader.finish().expect("one meaning");
    assert_eq!(found.list[0].value, Some(text("a")));
}

#[test]
fn json_batch_is_counted_by_calls_that_agree() {
    let calls = |text: &str| read(&["m"], text.as_bytes()).map(|members| members.calls);
    assert_eq!(calls(r#"{"m":1}"#), Ok(1));
    assert_eq!(calls("[]"), Ok(0));
    assert_eq!(calls(r#"[{"m":"a"}, {"m":"a","x":[{"m":"b"}]}]"#), Ok(2));
    assert_eq!(calls(r#"[{"m":"a"},{"m":"b"}]"#), Err(BodyFlaw::Mixed));
    assert_eq!(calls(r#"[{"m":"a"},{}]"#), Err(BodyFlaw::Mixed));
    assert_eq!(calls(r#"[{},{"m":"a"}]"#), Err(BodyFlaw::Mixed));
    assert_eq!(calls(r#"[{"m":1},1]"#), Err(BodyFlaw::Mixed));
    assert_eq!(calls("[1,2,3]"), Ok(3));
    let paths = paths(&["n"]);
    let mut reader = Reader::request(&paths, paths.all(), 0);
    reader.feed(br#"[{"n":3},{},{"n":4},{"n":"x"}]"#);
    assert!(reader.is_batch(), "after its end too");
    let found = reader.finish().expect("they may differ");
    assert_eq!(
        (found.calls, found.list[0].sum, found.list[0].stated),
        (4, 7, 2)
    );
    assert!(found.list[0].unreadable);
    let calls = usize::try_from(CALLS_MAX).expect("a small number");
    let many = format!("[{}1]", "1,".repeat(calls));
    let mut reader = Reader::request(&paths, paths.all(), 0);
    reader.feed(many.as_bytes());
    assert_eq!(reader.finish(), Err(BodyFlaw::TooManyCalls));
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        (-1e9..1e9_f64).prop_map(Json::from),
        "[a-c\"\\\\\n é😀]{0,6}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::btree_map("[a-c]{1,2}", inner, 0..4)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn json_reader_agrees_with_serde_on_valid_texts(root in prop::collection::btree_map("[a-c]{1,2}", any_json(), 0..4), pretty: bool, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5)) {
        let root = Json::Object(root.into_iter().collect());
        let text = if pretty { serde_json::to_vec_pretty(&root) } else { serde_json::to_vec(&root) }.expect("a text");
        let paths = paths(&["a", "a.b", "b.c.a"]);
        let mut reader = Reader::request(&paths, paths.all(), paths.all());
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.index(text.len())).collect();
        cuts.sort_unstable();
        let mut from = 0;
        for cut in cuts {
            reader.feed(&text[from..cut]);
            from = cut;
        }
        reader.feed(&text[from..]);
        let found = reader.finish().expect("valid");
        for (place, pointer) in ["/a", "/a/b", "/b/c/a"].iter().enumerate() {
            let expected = root.pointer(pointer);
            let value = found.list[place].value.clone();
            match expected {
                None | Some(Json::Null) => prop_assert!(matches!(value, None | Some(Value::Odd))),
                Some(Json::String(text)) => prop_assert_eq!(value, Some(Value::Text(text.as_bytes().into()))),
                Some(Json::Bool(flag)) => prop_assert_eq!(value, Some(Value::Flag(*flag))),
                Some(Json::Number(number)) => if let Some(units) = number.as_u64() {
                    prop_assert_eq!(value, Some(Value::Number { units, whole: true }));
                } else {
                    prop_assert!(value.is_some());
                },
                Some(_) => prop_assert_eq!(value, Some(Value::Odd)),
            }
        }
    }

    #[test]
    fn json_reader_accepts_what_serde_accepts(text in "[\\[\\]{}:,\"a1e.\\\\tru -]{0,12}") {
        let accepted = match serde_json::from_str::<Json>(&text) {
            Ok(_) => true,
            // Only a floating-point number overflows.
            Err(error) => error.to_string().contains("out of range"),
        };
        let paths = paths(&["zz"]);
        let mut reader = Reader::request(&paths, paths.all(), paths.all());
        reader.feed(text.as_bytes());
        prop_assert_eq!(reader.finish().is_ok(), accepted, "{}", text);
    }

    #[test]
    fn json_response_of_any_bytes_is_read_without_a_panic(pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(b"{}[]:,\"\\aun1-e. \n\xff".to_vec()), 0..12), 0..4)) {
        let paths = paths(&["a", "a.a"]);
        let mut response = Reader::response(&paths);
        let mut request = Reader::request(&paths, paths.all(), 0);
        for piece in &pieces {
            response.feed(piece);
            request.feed(piece);
            response.restart();
        }
        let _ = (response.numbers(), request.finish());
    }
}

#[test]
fn json_response_numbers_at_several_paths_are_the_last_ones() {
    let paths = paths(&["usage.in", "usage.out", "message.usage.in"]);
    let mut reader = Reader::response(&paths);
    let texts = [
        json!({"message": {"usage": {"in": 25, "out": 1}}}),
        json!({"usage": {"out": 7}}),
        json!({"usage": {"out": 9, "in": null}}),
    ];
    for text in texts {
        reader.feed(text.to_string().as_bytes());
        reader.feed(b"\n");
    }
    assert_eq!(&reader.numbers()[..], [None, Some(9), Some(25)]);
}

#[test]
fn json_response_value_that_is_no_number_is_told_until_a_number_follows() {
    let paths = paths(&["usage.in", "usage.out", "model"]);
    let model = paths.place(&["model"]).expect("a path");
    for (body, expected) in [
        (r#"{"usage":{"in":1,"out":2},"model":"a"}"#, false),
        (r#"{"usage":{"in":1,"out":null,"other":"x"}}"#, false),
        (r#"{"usage":["x"]}"#, false),
        (r#"{"usage":{"in":1,"out":"2"}}"#, true),
        (r#"{"usage":{"in":1,"out":2e1}}"#, true),
        (r#"{"usage":{"in":1,"out":-2}}"#, true),
        (r#"{"usage":{"in":1,"out":{"n":2}}}"#, true),
        (r#"{"usage":{"in":1,"out":[2]}}"#, true),
        (r#"{"usage":{"in":1,"out":true}}"#, true),
        (r#"{"usage":{"in":1,"out":NaN}}"#, true),
        (r#"{"usage":{"in":1,"out":nan}}"#, true),
        (r#"{"usage":{"out":"2"}}{"usage":{"out":2}}"#, false),
        (r#"{"usage":{"out":2}}{"usage":{"out":"3"}}"#, true),
    ] {
        for cut in 0..body.len() {
            let mut reader = Reader::response(&paths).with_texts(1 << model);
            reader.feed(&body.as_bytes()[..cut]);
            reader.feed(&body.as_bytes()[cut..]);
            assert_eq!(reader.is_unreadable(), expected, "{body} {cut}");
        }
    }
}

#[test]
fn json_response_texts_are_the_last_at_their_paths_and_bounded() {
    let mut paths = Paths::default();
    for names in [&["model"][..], &["message", "model"], &["n"]] {
        let path: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        paths.add(&path).expect("room");
    }
    let paths = Arc::new(paths);
    let read = |body: &str| {
        let mut whole = None;
        for cut in 0..body.len() {
            let mut reader = Reader::response(&paths).with_texts(0b11);
            reader.feed(&body.as_bytes()[..cut]);
            reader.feed(&body.as_bytes()[cut..]);
            let texts: Vec<String> = reader.texts().map(str::to_owned).collect();
            let got = (texts, reader.numbers()[2]);
            assert_eq!(*whole.get_or_insert_with(|| got.clone()), got, "{cut}");
        }
        whole.expect("a body")
    };
    let of = |texts: &[&str], number| {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        (texts, number)
    };
    assert_eq!(
        read(r#"{"model":"a","n":"7","choices":[{"model":"b"}]}"#),
        of(&["a"], None),
        "a text at a number's path does not count"
    );
    assert_eq!(
        read(r#"{"message":{"model":"b\u0061","x":"y"},"n":7}{"model":"c","n":null}"#),
        of(&["c", "ba"], Some(7))
    );
    assert_eq!(
        read(r#"{"model":"a","x":1}{"model":{"y":2}}"#),
        of(&["a"], None)
    );
    let long = format!(r#"{{"model":"{}","n":7}}"#, "x".repeat(300));
    assert_eq!(read(&long), of(&[], Some(7)), "too long");
}
