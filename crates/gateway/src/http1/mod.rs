//! HTTP/1.1 over a connection: buffers, and the client's side. The messages themselves are [`tollgate_http1`]'s.

pub mod buffer;
pub mod client;

pub use buffer::{ReadBuffer, WriteBuffer};
pub use client::{Client, Failure};
