//! Streams of messages on one connection, cut anywhere.

use std::cell::RefCell;

use bytes::BytesMut;
use http::HeaderMap;
use tollgate_http1::request::{Head, Limits};
use tollgate_http1::{Event, Requests, Responses};

/// One message of a stream as it was read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    /// Where in the stream it begins, and the first byte behind it.
    from: usize,
    to: usize,
    head: String,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    whole: bool,
}

/// What a stream was read as: its messages, and whether it ended with an error.
type Stream = (Vec<Told>, bool);

/// Reads `data`, which comes in pieces of `size`; `next` gives the events and the table of headers that came with one.
fn read_stream<H>(
    data: &[u8],
    size: usize,
    mut next: impl FnMut(&mut BytesMut, usize) -> Result<Option<Event<H>>, ()>,
    mut head: impl FnMut(H) -> String,
) -> Stream {
    let (mut input, mut fed) = (BytesMut::new(), 0);
    let mut told: Vec<Told> = Vec::new();
    for piece in data.chunks(size) {
        input.extend_from_slice(piece);
        fed += piece.len();
        loop {
            let from = fed - input.len();
            let event = match next(&mut input, told.len()) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(()) => return (told, true),
            };
            let to = fed - input.len();
            if let Event::Head(it) = event {
                let head = head(it);
                told.push(Told {
                    from,
                    to,
                    head,
                    ..Told::default()
                });
                continue;
            }
            let last = told.last_mut().expect("a head comes first");
            last.to = to;
            match event {
                Event::Head(_) => unreachable!("taken above"),
                Event::Data(data) => {
                    assert!(!data.is_empty(), "no piece is empty");
                    last.body.extend_from_slice(&data);
                }
                Event::Trailers(trailers) => last.trailers = Some(trailers),
                Event::End => last.whole = true,
            }
        }
    }
    (told, false)
}

fn read_requests(data: &[u8], size: usize) -> Stream {
    let limits = Limits {
        bytes: 2048,
        fields: 32,
        target: 512,
    };
    let requests = RefCell::new(Requests::new());
    read_stream(
        data,
        size,
        |input, _| requests.borrow_mut().read(input, limits).map_err(|_| ()),
        |head: Head| {
            let told = format!(
                "{} {} {:?} {:?} {:?} {}",
                head.parts.method,
                head.parts.uri,
                head.parts.version,
                head.parts.headers,
                head.body,
                head.persists
            );
            // The table of one request is that of the next.
            requests.borrow_mut().reuse(head.parts.headers);
            told
        },
    )
}

/// The requests of a connection, one behind the other: the same however they are cut, and each the same as if it were the
/// first. Nothing that is kept from one to the next shows.
pub(crate) fn requests(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let whole = read_requests(stream, stream.len().max(1));
    for size in [1, usize::from(*first) + 1] {
        assert_same(&read_requests(stream, size), &whole, size);
    }
    for message in &whole.0 {
        let (alone, _) = read_requests(&stream[message.from..], stream.len());
        assert_eq!(alone[0].head, message.head);
        assert_eq!(alone[0].body, message.body);
        assert_eq!(alone[0].trailers, message.trailers);
    }
}

fn assert_same(pieces: &Stream, whole: &Stream, size: usize) {
    let but_blanks = |(told, failed): &Stream| {
        // Blank lines before a request are taken with it, or alone.
        let told = told
            .iter()
            .map(|one| (&one.head, &one.body, &one.trailers, one.to, one.whole));
        format!("{:?} {failed}", told.collect::<Vec<_>>())
    };
    assert_eq!(but_blanks(pieces), but_blanks(whole), "in pieces of {size}");
}

/// `heads` says by its bits which responses are to HEAD; `verbatim`: headers may stay as they are written.
fn read_responses(data: &[u8], size: usize, heads: u8, verbatim: bool) -> Stream {
    let responses = RefCell::new(Responses::new());
    let mut asked = 0;
    let (mut told, failed) = read_stream(
        data,
        size,
        |input, _| {
            let mut responses = responses.borrow_mut();
            if !responses.is_under_way() && responses.persists() && !input.is_empty() {
                if let Some(event) = responses.read(input).map_err(|_| ())? {
                    return Ok(Some(event));
                }
                responses.expect(heads >> (asked % 8) & 1 == 1);
                if verbatim {
                    responses.allow_verbatim();
                }
                asked += 1;
            }
            responses.read(input).map_err(|_| ())
        },
        |head: tollgate_http1::responses::Head| {
            let mut responses = responses.borrow_mut();
            let mut told = format!("{:?} {:?}", head.parts.version, head.parts.status);
            if !verbatim {
                told += &format!("{:?} {:?}", head.parts.headers, head.reason);
            }
            let _ = responses.take_verbatim();
            responses.reuse(head.parts.headers);
            told
        },
    );
    if responses.borrow_mut().end().is_ok()
        && let Some(last) = told.last_mut()
    {
        last.whole = true;
    }
    (told, failed)
}

/// The responses of a connection: the same however they are cut, and whether their headers are taken apart or not.
pub(crate) fn responses(data: &[u8]) {
    let [size, heads, stream @ ..] = data else {
        return;
    };
    let read = |size: usize, verbatim| read_responses(stream, size, *heads, verbatim);
    let pieces = usize::from(*size) + 1;
    let whole = read(stream.len().max(1), false);
    assert_same(&read(1, false), &whole, 1);
    assert_same(&read(pieces, false), &whole, pieces);
    let verbatim = read(stream.len().max(1), true);
    assert_same(&read(pieces, true), &verbatim, pieces);
    let bodies = |(told, failed): &Stream| {
        let told = told.iter().map(|one| (one.body.clone(), one.to, one.whole));
        (told.collect::<Vec<_>>(), *failed)
    };
    assert_eq!(bodies(&verbatim), bodies(&whole));
}
