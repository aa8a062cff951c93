//! The settings besides the policy: listeners, bounds, logs, the store. Checked and typed, with
//! defaults applied.

use std::net::IpAddr;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

pub use super::raw::{
    Acme, AcmeChallenge, Admin, Audit, Bounds, Certificate, ClientCertificates, ColdStart,
    CompressedBodies, Decide, DescriptorEntry, EncodedSlash, Expect, Log, LogFormat, LogKeys,
    LogLevel, OperationsFormat, Operator, OperatorLevel, RuleOfDescriptors, Server, ServerTimeouts,
    StoreKind, Traces, Webhook, WebhookEvent,
};
pub use super::reading::{Secret, Word};
pub use super::values::envoy_file::EnvoyFile;
pub use super::values::forms::AccessLog;
pub use super::values::listener::{DecideListener, DecideProtocol, Listener};
use tollgate_limit::{Micros, Timestamp, WhenDown};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    pub kind: StoreKind,
    pub topology: Topology,
    pub url: Secret,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub answer_within: Micros,
    pub when_down: WhenDown,
    /// The divisor for one gateway's local share; `None`: gateways are counted in the store.
    pub replicas: Option<u32>,
    pub key_secret: Secret,
    pub synchronous_commit: bool,
    pub create: bool,
    pub audit: Audit,
    pub tls: StoreTls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The authorities that sign the server's certificate; `None`: the system's.
    pub ca: Option<PathBuf>,
    pub client: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Single,
    Sentinel,
    Cluster,
}

/// A test in the file: requests in virtual time, and the expected results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    pub name: String,
    pub line: usize,
    /// The requests, in this order, to the same buckets, which are fresh for each test.
    pub sent: Vec<Sent>,
    pub start: Timestamp,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Option<String>,
    pub expect: Expect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub count: u64,
    pub method: Method,
    pub host: Option<String>,
    pub uri: Uri,
    pub caller: Option<TestCaller>,
    pub from: Option<IpAddr>,
    /// The time of the first request, from the start of the test.
    pub at: Micros,
    pub every: Micros,
    /// How long each request takes; only a concurrency limit depends on it.
    pub lasting: Micros,
    pub answered: StatusCode,
}

/// `as IDENTITY:CALLER`: the caller that a test takes for granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCaller {
    pub identity: String,
    pub index: usize,
    pub name: String,
}
