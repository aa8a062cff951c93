//! `/api/v1/status`: what runs, as a document.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Phase;

/// What `/api/v1/status` shows.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The form of this document: it grows when a field changes its meaning or goes. New fields do not change it.
    pub format: u32,
    /// The program's version.
    pub version: &'static str,
    /// `starting`, `serving` or `draining`.
    pub phase: &'static str,
    /// The file in force.
    pub configuration: Configuration,
    /// Connections that are open.
    pub connections: usize,
    /// How many routes the file has.
    pub routes: usize,
    /// How many limits it has, those of tiers and candidates among them.
    pub limits: usize,
    /// The servers of every upstream, by its name.
    pub upstreams: BTreeMap<String, Vec<Server>>,
    /// The shared store; `null`: there is none.
    pub store: Option<Store>,
}

/// The file in force.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Configuration {
    /// Where it was read from.
    pub source: String,
    /// Configurations put in force so far.
    pub generation: u64,
    /// Why the last reload was refused; `null`: it was not.
    pub last_error: Option<String>,
    /// Settings that differ from those in force until a restart.
    pub needs_restart: Vec<&'static str>,
}

/// One server of an upstream.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Its address.
    pub server: String,
    /// `up`, `ejected`, `unhealthy`; `unused`: it was not asked yet.
    pub state: &'static str,
    /// Since when, RFC 3339.
    pub since: Option<String>,
    /// What last went wrong with it.
    pub last_error: Option<ServerError>,
}

/// What went wrong with a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerError {
    /// When, RFC 3339.
    pub at: String,
    /// What.
    pub error: String,
}

/// The shared store.
#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// `redis` or `postgres`.
    pub kind: &'static str,
    /// Whether it answers.
    pub answers: bool,
    /// What its limits do while it does not; `null`: it answers.
    pub when_down: Option<String>,
    /// Why it does not answer, or not in whole.
    pub why_not: Option<String>,
    /// Gateways that share it, as this one believes.
    pub replicas: u32,
    /// What is wrong with its settings.
    pub audit: Vec<Finding>,
}

/// Something that is wrong with the store's settings.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub weight: &'static str,
    /// What it is.
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
