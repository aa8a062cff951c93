//! Where an admin listener is: known, or found by a name that is looked up when the gateway is
//! asked. A name that has no address is the fault of one gateway, and the others are asked.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Place, reachable, within};
use crate::cli::args::ConfigFile;
use crate::cli::{colour, load};

/// Where an admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Whereabouts {
    Known(Place),
    Name(String),
}

impl Whereabouts {
    /// The listener called `name`: `127.0.0.1:9180`, `gateway.internal:9180`, `unix:/run/admin.sock`.
    pub(in crate::cli) fn named(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err(format!(
                "--admin: an address is empty (is there a comma too many?): {NO_LISTENER}"
            ));
        }
        let known = |place| Ok(Self::Known(place));
        if let Some(path) = name.strip_prefix("unix:") {
            return known(Place::Unix(path.into()));
        }
        let text = name
            .strip_prefix("http://")
            .unwrap_or(name)
            .trim_end_matches('/');
        if let Ok(address) = text.parse::<SocketAddr>() {
            return known(Place::Tcp(reachable(address)));
        }
        let parts = text.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let Some((host, port)) = parts.filter(|(host, _)| is_host(host)) else {
            let lacks = match is_host(text) && (!text.contains(':') || text.ends_with(':')) {
                true => "the port is missing: ",
                false => "",
            };
            return Err(format!("--admin {name}: {lacks}{NO_LISTENER}"));
        };
        match host.parse::<IpAddr>() {
            Ok(ip) => known(Place::Tcp(reachable((ip, port).into()))),
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }

    /// The listener that the configuration names, and its address in words.
    pub(in crate::cli) fn configured(config: &ConfigFile) -> Result<(Self, String), String> {
        match load::admin_listener(config) {
            Ok(Some(listener)) => {
                let place = Place::from(listener);
                let name = place.to_string();
                Ok((Self::Known(place), name))
            }
            Ok(None) => Err("the configuration switches the admin listener off; \
                 if the gateway has one, name it with --admin"
                .to_owned()),
            Err(error) => Err(format!(
                "the configuration does not say where the admin listener is; \
                 name it with --admin\n{}",
                error.render(colour())
            )),
        }
    }

    /// The addresses; a name is looked up until the end of the time of its gateway, which is
    /// `patience`.
    pub(in crate::cli) fn places(
        &self,
        patience: Duration,
        until: Instant,
    ) -> Result<Vec<Place>, String> {
        let name = match self {
            Self::Known(place) => return Ok(vec![place.clone()]),
            Self::Name(name) => name.clone(),
        };
        let found = in_time(until, move || Ok(name.to_socket_addrs()?.collect()));
        let found: Vec<SocketAddr> = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let late = within(patience);
                return Err(format!(
                    "no response {late}; its name was still being looked up"
                ));
            }
            Err(error) => return Err(format!("no response: its name is not found: {error}")),
        };
        if found.is_empty() {
            return Err("no response: its name has no address".to_owned());
        }
        let place = |address| Place::Tcp(reachable(address));
        Ok(found.into_iter().map(place).collect())
    }
}

/// The result of `look_up`, if it comes before `until`. A resolver waits as long as the system is
/// configured to; the thread that does is left alone then.
fn in_time<T: Send + 'static>(
    until: Instant,
    look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (send, found) = mpsc::channel();
    let thread = std::thread::Builder::new().name("resolver".to_owned());
    thread.spawn(move || {
        // The one that waits may have given up.
        let _ = send.send(look_up());
    })?;
    let left = until.saturating_duration_since(Instant::now());
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    found.recv_timeout(left).unwrap_or_else(late)
}

/// Whether this may be the name of a host, for a resolver to say.
fn is_host(text: &str) -> bool {
    let other = |c: char| c.is_whitespace() || c.is_control() || "/@[]?#".contains(c);
    !text.is_empty() && !text.contains(other)
}

/// The reason why a text names no listener.
const NO_LISTENER: &str = "a listener is HOST:PORT or unix:PATH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_asked_on_the_loopback() {
        let known = |text: &str| {
            let place = Place::Tcp(text.parse().expect("an address"));
            Ok(Whereabouts::Known(place))
        };
        assert_eq!(Whereabouts::named("0.0.0.0:9"), known("127.0.0.1:9"));
        assert_eq!(Whereabouts::named("http://[::]:9/"), known("[::1]:9"));
        assert_eq!(Whereabouts::named("::1:9"), known("[::1]:9"));
        let unix = Place::Unix("/run/x".into());
        assert_eq!(
            Whereabouts::named("unix:/run/x"),
            Ok(Whereabouts::Known(unix))
        );
    }

    #[test]
    fn gateway_text_that_is_no_listener_is_told_from_a_name_to_be_looked_up() {
        let name = "http://gw-1.internal:9180/";
        let looked_up = Whereabouts::Name("gw-1.internal:9180".to_owned());
        assert_eq!(Whereabouts::named(name), Ok(looked_up));
        for wrong in [
            "nonsense",
            "",
            ":9",
            "a:b",
            "a:99999",
            "a b:9",
            "https://a:9",
            "a/b:9",
        ] {
            let message = Whereabouts::named(wrong).expect_err(wrong);
            assert!(message.ends_with(NO_LISTENER), "{message}");
        }
        for portless in ["127.0.0.1", "localhost", "http://gw-1.internal/", "a:"] {
            let message = Whereabouts::named(portless).expect_err(portless);
            assert!(message.contains("the port is missing"), "{message}");
        }
        let message = Whereabouts::named("").expect_err("an empty one");
        assert!(message.contains("a comma too many"), "{message}");
    }

    /// A resolver that is silent takes no more than the time of the gateway.
    #[test]
    fn gateway_name_is_looked_up_until_the_time_limit() {
        let within = Duration::from_millis(50);
        let (release, held) = mpsc::channel::<()>();
        let until = Instant::now() + within;
        let late = in_time(until, move || {
            let _ = held.recv();
            Ok(())
        });
        drop(release);
        let late = late.expect_err("it is silent").kind();
        assert_eq!(late, io::ErrorKind::TimedOut);
        let found = in_time(Instant::now() + Duration::from_secs(60), || Ok(7));
        assert_eq!(found.expect("it is there"), 7);
    }
}
