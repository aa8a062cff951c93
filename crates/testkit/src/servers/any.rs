//! A server of any kind that several gateways or services can share as their store.

use super::{Maria, Postgres, Redis, available};

/// A server of a test's own.
#[derive(Debug)]
pub enum Server {
    Redis(Redis),
    Postgres(Postgres),
    Maria(Maria),
}

impl Server {
    /// `None`: the program is not installed.
    pub fn redis() -> Option<Self> {
        Self::redis_with(&[])
    }

    /// A Redis whose data outlive its process, as those of the others do.
    pub fn durable_redis() -> Option<Self> {
        Self::redis_with(&["--appendonly", "yes"])
    }

    fn redis_with(arguments: &[&str]) -> Option<Self> {
        available("redis-server").then(|| Self::Redis(Redis::start_with(arguments)))
    }

    pub fn postgres() -> Option<Self> {
        Postgres::available().then(|| Self::Postgres(Postgres::start_with(&[])))
    }

    pub fn maria() -> Option<Self> {
        Maria::available().then(|| Self::Maria(Maria::start()))
    }

    /// What the file calls its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
            Self::Maria(_) => "mysql",
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Maria(server) => server.url(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port,
            Self::Postgres(server) => server.port,
            Self::Maria(server) => server.port,
        }
    }

    /// Stops it as an operator does.
    pub fn stop(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.stop(),
            Self::Maria(server) => server.stop(),
        }
    }

    /// Starts it again.
    pub fn run(&mut self) {
        match self {
            Self::Redis(server) => server.run(),
            Self::Postgres(server) => server.run(),
            Self::Maria(server) => server.run(),
        }
    }

    /// Signals its process.
    pub fn signal(&self, signal: &str) {
        match self {
            Self::Redis(server) => server.process().signal(signal),
            Self::Postgres(server) => server.signal(signal),
            Self::Maria(server) => server.process().signal(signal),
        }
    }
}
