//! What hyper's HTTP/2 does not do or does not report: bounds on how far a response runs ahead of its
//! client, writes gathered for one system call, deadlines of streams, malformed trailers, windows.

mod ahead;
pub(crate) mod frames;
pub(crate) mod gathered;
pub(crate) mod state;
pub(crate) mod streams;
pub(crate) mod trailers;
pub(crate) mod window;
