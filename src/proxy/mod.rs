//! Listens, forwards, refuses.

pub mod timers;
