//! Heads as they come, and as they must not come.

use super::*;

const BOUNDS: Bounds = Bounds {
    bytes: 4096,
    lines: 9,
    bare_lf: false,
};

fn parse(text: &str) -> Result<(Vec<u8>, HeaderMap), Malformed> {
    let mut lines = Lines::new();
    let length = lines.find(text.as_bytes(), BOUNDS)?.expect("a whole head");
    let head = Bytes::copy_from_slice(&text.as_bytes()[..length]);
    let mut headers = HeaderMap::new();
    lines.fields(&head, 1, &mut headers)?;
    Ok((lines.line(&head, 0).to_vec(), headers))
}

#[test]
fn headers_have_the_values_of_their_lines() {
    let (first, headers) =
        parse("HTTP/1.1 200 OK\r\nA: 1\r\nb:\t two \r\nA:3\r\nEmpty:\r\n\r\nrest").expect("a head");
    assert_eq!(first, b"HTTP/1.1 200 OK");
    let all: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    assert_eq!(
        all,
        [("a", &b"1"[..]), ("a", b"3"), ("b", b"two"), ("empty", b"")]
    );
}

#[test]
fn cached_values_equal_the_input_and_keep_no_buffer() {
    let (mut lines, mut dice) = (Lines::new(), fastrand::Rng::with_seed(5));
    for round in 0..2000 {
        let value = |dice: &mut fastrand::Rng| "v".repeat(dice.usize(..3) * dice.usize(..70));
        let values = [
            value(&mut dice),
            "same".to_owned(),
            if round % 7 == 0 {
                value(&mut dice)
            } else {
                "seldom".into()
            },
        ];
        let text = format!(
            "S\r\na: {}\r\nb:{} \r\nc: {}\r\n\r\n",
            values[0], values[1], values[2]
        );
        lines.reset();
        let length = lines
            .find(text.as_bytes(), BOUNDS)
            .expect("a head")
            .expect("a whole head");
        let head = Bytes::copy_from_slice(&text.as_bytes()[..length]);
        let mut headers = HeaderMap::new();
        lines.fields(&head, 1, &mut headers).expect("well-formed");
        let got: Vec<_> = headers
            .values()
            .map(|value| value.to_str().expect("text").to_owned())
            .collect();
        assert_eq!(got, values, "round {round}");
        let inside = |value: &HeaderValue| head.as_ptr_range().contains(&value.as_bytes().as_ptr());
        assert_eq!(
            lines.names.known.is_empty(),
            round == 0,
            "the first may be the only one"
        );
        assert!(
            round < 1 || !inside(&headers["b"]),
            "round {round}: it is the copy"
        );
        assert!(
            lines
                .names
                .known
                .iter()
                .all(|known| known.value.as_ref().is_none_or(|value| !inside(value)))
        );
    }
    assert!(
        lines.names.known[0].value.is_none(),
        "what changes is not remembered"
    );
    lines.reset();
    let bad = "S\r\na: x\r\nb: sa\u{1}e\r\n\r\n";
    lines.find(bad.as_bytes(), BOUNDS).expect("lines");
    let refused = lines.fields(
        &Bytes::from_static(bad.as_bytes()),
        1,
        &mut HeaderMap::new(),
    );
    assert_eq!(
        refused,
        Err(Malformed::FieldValue),
        "whatever stood there before"
    );
}

/// The next head may be another client's.
#[test]
fn forgotten_values_leave_no_copy_and_are_not_remembered_again() {
    let mut lines = Lines::new();
    let read = |lines: &mut Lines, text: &str| {
        lines.reset();
        lines.find(text.as_bytes(), BOUNDS).expect("a head");
        let head = Bytes::copy_from_slice(text.as_bytes());
        let mut headers = HeaderMap::new();
        lines.fields(&head, 1, &mut headers).expect("well-formed");
        headers["x-api-key"].clone()
    };
    let mut copies = Vec::new();
    for round in 0..6 {
        if round == 3 {
            lines.names.forget_values();
        }
        let value = read(&mut lines, "S\r\nx-api-key: secret\r\n\r\n");
        assert_eq!(value, "secret");
        copies.push(lines.names.known.iter().any(|known| known.value.is_some()));
    }
    assert_eq!(copies, [false, true, true, false, false, false]);
    assert_eq!(lines.names.known.len(), 1, "the name stays");
}

