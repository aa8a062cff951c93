//! Tollgate: a reverse-proxy HTTP gateway that enforces rate limits exactly.
//!
//! **A pure core decides, a store remembers, a proxy obeys.** The modules, in layer order; a module imports only
//! from those above it (a test, `tests/it/layers.rs`, holds the arrows):
//!
//! | module | job |
//! |---|---|
//! | [`limit`] | pure arithmetic: quotas, algorithms, claims, keys; no clock, I/O, async or floats |
//! | [`policy`] | pure: what applies to a request: routes, identities, scopes, upstreams as data |
//! | [`clock`] | the only reader of time |
//! | [`store`] | where buckets live: in the process, in Redis, in PostgreSQL |
//! | [`limiter`] | decides: deadlines, what a dead store means, shadow limits; the only maker of a permit |
//! | [`proxy`] | listens, forwards, refuses |
//! | [`admin`] | health and metrics on a listener of their own |
//! | [`config`] | the file: read, checked, made into a [`policy`] |
//! | [`telemetry`] | metrics and logs; a leaf |
//! | [`app`] | the composition root: configuration in, running gateway out; owns reload and drain |
//! | [`cli`] | the verbs of the command line; the only reader of argv and environment |

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod limit;
pub mod limiter;
pub mod policy;
pub mod proxy;
pub mod store;
pub mod telemetry;
