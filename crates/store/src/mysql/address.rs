//! The address of a MariaDB or MySQL: `mysql://user:password@host:3306/database`, with the
//! parameters `ssl-mode` and `socket`.

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};

use crate::sql::CONNECT_WITHIN;
use crate::tls::Tls;

/// Why an address is invalid. Never repeats the address, because it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of MariaDB or MySQL: {0}")]
pub struct AddressError(String);

fn wrong(why: &str) -> AddressError {
    AddressError(why.to_owned())
}

/// The settings of every session, whatever the server's defaults. A gateway that stops midway holds its locks for as long as a
/// transaction may be idle (`idle_transaction_timeout`, in MariaDB), or until the server gives the
/// session up: heartbeats keep it in use.
pub(super) fn settings(idle_seconds: u64) -> String {
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, time_zone = '+00:00',
             innodb_lock_wait_timeout = 1, wait_timeout = 10, group_concat_max_len = 1000000,
             sql_safe_updates = 0, completion_type = 0, sql_select_limit = 18446744073709551615
             /*M! , idle_transaction_timeout = {idle_seconds} */"
    )
}

/// The servers that an address names, in its order: the first one that can be written to is used.
pub(super) fn addresses(url: &str, tls: &Tls) -> Result<Vec<Opts>, AddressError> {
    let rest = url
        .strip_prefix("mysql://")
        .or_else(|| url.strip_prefix("mariadb://"))
        .ok_or_else(|| wrong("it does not begin with mysql:// or mariadb://"))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place
        .split_once('/')
        .filter(|(_, database)| !database.is_empty())
        .ok_or_else(|| wrong("it names no database"))?;
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (mut encrypted, mut socket) = (tls.is_said(), None);
    for (name, value) in query
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
    {
        match (name.replace('_', "-").as_str(), value.replace('_', "-")) {
            ("ssl-mode" | "sslmode", mode) => match mode.to_ascii_lowercase().as_str() {
                "disabled" | "disable" if tls.is_said() => {
                    return Err(wrong("ssl-mode=disabled beside files of TLS"));
                }
                "disabled" | "disable" => encrypted = false,
                // The certificate and the name are always verified.
                "required" | "require" | "verify-ca" | "verify-identity" | "verify-full" => {
                    encrypted = true;
                }
                _ => return Err(wrong("ssl-mode is disabled or required")),
            },
            ("socket", _) if value.starts_with('/') => socket = Some(value.to_owned()),
            ("socket", _) => return Err(wrong("socket is a path that begins with /")),
            _ => return Err(wrong("its parameters are ssl-mode and socket")),
        }
    }
    let secured = if encrypted {
        Some(ssl(tls).map_err(AddressError)?)
    } else {
        None
    };
    hosts
        .split(',')
        .map(|host| {
            let at = if user.is_empty() { "" } else { "@" };
            let opts = Opts::from_url(&format!("mysql://{user}{at}{host}/{database}"))
                // The error's own text may repeat the address.
                .map_err(|_| wrong("malformed"))?;
            Ok(OptsBuilder::from_opts(opts)
                .prefer_socket(false)
                .socket(socket.clone())
                .tcp_keepalive(Some(CONNECT_WITHIN))
                .stmt_cache_size(0)
                .ssl_opts(secured.clone())
                .into())
        })
        .collect()
}

fn ssl(tls: &Tls) -> Result<SslOpts, String> {
    let roots = match &tls.ca {
        Some(pem) => vec![pem.clone()],
        None => {
            let found = rustls_native_certs::load_native_certs().certs.into_iter();
            found.map(|certificate| certificate.to_vec()).collect()
        }
    };
    if roots.is_empty() {
        return Err("there are no authorities of the system; set `ca_file`".into());
    }
    let client = tls.client.clone();
    let identity = client.map(|(chain, key)| ClientIdentity::new(chain.into(), key.into()));
    Ok(SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(roots.into_iter().map(Into::into).collect())
        .with_client_identity(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Vec<Opts>, AddressError> {
        addresses(url, &Tls::default())
    }

    #[test]
    fn mysql_address_names_servers_database_and_encryption() {
        let one = read("mysql://u:p%40@db:3307/limits").expect("an address");
        assert_eq!(
            (one[0].ip_or_hostname(), one[0].tcp_port(), one[0].user()),
            ("db", 3307, Some("u"))
        );
        assert_eq!(
            (one[0].pass(), one[0].db_name()),
            (Some("p@"), Some("limits"))
        );
        assert!(one[0].ssl_opts().is_none() && !one[0].prefer_socket());
        let two = read("mariadb://u@a,b:3307/limits?ssl-mode=REQUIRED").expect("an address");
        assert_eq!(two.len(), 2);
        assert_eq!((two[0].tcp_port(), two[1].tcp_port()), (3306, 3307));
        assert!(two.iter().all(|one| one.ssl_opts().is_some()));
        let socket = read("mysql://u@localhost/limits?socket=/run/mysqld/mysqld.sock");
        assert_eq!(
            socket.expect("an address")[0].socket(),
            Some("/run/mysqld/mysqld.sock")
        );
    }

    #[test]
    fn mysql_address_with_a_mistake_is_refused_and_not_repeated() {
        for (url, why) in [
            ("postgres://a/b", "does not begin"),
            ("mysql://u:secret@db", "names no database"),
            ("mysql://u:secret@db/", "names no database"),
            ("mysql://u:secret@db:port/limits", "malformed"),
            ("mysql://u:secret@/limits", "malformed"),
            (
                "mysql://u:secret@db/limits?ssl-mode=preferred",
                "disabled or required",
            ),
            ("mysql://u:secret@db/limits?pool_max=3", "parameters are"),
            ("mysql://u:secret@db/limits?socket=sock", "begins with /"),
        ] {
            let error = read(url).expect_err(url).to_string();
            assert!(
                error.contains(why) && !error.contains("secret"),
                "{url}: {error}"
            );
        }
    }
}
