//! The document of `/api/v1/status`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Phase;
use super::figures::StoreNow;

/// The contents of `/api/v1/status`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The version of this document: incremented when a member changes its meaning or is removed,
    /// not for new members.
    pub format: u32,
    /// The program's version.
    pub version: &'static str,
    /// `starting`, `serving` or `draining`.
    pub phase: &'static str,
    /// The configuration in force.
    pub configuration: Configuration,
    /// Connections that are open.
    pub connections: usize,
    /// The number of routes in the file.
    pub routes: usize,
    /// The number of limits in the file, including those of tiers and candidates.
    pub limits: usize,
    /// The servers of every upstream, by its name.
    pub upstreams: BTreeMap<String, Vec<Server>>,
    /// The shared store; `null` if there is none.
    pub store: Option<Store>,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Configuration {
    /// Its source.
    pub source: String,
    /// The number of configurations put in force so far.
    pub generation: u64,
    /// The reason why the last reload was refused; `null`: it was not refused.
    pub last_error: Option<String>,
    /// Changed settings that take effect only after a restart.
    pub needs_restart: Vec<&'static str>,
}

/// One server of an upstream.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Its address.
    pub server: String,
    /// `up`, `ejected`, `unhealthy`; `unused`: it has had no request yet.
    pub state: &'static str,
    /// The beginning of this state, RFC 3339.
    pub since: Option<String>,
    /// Its last error.
    pub last_error: Option<ServerError>,
}

/// An error of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerError {
    /// Its time, RFC 3339.
    pub at: String,
    /// Its text.
    pub error: String,
}

/// The shared store.
#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// Its state.
    #[serde(flatten)]
    pub now: StoreNow,
    /// Problems of its settings.
    pub audit: Vec<Finding>,
}

/// A problem of the store's settings.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its severity.
    pub weight: &'static str,
    /// Its description.
    pub message: String,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            phase: Phase::Starting.label(),
            configuration: Configuration::default(),
            connections: 0,
            routes: 0,
            limits: 0,
            upstreams: BTreeMap::new(),
            store: None,
        }
    }
}

/// [`Status::format`] of this version.
const FORMAT: u32 = 1;
