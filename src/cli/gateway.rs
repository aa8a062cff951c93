//! A running gateway, and one request at a time to its admin listener.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use super::token::{NOT_SENT, Token};
use crate::outbound::{self, Stream};
use tollgate_config::settings::Listener;

pub(super) struct Gateway {
    pub(super) name: String,
    pub(super) place: Place,
    /// How long it may take for a response, with the look-up of its name.
    pub(super) timeout: Duration,
    /// The addresses of its name, first the one that took the last connection: all questions of a command
    /// go to one process. Empty: the name is to be looked up.
    pub(super) found: Mutex<Vec<SocketAddr>>,
}

/// Where an admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `HOST:PORT`. A name is looked up when its gateway is asked: a name without an address is the
    /// fault of one gateway, and the others are asked.
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<Listener> for Place {
    fn from(listener: Listener) -> Self {
        match listener {
            Listener::Tcp { address, .. } => Self::Tcp(reachable(address).to_string()),
            Listener::Unix(path) => Self::Unix(path),
        }
    }
}

impl Place {
    /// The listener called `name`: `127.0.0.1:9180`, `gateway.internal:9180`, `unix:/run/admin.sock`.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        if let Some(path) = name.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let text = name.strip_prefix("http://").unwrap_or(name);
        let text = text.trim_end_matches('/');
        let is_other = |c: char| c.is_whitespace() || c.is_control() || "/@?#".contains(c);
        match text.rsplit_once(':') {
            Some((host, port))
                if !host.is_empty() && !host.contains(is_other) && port.parse::<u16>().is_ok() =>
            {
                Ok(Self::Tcp(text.to_owned()))
            }
            _ => Err(format!(
                "--admin: `{name}` is no listener: HOST:PORT or unix:PATH"
            )),
        }
    }
}

/// A listener on all addresses is asked on the loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// A connection to a gateway.
struct Connected {
    stream: Stream,
    host: String,
    /// The address; `None`: it is a Unix socket.
    address: Option<IpAddr>,
}

impl Gateway {
    /// The status and the text at `path`.
    pub(super) fn text(&self, path: &str) -> Result<(StatusCode, String), String> {
        self.ask(Request::get(path), None, None)
    }

    /// The document at `path`; an error says why the gateway gives none.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let (status, body) = self.text(path)?;
        document_of(status, &body)
    }

    /// Asks for a change; an error says why it is not made, or not known to be made.
    pub(super) fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        token: Option<&Token>,
        body: &str,
    ) -> Result<T, String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, "application/json");
        let (status, body) = self.ask(request, Some(body), token)?;
        document_of(status, &body)
    }

    /// Sends a request; `change`: the body of one that changes something.
    fn ask(
        &self,
        request: http::request::Builder,
        change: Option<&str>,
        token: Option<&Token>,
    ) -> Result<(StatusCode, String), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let is_connected = Cell::new(false);
        let asked = async {
            let until = Instant::now() + self.timeout;
            let asking = async {
                let connected = self.connect(token, until).await?;
                is_connected.set(true);
                answer(connected, request, change, token).await
            };
            let late = |_| Err(format!("no response {}", within(self.timeout)));
            timeout_at(until, asking).await.unwrap_or_else(late)
        };
        let asked = runtime.block_on(asked);
        // The thread that looks a name up waits as long as the system has it wait.
        runtime.shutdown_background();
        let doubt = match change.is_some() && is_connected.get() {
            true => "; the change may have been made",
            false => "",
        };
        asked.map_err(|why| why + doubt)
    }

    /// Connects to the first address that takes a connection, of those that the token may be sent to.
    /// Each has its share of the time that is left, for one that drops packets.
    async fn connect(&self, token: Option<&Token>, until: Instant) -> Result<Connected, String> {
        let name = match &self.place {
            Place::Tcp(name) => name,
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(no_response)?;
                return Ok(Connected {
                    stream: Box::pin(stream),
                    host: "localhost".to_owned(),
                    address: None,
                });
            }
        };
        // None is kept until one of them connects.
        let mut found = std::mem::take(&mut *self.found.lock());
        if found.is_empty() {
            let looked_up = lookup_host(name).await;
            let looked_up = looked_up
                .map_err(|error| format!("no response: its name is not found: {error}"))?;
            found.extend(looked_up.map(reachable));
        }
        let mut why = "no response: its name has no address".to_owned();
        for (place, address) in found.clone().into_iter().enumerate() {
            if token.is_some_and(|token| token.for_address(Some(address.ip())).is_none()) {
                why = NOT_SENT.to_owned();
                continue;
            }
            let left = u32::try_from(found.len() - place).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(Instant::now()) / left;
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    found.swap(0, place);
                    *self.found.lock() = found;
                    return Ok(Connected {
                        stream: Box::pin(stream),
                        host: address.to_string(),
                        address: Some(address.ip()),
                    });
                }
                Ok(Err(error)) => why = no_response(error),
                Err(_) => why = format!("no response {}", within(self.timeout)),
            }
        }
        Err(why)
    }
}

