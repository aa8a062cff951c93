//! Tollgate: a reverse-proxy HTTP gateway that enforces rate limits exactly.
//!
//! A pure core decides, a store keeps the state, and a proxy applies the decision. Each part is a
//! crate; a crate can use only the crates that its `Cargo.toml` names, so the compiler enforces the
//! architecture:
//!
//! | crate | job |
//! |---|---|
//! | [`tollgate_limit`] | pure arithmetic: quotas, algorithms, claims, keys; no clock, I/O, async or floats |
//! | [`tollgate_policy`] | pure: which rules apply to a request: routes, identities, scopes, upstreams as data |
//! | [`tollgate_config`] | the configuration file: read, checked, and compiled into a [`tollgate_policy::Policy`] |
//! | [`tollgate_store`] | where buckets live: in the process, in Redis, in PostgreSQL, in MariaDB or MySQL; the only reader of time |
//! | [`tollgate_limiter`] | decides: deadlines, store failure, shadow limits; the only maker of a permit |
//! | [`tollgate_admission`] | the order in which a request is admitted, and what its response settles |
//! | [`tollgate_telemetry`] | metrics and logs; uses only `tollgate_limit` |
//! | `tollgate_http1` | HTTP/1 messages without I/O; the one decision of where a body ends |
//! | [`tollgate_net`] | connections: listeners, workers, timers, TLS; drives HTTP/1 and hyper's HTTP/2 |
//! | [`tollgate_gateway`] | the request path: applies limits, then forwards or refuses |
//!
//! This crate is the program; it only puts the parts together:
//!
//! | module | job |
//! |---|---|
//! | `acme` | the certificate that the gateway orders and renews by itself |
//! | [`admin`] | health and metrics on a listener of their own |
//! | [`app`] | the composition root: configuration in, running gateway out; owns reload and drain |
//! | [`cli`] | the subcommands; the only reader of arguments and environment |
//! | [`overrides`] | the overrides of operators: kept in the store or a file, and put in force |

#![forbid(unsafe_code)]

mod acme;
pub mod admin;
pub mod app;
pub mod cli;
mod jwt_keys;
mod moments;
mod outbound;
mod own_thread;
pub mod overrides;
