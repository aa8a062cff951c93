//! Listens, forwards, refuses.

pub mod listener;
pub mod server;
mod settle;
pub mod timers;
pub mod tls;
pub mod worker;
