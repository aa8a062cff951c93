use super::*;

/// The body, its trailers and what is left behind it; `None`: it is not whole.
type Read = Option<(Vec<u8>, Option<HeaderMap>, Vec<u8>)>;

fn read(pieces: &[&[u8]]) -> Result<Read, Malformed> {
    let (mut decoder, mut input, mut body) = (Decoder::new(), BytesMut::new(), Vec::new());
    let mut pieces = pieces.iter();
    loop {
        match decoder.decode(&mut input)? {
            Some(Piece::Data(data)) => {
                assert!(!data.is_empty(), "no piece is empty");
                body.extend_from_slice(&data);
            }
            Some(Piece::End(trailers)) => {
                let mut rest = input.to_vec();
                pieces.for_each(|piece| rest.extend_from_slice(piece));
                return Ok(Some((body, trailers, rest)));
            }
            None => match pieces.next() {
                Some(piece) => input.extend_from_slice(piece),
                None => return Ok(None),
            },
        }
    }
}

#[test]
fn chunked_body_is_read_and_later_bytes_are_left() {
    let whole = |text: &str| read(&[text.as_bytes()]).expect(text).expect(text);
    assert_eq!(whole("0\r\n\r\nnext"), (Vec::new(), None, b"next".to_vec()));
    assert_eq!(
        whole("5\r\nhello\r\n00A;x=\"y z\"\r\n0123456789\r\n000\r\n\r\n").0,
        b"hello0123456789"
    );
    assert_eq!(whole("5 ;x\r\nhello\r\n0 \t\r\n\r\n").0, b"hello");
    let (_, trailers, rest) = whole("1\r\n\n\r\n0\r\nX-Sum: 42\r\nX-Sum: 43\r\n\r\nHTTP/1.1 ");
    assert_eq!(
        trailers.expect("trailers").get_all("x-sum").iter().count(),
        2
    );
    assert_eq!(rest, b"HTTP/1.1 ");
    assert_eq!(read(&[b"5\r\nhel"]), Ok(None));
    assert_eq!(read(&[b"5\r\nhello\r\n0\r\n"]), Ok(None));
}

#[test]
fn nothing_is_guessed() {
    for (bad, why) in [
        ("\r\n", Malformed::ChunkSize),
        ("x\r\n", Malformed::ChunkSize),
        ("-1\r\n", Malformed::ChunkSize),
        ("+1\r\n", Malformed::ChunkSize),
        ("0x1\r\n", Malformed::ChunkSize),
        (" 1\r\n", Malformed::ChunkSize),
        ("1 1\r\n", Malformed::ChunkSize),
        ("1_0\r\n", Malformed::ChunkSize),
        (";x\r\n", Malformed::ChunkSize),
        ("10000000000000000\r\n", Malformed::ChunkSize),
        ("00000000000000001\r\n", Malformed::ChunkSize),
        ("1\n", Malformed::ChunkSize),
        ("1\rx", Malformed::LineEnd),
        ("1\r\r\n", Malformed::LineEnd),
        ("1;x\n", Malformed::ChunkExtension),
        ("1;x\0\r\n", Malformed::ChunkExtension),
        ("1;x\ry\r\n", Malformed::LineEnd),
        ("1\r\nab\r\n", Malformed::ChunkEnd),
        ("1\r\na\n0\r\n", Malformed::ChunkEnd),
        ("1\r\na\rb", Malformed::ChunkEnd),
        ("1\r\na0\r\n", Malformed::ChunkEnd),
        ("0\r\nno colon\r\n\r\n", Malformed::FieldName),
        ("0\r\nA: 1\r\n folded\r\n\r\n", Malformed::FieldName),
        ("0\r\nA: \0\r\n\r\n", Malformed::FieldValue),
        ("0\r\nA: 1\n\r\n", Malformed::LineEnd),
        ("0\r\n\n", Malformed::LineEnd),
    ] {
        assert_eq!(read(&[bad.as_bytes()]), Err(why), "{bad:?}");
    }
}

#[test]
fn everything_is_bounded() {
    let extended = |bytes| format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(bytes));
    assert!(matches!(
        read(&[extended(EXTENSIONS).as_bytes()]),
        Ok(Some(_))
    ));
    assert_eq!(
        read(&[extended(EXTENSIONS + 1).as_bytes()]),
        Err(Malformed::ChunkExtension)
    );
    let many = format!(
        "{}0\r\n\r\n",
        "1;xxxxxxx\r\na\r\n".repeat(EXTENSIONS / 7 + 1)
    );
    assert_eq!(
        read(&[many.as_bytes()]),
        Err(Malformed::ChunkExtension),
        "over all chunks"
    );
    let trailers = |count| format!("0\r\n{}\r\n", "a: b\r\n".repeat(count));
    assert!(matches!(read(&[trailers(100).as_bytes()]), Ok(Some(_))));
    assert_eq!(
        read(&[trailers(101).as_bytes()]),
        Err(Malformed::TooManyFields)
    );
    let long = format!("0\r\na: {}\r\n\r\n", "b".repeat(16 * 1024));
    assert_eq!(read(&[long.as_bytes()]), Err(Malformed::TooLarge));
}

/// What is written is read again, wherever it is cut; and whatever is done to it, nothing is
/// read beyond its end.
#[test]
fn any_body_comes_back_whatever_pieces_it_comes_in() {
    let mut dice = fastrand::Rng::with_seed(9112);
    for round in 0..2_000 {
        let (mut wire, mut body) = (Vec::new(), Vec::new());
        for _ in 0..dice.usize(0..5) {
            let data: Vec<u8> = (0..dice.usize(1..40)).map(|_| dice.u8(..)).collect();
            write_size(&mut wire, data.len());
            wire.extend_from_slice(&data);
            wire.extend_from_slice(CHUNK_END);
            body.extend_from_slice(&data);
        }
        let mut trailers = HeaderMap::new();
        for _ in 0..dice.usize(0..3) {
            trailers.append("x-sum", dice.u32(..).into());
        }
        write_end(&mut wire, (!trailers.is_empty()).then_some(&trailers));
        let end = wire.len();
        wire.extend_from_slice(b"GET /next");
        let (mut pieces, mut rest) = (Vec::new(), &wire[..]);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(dice.usize(1..=rest.len().min(30)));
            pieces.push(piece);
            rest = after;
        }
        let (got, fields, left) = read(&pieces).expect("well formed").expect("whole");
        assert_eq!((got, left), (body, b"GET /next".to_vec()), "round {round}");
        assert_eq!(fields.unwrap_or_default(), trailers, "round {round}");
        // One byte changed: an error, another body, or one that does not end, but never a
        // panic; cut short it never ends.
        assert_eq!(
            read(&[&wire[..dice.usize(..end)]]),
            Ok(None),
            "round {round}"
        );
        wire[dice.usize(..end)] = dice.u8(..);
        let _ = read(&[&wire]);
    }
}

#[test]
fn sizes_are_hexadecimal() {
    for length in [1, 9, 10, 15, 16, 255, 4096, 0xdead_beef, usize::MAX] {
        let mut out = Vec::new();
        write_size(&mut out, length);
        assert_eq!(out, format!("{length:x}\r\n").into_bytes());
    }
}
