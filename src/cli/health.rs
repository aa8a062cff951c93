//! `tollgate health`: queries the admin listener of a running gateway. It uses no HTTP library, for
//! one request and one status line.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::args::Health;
use super::{BAD, GOOD, load, wrong_use};
use tollgate_config::settings::Listener;

pub(super) fn health(args: &Health) -> ExitCode {
    let places = match &args.admin {
        Some(name) => match named(name) {
            Ok(places) => places,
            Err(error) => {
                eprintln!("tollgate health: --admin {name}: {error}");
                return wrong_use();
            }
        },
        // An invalid file must not make a running gateway appear unhealthy: query its default
        // address.
        None => vec![load::admin_of(&args.config).map_or(Place::Tcp(ADMIN_DEFAULT), Place::from)],
    };
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let patience = Duration::from_millis(args.timeout.max(1));
    let mut last = None;
    for place in places {
        match ask(&place, path, patience) {
            Ok((status, body)) => {
                print!("{body}");
                return if status == 200 { GOOD } else { BAD };
            }
            Err(error) => last = Some(error),
        }
    }
    if let Some(error) = last {
        eprintln!("tollgate health: no answer: {error}");
    }
    BAD
}

/// The address of an admin listener.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl From<Listener> for Place {
    fn from(listener: Listener) -> Self {
        match listener {
            Listener::Tcp { address, .. } => Self::Tcp(reachable(address)),
            Listener::Unix(path) => Self::Unix(path),
        }
    }
}

fn named(name: &str) -> io::Result<Vec<Place>> {
    if let Some(path) = name.strip_prefix("unix:") {
        return Ok(vec![Place::Unix(path.into())]);
    }
    let name = name
        .strip_prefix("http://")
        .unwrap_or(name)
        .trim_end_matches('/');
    Ok(name
        .to_socket_addrs()?
        .map(|address| Place::Tcp(reachable(address)))
        .collect())
}

/// Requests `path`; returns the status and the body.
fn ask(place: &Place, path: &str, patience: Duration) -> io::Result<(u16, String)> {
    match place {
        Place::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, patience)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            exchange(stream, path, &address.to_string())
        }
        Place::Unix(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            exchange(stream, path, "localhost")
        }
    }
}

fn exchange(mut stream: impl Read + Write, path: &str, host: &str) -> io::Result<(u16, String)> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "that is no HTTP answer"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// A listener on all addresses is queried on the loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9180);

/// The largest response; that of a probe has a few lines.
const ANSWER_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_status_and_body() {
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
            "/",
            "x",
        )
        .expect("an answer");
        assert_eq!(good, (503, "[-] draining\n".to_owned()));
        for bad in [&b""[..], b"HTTP/1.1 ", b"SSH-2.0", b"HTTP/1.1 \xff\xff\xff"] {
            assert!(exchange(Script(bad), "/", "x").is_err());
        }
    }

    #[test]
    fn a_listener_on_every_address_is_asked_on_the_loopback() {
        assert_eq!(
            named("0.0.0.0:9").expect("an address"),
            [Place::Tcp("127.0.0.1:9".parse().expect("one"))]
        );
        assert_eq!(
            named("http://[::]:9/").expect("an address"),
            [Place::Tcp("[::1]:9".parse().expect("one"))]
        );
        assert_eq!(
            named("unix:/run/x").expect("a path"),
            [Place::Unix("/run/x".into())]
        );
        assert!(named("nonsense").is_err());
    }
}
