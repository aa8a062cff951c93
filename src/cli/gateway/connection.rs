//! A connection to an admin listener. It carries one request and one response, and uses no HTTP
//! library.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;
use tokio::time::Instant;

/// A connection for one request.
pub(in crate::cli) struct Connection {
    stream: Timed,
    host: String,
    patience: Duration,
}

impl Connection {
    pub(super) fn new(stream: Socket, host: String, patience: Duration, until: Instant) -> Self {
        Self {
            stream: Timed { stream, until },
            host,
            patience,
        }
    }

    /// Sends `GET path`; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not respond in time.
    pub(super) fn get(self, path: &str, token: Option<&str>) -> io::Result<(u16, String)> {
        let head = format!("GET {path} HTTP/1.1\r\n{}", bearer(token));
        exchange(self.stream, &self.host, &head, "")
            .map_err(|error| worded(error, self.patience, ""))
    }

    /// Sends `method path` with a JSON document; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not respond in time. The change may have been made.
    pub(in crate::cli) fn change(
        self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let (length, token) = (body.len(), bearer(token));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{token}"
        );
        exchange(self.stream, &self.host, &head, body)
            .map_err(|error| worded(error, self.patience, "; the change may have been made"))
    }
}

/// A socket that is read and written until a moment, however many steps that takes.
struct Timed {
    stream: Socket,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        // A socket takes zero microseconds for no limit.
        match left.as_micros() == 0 {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error as it follows the words "no response". The system's own words for a time-out do not
/// name it.
pub(super) fn worded(error: io::Error, patience: Duration, also: &str) -> io::Error {
    let is_late = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    );
    let words = match (is_late, patience.subsec_millis()) {
        (true, 0) => format!("within {} s", patience.as_secs()),
        (true, _) => format!("within {} ms", patience.as_millis()),
        (false, _) => error.to_string(),
    };
    let kind = match is_late {
        true => io::ErrorKind::TimedOut,
        false => error.kind(),
    };
    io::Error::new(kind, format!("{words}{also}"))
}

/// That there is no response from `place` (`""`: it is known from where), and why.
pub(in crate::cli) fn no_response(place: &str, error: &io::Error) -> String {
    let colon = match error.kind() {
        io::ErrorKind::TimedOut => "",
        _ => ":",
    };
    format!("no response{place}{colon} {error}")
}

/// `head`: the first line and headers that depend on the request.
fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    head: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let request = format!("{head}Host: {host}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.take(RESPONSE_MAX).read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
    let status = response
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "this is not an HTTP response")
        })?;
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

const RESPONSE_MAX: u64 = 16 << 20;

fn bearer(token: Option<&str>) -> String {
    token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Attempt, Place};
    use super::*;

    #[test]
    fn a_response_is_read_to_its_status_and_body() {
        struct Script(&'static [u8]);
        impl Read for Script {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0.read(into)
            }
        }
        impl Write for Script {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let good = exchange(
            Script(b"HTTP/1.1 503 x\r\na: b\r\n\r\n[-] draining\n"),
            "localhost",
            "GET /",
            "",
        )
        .expect("a response");
        assert_eq!(good, (503, "[-] draining\n".to_owned()));
        for bad in [&b""[..], b"HTTP/1.1 ", b"SSH-2.0", b"HTTP/1.1 \xff\xff\xff"] {
            assert!(exchange(Script(bad), "localhost", "GET /", "").is_err());
        }
    }

    /// An attempt at the only address of a gateway.
    fn attempt(patience: Duration) -> Attempt {
        Attempt::new(patience, Instant::now() + patience, 1, 1)
    }

    /// A listener whose backlog takes the connection and that never responds.
    #[test]
    fn gateway_that_is_silent_is_told_in_words_and_of_a_change_that_it_may_have_been_made() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = Place::Tcp(silent.local_addr().expect("its address"));
        let patience = Duration::from_millis(20);
        let message = |error: &io::Error| no_response("", error);
        let read = place
            .get("/readyz", &attempt(patience))
            .expect_err("silence");
        assert_eq!(message(&read), "no response within 20 ms");
        let change = place.connect(&attempt(patience)).expect("a backlog");
        let change = change.change("PUT", "/", None, "{}");
        assert_eq!(
            message(&change.expect_err("silence")),
            "no response within 20 ms; the change may have been made"
        );
        let late = io::Error::from(io::ErrorKind::WouldBlock);
        let late = worded(late, Duration::from_secs(5), "");
        assert_eq!(message(&late), "no response within 5 s");
        drop(silent);
        let gone = place.connect(&attempt(patience)).map(drop);
        let gone = message(&gone.expect_err("the listener is closed"));
        assert!(gone.starts_with("no response: "), "{gone}");
        assert!(!gone.contains("may have been made"), "{gone}");
    }

    /// A gateway that sends a byte now and then, and never a whole response.
    #[test]
    fn gateway_that_responds_bit_by_bit_is_given_up_after_the_time_limit() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = Place::Tcp(listener.local_addr().expect("its address"));
        let slow = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // Without a limit for the whole request the client waits for all of them.
            let sent = (0..200).take_while(|_| {
                std::thread::sleep(Duration::from_millis(10));
                stream.write_all(b"H").is_ok()
            });
            sent.count()
        });
        let late = place.get("/readyz", &attempt(Duration::from_millis(100)));
        let late = late.expect_err("no whole response");
        assert_eq!(no_response("", &late), "no response within 100 ms");
        assert!(slow.join().expect("no panic") < 200);
    }
}
