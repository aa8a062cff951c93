//! The address of a Redis: the `url` in the file's `[store]`.

use redis::io::tcp::TcpSettings;
use redis::sentinel::Sentinel;
use redis::{Client, ConnectionInfo, IntoConnectionInfo};

use super::certificates::{Certificates, choose_provider};
use crate::tls::Tls;

/// A parsed address; its credentials are not public.
#[derive(Clone)]
pub enum Address {
    /// One server: `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://`, `unix:`.
    Single(Box<ConnectionInfo>),
    /// Sentinels and the name they watch: `redis+sentinel://a:26379,b:26379/name`.
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        /// The connection settings of the master (its address comes from the sentinels).
        master: Box<ConnectionInfo>,
        tls: bool,
        /// The trusted authorities and our certificate, if configured.
        certificates: Option<Box<Certificates>>,
    },
    /// Some nodes of a cluster: `redis+cluster://a,b,c`.
    Cluster {
        nodes: Vec<ConnectionInfo>,
        certificates: Option<Box<Certificates>>,
    },
}

/// Why an address is invalid. Never repeats the address, because it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl Address {
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            AddressError(
                "expected redis://, rediss://, unix:, redis+sentinel:// or redis+cluster://".into(),
            )
        })?;
        let (kind, tls) = match scheme {
            "redis" | "valkey" => ("single", false),
            "rediss" | "valkeys" => ("single", true),
            "unix" | "redis+unix" | "valkey+unix" => ("unix", false),
            "redis+sentinel" | "valkey+sentinel" => ("sentinel", false),
            "rediss+sentinel" | "valkeys+sentinel" => ("sentinel", true),
            "redis+cluster" | "valkey+cluster" => ("cluster", false),
            "rediss+cluster" | "valkeys+cluster" => ("cluster", true),
            other => {
                let known = "redis, rediss, valkey, valkeys, unix, redis+sentinel, redis+cluster (and rediss+…)";
                return Err(AddressError(format!(
                    "unknown scheme `{other}`; known are {known}"
                )));
            }
        };
        match kind {
            "single" => Ok(Self::Single(Box::new(one(url)?))),
            "unix" => {
                // `unix:/path` and `unix:///path`; a host in `unix://host/path` has no meaning.
                let path = rest.strip_prefix("//").unwrap_or(rest);
                if !path.starts_with('/') || path.split('?').next() == Some("/") {
                    let why = "a socket is named by its whole path: unix:/run/redis.sock";
                    return Err(AddressError(why.into()));
                }
                Ok(Self::Single(Box::new(one(&format!("redis+unix:{path}"))?)))
            }
            "sentinel" => {
                let (user, hosts, path) = split(rest)?;
                let mut path = path.splitn(2, '/');
                let name = path.next().filter(|name| !name.is_empty()).ok_or_else(|| {
                    AddressError(
                        "a sentinel address ends in the name of the master: redis+sentinel://a,b,c/name".into(),
                    )
                })?;
                let database = path.next().unwrap_or("");
                // The credentials are the master's; most sentinels have no authentication.
                let sentinels = each(hosts, 26379, tls, "", "")?;
                let master = each("127.0.0.1", 6379, tls, user, database)?.remove(0);
                Ok(Self::Sentinel {
                    sentinels,
                    name: name.to_owned(),
                    master: Box::new(master),
                    tls,
                    certificates: None,
                })
            }
            _ => {
                let (user, hosts, _) = split(rest)?;
                Ok(Self::Cluster {
                    nodes: each(hosts, 6379, tls, user, "")?,
                    certificates: None,
                })
            }
        }
    }

    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Single(server) | Self::Sentinel { master: server, .. } => {
                server.redis_settings().db()
            }
            Self::Cluster { .. } => 0,
        }
    }

    /// The address with these authorities and this certificate; fails if it has no TLS.
    pub fn with_tls(self, tls: &Tls) -> Result<Self, AddressError> {
        if !tls.is_said() {
            return Ok(self);
        }
        tls.check().map_err(AddressError)?;
        self.with_certificates(tls)
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(self, _: &Tls) -> Result<Self, AddressError> {
        Ok(self)
    }

    #[cfg(feature = "tls")]
    fn with_certificates(self, tls: &Tls) -> Result<Self, AddressError> {
        let certificates = Certificates::new(tls);
        let with_certificates = |info: ConnectionInfo| {
            let with_certificates =
                super::certificates::with_certificates(info, Some(&certificates));
            with_certificates.map_err(|error| AddressError(error.to_string()))
        };
        Ok(match self {
            Self::Single(info) => Self::Single(Box::new(with_certificates(*info)?)),
            Self::Sentinel {
                sentinels,
                name,
                master,
                tls,
                ..
            } => Self::Sentinel {
                sentinels: sentinels
                    .into_iter()
                    .map(with_certificates)
                    .collect::<Result<_, _>>()?,
                name,
                master,
                tls,
                certificates: Some(Box::new(certificates)),
            },
            Self::Cluster { nodes, .. } => Self::Cluster {
                nodes,
                certificates: Some(Box::new(certificates)),
            },
        })
    }

    /// Builds the client without connecting, so that mistakes are reported before a gateway starts.
    pub fn check(&self) -> Result<(), AddressError> {
        choose_provider();
        let built = match self {
            Self::Single(info) => Client::open((**info).clone()).map(drop),
            Self::Sentinel { sentinels, .. } => Sentinel::build(sentinels.clone()).map(drop),
            Self::Cluster {
                nodes,
                certificates,
            } => nodes.iter().try_for_each(|node| match certificates {
                Some(certificates) => certificates.client(node.clone()).map(drop),
                None => Client::open(node.clone()).map(drop),
            }),
        };
        built.map_err(|error| AddressError(format!("not an address of Redis: {error}")))
    }

    /// Whether buckets of one request must share a slot.
    pub const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "redis",
            Self::Sentinel { .. } => "redis+sentinel",
            Self::Cluster { .. } => "redis+cluster",
        })
    }
}

