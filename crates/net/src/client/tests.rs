//! The client against scripted servers: what they say is cut in pieces, malformed, early or late.

mod responses;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::Waker;

use http::HeaderValue;
use http_body_util::{Empty, Full};
use tokio::io::ReadBuf;

use super::*;

/// A server that says what it says in these pieces, whatever it is asked, and then goes or stays silent.
#[derive(Default)]
struct Script {
    says: VecDeque<Vec<u8>>,
    stays: bool,
    heard: Vec<u8>,
    /// Bytes it takes before it takes no more.
    takes: Option<usize>,
    /// It takes nothing yet.
    stalls: bool,
    /// The request allows that the response headers are not parsed.
    verbatim: bool,
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.says.pop_front() else {
            return if self.stays {
                Poll::Pending
            } else {
                Poll::Ready(Ok(()))
            };
        };
        let taken = piece.len().min(buf.remaining());
        buf.put_slice(&piece[..taken]);
        if taken < piece.len() {
            self.says.push_front(piece.split_off(taken));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.stalls {
            return Poll::Pending;
        }
        if self
            .takes
            .is_some_and(|takes| self.heard.len() + buf.len() > takes)
        {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.heard.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Link = Client<Script, Full<Bytes>>;

fn link(pieces: &[&[u8]]) -> Link {
    let says = pieces
        .iter()
        .filter(|piece| !piece.is_empty())
        .map(|piece| piece.to_vec())
        .collect();
    Client::new(Script {
        says,
        stays: true,
        ..Script::default()
    })
}

fn ask(link: &mut Link, method: Method) {
    let mut headers = HeaderMap::from_iter([(http::header::HOST, HeaderValue::from_static("a"))]);
    link.ask(&method, &Uri::from_static("/x?y"), &mut headers, None, true);
    if link.socket.verbatim {
        link.allow_verbatim();
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// What came of an exchange: status, body, trailers, whether the connection may be used again. `None`: it waits.
type Came = Option<Result<(u16, Vec<u8>, Option<HeaderMap>, bool), String>>;

fn exchange(link: &mut Link, method: Method) -> Came {
    ask(link, method);
    // A link that was looked at a moment ago waits once for what it then reads.
    let first = link.poll_response(&mut context(), |_, _| ());
    let response = if first.is_pending() {
        link.poll_response(&mut context(), |_, _| ())
    } else {
        first
    };
    let head = match response {
        Poll::Pending => return None,
        Poll::Ready(Err(failure)) => return Some(Err(word(&failure))),
        Poll::Ready(Ok(head)) => head,
    };
    let (mut body, mut trailers) = (Vec::new(), None);
    if let Some(whole) = link.take_whole() {
        body.extend_from_slice(&whole);
    }
    loop {
        match link.poll_body(&mut context(), true) {
            Poll::Pending => return None,
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(failure))) => return Some(Err(word(&failure))),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
    Some(Ok((
        head.status.as_u16(),
        body,
        trailers,
        link.is_reusable(),
    )))
}

fn word(failure: &Failure<Infallible>) -> String {
    match failure {
        Failure::Silent(_) => "silent".to_owned(),
        Failure::Broken(_) => "broken".to_owned(),
        Failure::Malformed(error) => format!("{error:?}"),
        Failure::Body(never) => match *never {},
    }
}

fn once(said: &str) -> Came {
    let [apart, verbatim] = [false, true].map(|verbatim| {
        let mut link = link(&[said.as_bytes()]);
        (link.socket.stays, link.socket.verbatim) = (false, verbatim);
        exchange(&mut link, Method::GET)
    });
    assert_eq!(apart, verbatim, "whether its fields are taken apart or not");
    apart
}

#[test]
fn one_connection_carries_many_exchanges() {
    let mut link = link(&[]);
    for number in 0..20 {
        let said =
            format!("HTTP/1.1 200 OK\r\nN: {number}\r\nContent-Length: 3\r\n\r\n{number:03}");
        link.socket.says.push_back(said.into_bytes());
        link.socket.verbatim = number % 3 > 0;
        let (_, body, _, reusable) = exchange(&mut link, Method::GET)
            .expect("a response")
            .expect("a good one");
        assert_eq!(
            (body, reusable),
            (format!("{number:03}").into_bytes(), true)
        );
        link.reuse();
        assert!(link.is_silent(&mut context()));
    }
    link.socket.says.push_back(b"x".to_vec());
    assert!(!link.is_silent(&mut context()), "what comes unasked");
}

#[test]
fn client_bytes_after_a_response_are_never_the_next_one() {
    for said in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n",
    ] {
        let mut link = link(&[said.as_bytes()]);
        let (.., reusable) = exchange(&mut link, Method::GET).expect(said).expect(said);
        assert!(!reusable, "{said:?}");
    }
    let mut head = link(&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]);
    assert_eq!(
        exchange(&mut head, Method::HEAD),
        Some(Ok((200, Vec::new(), None, false))),
        "it may come late"
    );
    let mut head = link(&[b"HTTP/1.1 200 OK\r\n\r\n"]);
    assert_eq!(
        exchange(&mut head, Method::HEAD),
        Some(Ok((200, Vec::new(), None, true)))
    );
    let mut head = link(&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"]);
    assert_eq!(
        exchange(&mut head, Method::HEAD),
        Some(Ok((200, Vec::new(), None, false)))
    );
    // Until the end, which is no truncation here, and the end of the connection.
    assert_eq!(
        once("HTTP/1.1 200 OK\r\n\r\nall of it"),
        Some(Ok((200, b"all of it".to_vec(), None, false)))
    );
}

#[test]
fn client_101_hands_over_the_socket_and_later_bytes() {
    let mut link = link(&[b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nearly"]);
    ask(&mut link, Method::GET);
    let Poll::Ready(Ok(head)) = link.poll_response(&mut context(), |_, _| ()) else {
        panic!("a head")
    };
    assert_eq!(
        (head.status.as_u16(), link.left(), link.is_reusable()),
        (101, Some(0), false)
    );
    assert_eq!(link.into_parts().1, "early");
}

#[test]
fn a_switch_before_the_request_has_gone_is_none() {
    for (stalls, takes) in [(true, None), (false, Some(0))] {
        let mut link = link(&[b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nearly"]);
        (link.socket.stalls, link.socket.takes) = (stalls, takes);
        ask(&mut link, Method::GET);
        let response = link.poll_response(&mut context(), |_, _| ());
        assert!(
            matches!(
                response,
                Poll::Ready(Err(Failure::Malformed(Malformed::Unasked)))
            ),
            "{response:?}"
        );
    }
}

#[test]
fn client_only_a_silent_server_leaves_a_request_unprocessed() {
    let mut silent = link(&[]);
    silent.socket.stays = false;
    assert!(matches!(exchange(&mut silent, Method::HEAD), Some(Err(word)) if word == "silent"));
    let request = silent.unanswered().expect("it was kept");
    let mut fresh = link(&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]);
    fresh.ask_again(request);
    assert!(matches!(
        fresh.poll_response(&mut context(), |_, _| ()),
        Poll::Ready(Ok(_))
    ));
    assert_eq!(fresh.socket.heard, b"HEAD /x?y HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(fresh.left(), Some(0), "it is known that it was a HEAD");
    // The server is gone before anything could be written.
    let mut gone = link(&[]);
    gone.socket.takes = Some(0);
    assert!(matches!(exchange(&mut gone, Method::GET), Some(Err(word)) if word == "silent"));
    assert!(gone.unanswered().is_some());
    for said in [&b"H"[..], b"HTTP/1.1 100 Continue\r\n\r\n"] {
        let mut begun = link(&[said]);
        begun.socket.stays = false;
        assert!(matches!(exchange(&mut begun, Method::GET), Some(Err(word)) if word == "broken"));
        assert!(begun.unanswered().is_none());
    }
}

#[test]
fn client_response_counts_though_the_server_reads_no_more() {
    let mut link = link(&[b"HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nbig"]);
    link.socket.takes = Some(100);
    let body = Full::new(Bytes::from(vec![b'x'; 10_000]));
    link.ask(
        &Method::POST,
        &Uri::from_static("/"),
        &mut HeaderMap::new(),
        Some(body),
        false,
    );
    let Poll::Ready(Ok(head)) = link.poll_response(&mut context(), |_, _| ()) else {
        panic!("a head")
    };
    assert_eq!(head.status, 413);
    assert_eq!(link.take_whole().as_deref(), Some(&b"big"[..]));
    assert!(!link.is_reusable());
}

/// A body of unknown length.
struct Steps(VecDeque<Frame<Bytes>>);

impl Body for Steps {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[test]
fn a_body_goes_by_its_length_or_in_chunks() {
    let response: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let mut by_length = link(&[response]);
    let body = Full::new(Bytes::from_static(b"hello"));
    by_length.ask(
        &Method::POST,
        &Uri::from_static("*"),
        &mut HeaderMap::new(),
        Some(body),
        false,
    );
    assert!(
        by_length
            .poll_response(&mut context(), |_, _| ())
            .is_ready()
    );
    assert_eq!(
        by_length.socket.heard,
        b"POST * HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello"
    );
    assert!(by_length.is_reusable());

    let sent = |frames: Vec<Frame<Bytes>>| {
        let mut client = Client::new(Script {
            stays: true,
            ..Script::default()
        });
        client.ask(
            &Method::POST,
            &Uri::from_static("/"),
            &mut HeaderMap::new(),
            Some(Steps(frames.into())),
            false,
        );
        assert!(client.poll_response(&mut context(), |_, _| ()).is_pending());
        String::from_utf8_lossy(&client.socket.heard).into_owned()
    };
    let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("z"))]);
    let data = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
    let chunked = sent(vec![data("hello"), data(""), data("0123456789")]);
    let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\na\r\n0123456789\r\n0\r\n";
    assert_eq!(chunked, format!("{head}\r\n"));
    let chunked = sent(vec![
        data("hello"),
        data("0123456789"),
        Frame::trailers(trailers),
    ]);
    assert_eq!(chunked, format!("{head}etag: z\r\n\r\n"));
    let mut none = Client::<Script, Empty<Bytes>>::new(Script::default());
    none.ask(
        &Method::POST,
        &Uri::from_static("/"),
        &mut HeaderMap::new(),
        Some(Empty::new()),
        false,
    );
    assert!(none.poll_response(&mut context(), |_, _| ()).is_ready());
    assert_eq!(
        none.socket.heard,
        b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    );
}

#[test]
fn http1_request_of_which_the_socket_took_nothing_is_untouched() {
    for (takes, untouched) in [(Some(0), true), (None, false)] {
        let mut link = Client::new(Script {
            takes,
            ..Script::default()
        });
        ask(&mut link, Method::POST);
        let Poll::Ready(Err(Failure::Silent(_))) = link.poll_response(&mut context(), |_, _| ())
        else {
            panic!("the server has gone")
        };
        assert_eq!(
            link.unanswered().expect("it is kept").is_untouched(),
            untouched,
            "{takes:?}"
        );
    }
}
