//! Listens, forwards, refuses.

pub mod listener;
pub mod server;
pub mod timers;
pub mod tls;
pub mod worker;
