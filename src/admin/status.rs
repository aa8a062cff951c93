use std::collections::BTreeMap;

use serde::Serialize;

use super::Phase;
use super::figures::StoreNow;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The version of this document: incremented when a member changes its meaning or is removed,
    /// not for new members.
    pub format: u32,
    pub version: &'static str,
    pub phase: &'static str,
    pub configuration: Configuration,
    pub connections: usize,
    pub routes: usize,
    /// The number of limits in the file, including those of tiers and candidates.
    pub limits: usize,
    pub upstreams: BTreeMap<String, Vec<Server>>,
    /// The shared store; `null` if there is none.
    pub store: Option<Store>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Configuration {
    pub source: String,
    pub generation: u64,
    /// The reason why the last reload was refused; `null`: it was not refused.
    pub last_error: Option<String>,
    /// Changed settings that take effect only after a restart.
    pub needs_restart: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Server {
    pub server: String,
    /// `up`, `ejected`, `unhealthy`; `unused`: it has had no request yet.
    pub state: &'static str,
    /// The beginning of this state, RFC 3339.
    pub since: Option<String>,
    pub last_error: Option<ServerError>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ServerError {
    pub at: String,
    pub error: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// The product and version of a database; `null`: not known, or no database.
    pub server: Option<String>,
    #[serde(flatten)]
    pub now: StoreNow,
    pub audit: Vec<Finding>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub weight: &'static str,
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

const FORMAT: u32 = 1;