/// Splits `//[user[:password]@]host,host/path` into its three parts.
fn split(rest: &str) -> Result<(&str, &str, &str), AddressError> {
    let rest = rest
        .strip_prefix("//")
        .ok_or_else(|| AddressError("expected `//` after the scheme".into()))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    if hosts.is_empty() {
        return Err(AddressError("no host".into()));
    }
    Ok((user, hosts, path))
}

fn each(
    hosts: &str,
    port: u16,
    tls: bool,
    user: &str,
    path: &str,
) -> Result<Vec<ConnectionInfo>, AddressError> {
    hosts
        .split(',')
        .map(|host| {
            let has_port = host.rsplit_once(':').is_some_and(|(head, port)| {
                port.parse::<u16>().is_ok() && (!head.contains(':') || head.ends_with(']'))
            });
            let host = if has_port {
                host.to_owned()
            } else {
                format!("{host}:{port}")
            };
            let at = if user.is_empty() { "" } else { "@" };
            one(&format!(
                "{}://{user}{at}{host}/{path}",
                if tls { "rediss" } else { "redis" }
            ))
        })
        .collect()
}

fn one(url: &str) -> Result<ConnectionInfo, AddressError> {
    let info = url
        .into_connection_info()
        .map_err(|error| AddressError(format!("not an address of Redis: {error}")))?;
    // Nagle's algorithm would delay each small call until the last one is acknowledged.
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_address_is_understood() {
        for url in [
            "redis://127.0.0.1:6379/0",
            "rediss://u:p@example.com",
            "valkey://h",
            "unix:/run/redis.sock",
            "unix:///run/redis.sock",
        ] {
            assert!(
                matches!(Address::parse(url), Ok(Address::Single(_))),
                "{url}"
            );
            Address::parse(url)
                .and_then(|address| address.check())
                .expect(url);
        }
        let Ok(Address::Single(socket)) = Address::parse("unix:/run/redis.sock?user=u&pass=p%26")
        else {
            panic!("a socket")
        };
        assert_eq!(socket.redis_settings().username(), Some("u"));
        assert_eq!(socket.redis_settings().password(), Some("p&"));
        let Ok(Address::Sentinel {
            sentinels, name, ..
        }) = Address::parse("redis+sentinel://u:p@a,b:1,[::1]:2/main/3")
        else {
            panic!("a sentinel address");
        };
        assert_eq!((sentinels.len(), name.as_str()), (3, "main"));
        let Ok(Address::Cluster { nodes, .. }) = Address::parse("redis+cluster://a,b:7001,c")
        else {
            panic!("a cluster address")
        };
        assert_eq!(nodes.len(), 3);
    }

    #[test]
    fn address_invalid_is_refused_and_a_password_never_repeated() {
        for url in [
            "127.0.0.1",
            "http://x",
            "redis+sentinel://a,b",
            "redis+cluster://",
            "redis://:hunter2@:port",
            "redis://h:notaport",
            "redis://",
            "redis://h/abc",
            "unix:relative.sock",
            "unix:///",
            "unix://host/run/redis.sock?pass=hunter2",
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let address = Address::parse("redis://u:hunter2@h").expect("an address");
        assert!(!format!("{address:?}").contains("hunter2"));
    }
}