#[test]
fn remembered_names_are_never_taken_for_others() {
    let mut lines = Lines::new();
    let mut read = |text: &str| {
        lines.reset();
        let length = lines.find(text.as_bytes(), BOUNDS)?.expect("a whole head");
        let mut headers = HeaderMap::new();
        lines.fields(
            &Bytes::copy_from_slice(&text.as_bytes()[..length]),
            1,
            &mut headers,
        )?;
        let all = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")));
        Ok::<_, Malformed>(all.collect::<Vec<_>>().join(" "))
    };
    let long = "x".repeat(50);
    for (text, expected) in [
        (
            "S\r\nAge: 1\r\nX-One: 2\r\n\r\n",
            Ok("age=1 x-one=2".to_owned()),
        ),
        (
            "S\r\nAge: 3\r\nX-One: 4\r\n\r\n",
            Ok("age=3 x-one=4".to_owned()),
        ),
        (
            "S\r\nAge-Not: 3\r\nX-One: 4\r\n\r\n",
            Ok("age-not=3 x-one=4".to_owned()),
        ),
        (
            "S\r\nAge: 3\r\nX-On: e\r\n\r\n",
            Ok("age=3 x-on=e".to_owned()),
        ),
        ("S\r\nAge : 3\r\n\r\n", Err(Malformed::FieldName)),
        ("S\r\nAge\r\n\r\n", Err(Malformed::FieldName)),
        (
            "S\r\nX-One: 1\r\nAge: 2\r\nETag: 3\r\n\r\n",
            Ok("x-one=1 age=2 etag=3".to_owned()),
        ),
        (
            &format!("S\r\n{long}: 1\r\nAge: 2\r\n\r\n"),
            Ok(format!("{long}=1 age=2")),
        ),
        (
            "S\r\nX-One: 1\r\nAge: 2\r\n\r\n",
            Ok("x-one=1 age=2".to_owned()),
        ),
        ("S\r\n\r\n", Ok(String::new())),
    ] {
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn ambiguous_head_is_refused() {
    for (bad, why) in [
        ("S\r\nA : 1\r\n\r\n", Malformed::FieldName),
        ("S\r\nA: 1\r\n folded\r\n\r\n", Malformed::FieldName),
        ("S\r\n A: 1\r\n\r\n", Malformed::FieldName),
        ("S\r\n: 1\r\n\r\n", Malformed::FieldName),
        ("S\r\nno colon\r\n\r\n", Malformed::FieldName),
        ("S\r\nA\u{e4}: 1\r\n\r\n", Malformed::FieldName),
        ("S\r\nA: 1\0\r\n\r\n", Malformed::FieldValue),
        ("S\r\nA: 1\r2\r\n\r\n", Malformed::FieldValue),
        ("S\r\nA: 1\r\r\n\r\n", Malformed::FieldValue),
        ("S\r\nA: \x7f\r\n\r\n", Malformed::FieldValue),
        ("S\nA: 1\r\n\r\n", Malformed::LineEnd),
        ("S\r\nA: 1\n\r\n", Malformed::LineEnd),
        ("S\r\nA: 1\r\n\n", Malformed::LineEnd),
        (
            "S\r\na:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\ni:\r\n\r\n",
            Malformed::TooManyFields,
        ),
    ] {
        assert_eq!(parse(bad).expect_err(bad), why, "{bad:?}");
    }
    assert!(parse("S\r\na:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\n\r\n").is_ok());
    let mut lines = Lines::new();
    let lenient = Bounds {
        bare_lf: true,
        ..BOUNDS
    };
    assert_eq!(lines.find(b"S\nA: 1\r\n\nrest", lenient), Ok(Some(9)));
    assert_eq!(lines.line(b"S\nA: 1\r\n\n", 1), b"A: 1");
}

#[test]
fn a_head_is_bounded_and_may_come_byte_by_byte() {
    let text = b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\n";
    let mut lines = Lines::new();
    for length in 0..text.len() {
        assert_eq!(lines.find(&text[..length], BOUNDS), Ok(None), "{length}");
    }
    assert_eq!(lines.find(text, BOUNDS), Ok(Some(text.len())));
    let exact = Bounds {
        bytes: text.len(),
        ..BOUNDS
    };
    assert_eq!(Lines::new().find(text, exact), Ok(Some(text.len())));
    for less in 1..text.len() {
        let bounds = Bounds {
            bytes: text.len() - less,
            ..BOUNDS
        };
        assert_eq!(
            Lines::new().find(text, bounds),
            Err(Malformed::TooLarge),
            "{less}"
        );
    }
    assert_eq!(
        Lines::new().find(&vec![b'x'; 4096], BOUNDS),
        Err(Malformed::TooLarge)
    );
}

#[test]
fn status_lines() {
    let good = |line: &'static [u8]| status_line(line).expect("a status line");
    assert_eq!(
        good(b"HTTP/1.1 200 OK"),
        (Version::HTTP_11, StatusCode::OK, &b"OK"[..])
    );
    assert_eq!(
        good(b"HTTP/1.0 404 Not Here"),
        (Version::HTTP_10, StatusCode::NOT_FOUND, &b"Not Here"[..])
    );
    assert_eq!(
        good(b"HTTP/1.1 204"),
        (Version::HTTP_11, StatusCode::NO_CONTENT, &b""[..])
    );
    assert_eq!(
        good(b"HTTP/1.1 204 "),
        (Version::HTTP_11, StatusCode::NO_CONTENT, &b""[..])
    );
    for bad in [
        &b""[..],
        b"HTTP/1.1",
        b"HTTP/1.1 ",
        b"HTTP/1.1 20",
        b"HTTP/1.1 2000",
        b"HTTP/1.1 20x OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1\t200 OK",
        b" HTTP/1.1 200 OK",
        b"HTTP/1.1 200 O\rK",
        b"HTTP/1.1 200 O\0K",
        b"HTTP/1.1 099 OK",
        b"ICY 200 OK\r\n",
        b"http/1.1 200 OK",
        b"garbage",
    ] {
        assert_eq!(
            status_line(bad),
            Err(Malformed::StartLine),
            "{:?}",
            String::from_utf8_lossy(bad)
        );
    }
    for bad in [
        &b"HTTP/2.0 200 OK"[..],
        b"HTTP/1.2 200 OK",
        b"HTTP/0.9 200 OK",
        b"HTTP/1,1 200 OK",
    ] {
        assert_eq!(status_line(bad), Err(Malformed::Version));
    }
}

#[test]
fn framing_is_one_number_or_one_coding() {
    let of = |fields: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        Framing::of(&headers)
    };
    let length = |length| {
        Ok(Framing {
            length: Some(length),
            ..Framing::default()
        })
    };
    assert_eq!(of(&[("content-length", "0")]), length(0));
    assert_eq!(
        of(&[("content-length", "18446744073709551615")]),
        length(u64::MAX)
    );
    for bad in [
        "",
        "-1",
        "+1",
        "1 ",
        "1,1",
        "1, 1",
        "0x1",
        "1.0",
        "18446744073709551616",
        "99999999999999999999999",
    ] {
        let bad: &'static str = bad;
        assert_eq!(
            of(&[("content-length", bad)]),
            Err(Malformed::ContentLength),
            "{bad:?}"
        );
    }
    assert_eq!(
        of(&[("content-length", "1"), ("content-length", "1")]),
        Err(Malformed::ContentLength)
    );
    assert!(of(&[("transfer-encoding", "Chunked")]).is_ok_and(|framing| framing.chunked));
    for bad in [
        "",
        "identity",
        "chunked, chunked",
        "gzip, chunked",
        ",chunked",
        "chunked;q=1",
        "xchunked",
    ] {
        let bad: &'static str = bad;
        assert_eq!(
            of(&[("transfer-encoding", bad)]),
            Err(Malformed::TransferEncoding),
            "{bad:?}"
        );
    }
    let twice = [
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "chunked"),
    ];
    assert_eq!(of(&twice), Err(Malformed::TransferEncoding));
    let persists = |value, version| {
        of(&[("connection", value)])
            .expect("framing")
            .persists(version)
    };
    assert!(persists("x, Keep-Alive", Version::HTTP_10) && !persists("x", Version::HTTP_10));
    assert!(persists("x", Version::HTTP_11) && !persists("keep-alive , CLOSE", Version::HTTP_11));
}
