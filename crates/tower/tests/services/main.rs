//! The layer in services of axum and tonic, with real clients and real stores.

mod exactness;
mod examples;
mod forged;
mod kind;
mod stores;