async fn answer(
    connected: Connected,
    mut request: http::request::Builder,
    change: Option<&str>,
    token: Option<&Token>,
) -> Result<(StatusCode, String), String> {
    let Connected {
        stream,
        host,
        address,
    } = connected;
    if let Some(token) = token.and_then(|token| token.for_address(address)) {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let body = Bytes::copy_from_slice(change.unwrap_or_default().as_bytes());
    let request = request.body(Full::new(body)).map_err(no_response)?;
    let exchanged = outbound::exchange(stream, &host, request).await;
    let (response, _connection) = exchanged.map_err(no_response)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_MAX).collect().await;
    let body = body.map_err(no_response)?.to_bytes();
    Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
}

fn no_response(error: impl fmt::Display) -> String {
    format!("no response: {error}")
}

fn within(span: Duration) -> String {
    match span.subsec_millis() {
        0 => format!("within {} s", span.as_secs()),
        _ => format!("within {} ms", span.as_millis()),
    }
}

fn document_of<T: DeserializeOwned>(status: StatusCode, body: &str) -> Result<T, String> {
    if status != StatusCode::OK {
        return Err(reason(body));
    }
    serde_json::from_str(body).map_err(|error| {
        format!(
            "its response cannot be read (is this an admin listener, and of the same version?): {error}"
        )
    })
}

/// The reason in a problem document, or the text itself.
fn reason(body: &str) -> String {
    let problem: Option<serde_json::Value> = serde_json::from_str(body).ok();
    problem
        .and_then(|problem| problem.get("detail")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| body.trim().to_owned())
}

const RESPONSE_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use serde_json::Value;

    use super::*;

    fn gateway(place: &str, timeout: u64) -> Gateway {
        Gateway {
            name: "it".to_owned(),
            place: Place::named(place).expect("a listener"),
            timeout: Duration::from_millis(timeout),
            found: Mutex::default(),
        }
    }

    #[test]
    fn gateway_text_that_is_no_listener_is_told_from_a_name_to_be_looked_up() {
        for good in ["gw-1.internal:9180", "http://[::]:9/", "::1:9", "0.0.0.0:9"] {
            assert!(matches!(Place::named(good), Ok(Place::Tcp(_))), "{good}");
        }
        let unix = Place::Unix("/run/x".into());
        assert_eq!(Place::named("unix:/run/x"), Ok(unix));
        for wrong in [
            "",
            "nonsense",
            ":9",
            "a:",
            "a:b",
            "a:99999",
            "a b:9",
            "https://a:9",
            "a/b:9",
        ] {
            let message = Place::named(wrong).expect_err(wrong);
            assert!(message.contains("is no listener: HOST:PORT"), "{message}");
        }
    }

    #[test]
    fn gateway_on_every_address_is_asked_on_the_loopback() {
        for (all, one) in [("0.0.0.0:9", "127.0.0.1:9"), ("[::]:9", "[::1]:9")] {
            assert_eq!(reachable(all.parse().expect("an address")).to_string(), one);
        }
    }

    /// Each question asks the name itself only where no address is kept.
    #[test]
    fn gateway_name_is_looked_up_once_for_all_questions() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let asked = gateway(&address.to_string(), 50);
        let _ = asked.text("/readyz");
        assert_eq!(*asked.found.lock(), [address]);
        // (Port 0 takes no connection.)
        let unreachable = SocketAddr::from(([127, 0, 0, 1], 0));
        let asked = gateway("127.0.0.1:0", 2_000);
        *asked.found.lock() = vec![unreachable, address];
        let accepted = std::thread::spawn(move || listener.accept().map(|_| listener));
        let _ = asked.text("/readyz");
        assert_eq!(*asked.found.lock(), [address, unreachable]);
        // None of them takes a connection any more, so the name is looked up again.
        drop(accepted.join().expect("no panic").expect("a client"));
        let _ = asked.text("/readyz");
        assert!(asked.found.lock().is_empty());
    }

    /// Its backlog takes the connection.
    #[test]
    fn gateway_that_is_silent_is_told_in_words_and_of_a_change_that_it_may_have_been_made() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let gateway = gateway(&address, 50);
        let read = gateway.get::<Value>("/readyz");
        assert_eq!(read, Err("no response within 50 ms".to_owned()));
        let changed = gateway.change::<Value>(Method::PUT, "/", None, "{}");
        let words = "no response within 50 ms; the change may have been made";
        assert_eq!(changed, Err(words.to_owned()));
        assert_eq!(within(Duration::from_secs(5)), "within 5 s");
    }

    /// A gateway that sends a byte now and then, and never a whole response.
    #[test]
    fn gateway_that_responds_bit_by_bit_is_given_up_after_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let slow = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // Without a limit for the whole request the client waits for all of them.
            let head = b"HTTP/1.1 200 OK\r\nx: "
                .iter()
                .chain(std::iter::repeat(&b'x'));
            let sent = head.take(200).take_while(|byte| {
                std::thread::sleep(Duration::from_millis(10));
                stream.write_all(&[**byte]).is_ok()
            });
            sent.count()
        });
        let late = gateway(&address, 100).get::<Value>("/readyz");
        assert_eq!(late, Err("no response within 100 ms".to_owned()));
        assert!(slow.join().expect("no panic") < 200);
    }

    /// A response of a public listener, which is no document of the admin API.
    #[test]
    fn gateway_document_without_a_format_may_come_from_another_listener() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "it is only read")]
        struct Document {
            format: u32,
        }
        let read = document_of::<Document>(StatusCode::OK, "{}");
        let why = read.expect_err("it lacks the format");
        assert!(why.contains("is this an admin listener"), "{why}");
    }
}
