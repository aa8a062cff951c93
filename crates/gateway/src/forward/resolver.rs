//! Who is asked for the addresses of names.

use std::io;
use std::net::SocketAddr;

/// Who is asked for a name's addresses.
#[derive(Clone, Debug, Default)]
pub(super) enum Resolver {
    /// The system, on a thread of its own.
    #[default]
    System,
    /// This table, which the test changes.
    #[cfg(test)]
    Table(Table),
}

/// The addresses of names, as tests have them.
#[cfg(test)]
pub(super) type Table = std::sync::Arc<parking_lot::Mutex<std::collections::HashMap<String, Vec<SocketAddr>>>>;

impl Resolver {
    /// The addresses of `host`, with `port`.
    ///
    /// # Errors
    /// When they cannot be found out, or there is no such name.
    pub(super) async fn ask(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => tokio::net::lookup_host((host, port)).await.map(Iterator::collect),
            #[cfg(test)]
            Self::Table(table) => {
                let answer = table.lock().get(host).cloned();
                answer.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such name"))
            }
        }
    }
}
