//! `[store]`.

use crate::quantity::{Count, Time};
use crate::reader::{table, words};
use crate::scalar::Text;

table! {
    /// The store that gateways share.
    RawStore {
        /// What it is.
        kind: StoreKind,
        /// Where it is: `redis://`, `rediss://`, `unix:`, `redis+sentinel://a,b,c/name`, `redis+cluster://a,b,c`, or
        /// `postgres://`. A password in it must come from the environment: `${REDIS_URL}`.
        url: Text,
        /// A file that holds the URL.
        url_file: Text,
        /// The user, where the URL names none.
        username: Text,
        /// The password, where the URL holds none: from the environment.
        password: Text,
        /// A file that holds the password.
        password_file: Text,
        /// How long a request waits for it; after that `when_down` applies. Default `20ms`.
        answer_within: Time,
        /// What happens to requests when it does not answer: `local_share` (this gateway's part of the limit, counted in the
        /// process), `allow`, or `refuse` (503). Must be written; a limit may say otherwise.
        when_down: WhenDown,
        /// What one gateway's local share is a part of: counted in the store, or a number. Default `auto`.
        replicas: Count,
        /// Keys in the store are hashes keyed by this, never raw: from the environment. Every gateway needs the same.
        key_secret: Text,
        /// A file that holds it.
        key_secret_file: Text,
        /// Whether a charge is on disk before it is answered (PostgreSQL). Default `false`: a crash of the server may forget the
        /// last moments.
        synchronous_commit: bool,
        /// Whether the gateway creates the table and function it needs (PostgreSQL). Default `true`.
        create: bool,
        /// What the audit of the server's settings at the start does about what would lose buckets: `warn`, or `refuse` to start
        /// (a store that does not answer then is not waited for). Default `warn`.
        audit: Audit,
        /// The authorities that sign the server's certificate, as a file. Default: the system's. Naming one makes TLS a must.
        ca_file: Text,
        /// A certificate of our own, where the server asks for one.
        client_certificate: Text,
        /// Its private key.
        client_key: Text,
    }
}

words! {
    /// Kinds of stores.
    pub enum StoreKind {
        /// Redis or Valkey.
        Redis = "redis",
        /// PostgreSQL, or what speaks it.
        Postgres = "postgres",
    }
}

words! {
    /// What happens when the store does not answer.
    pub(crate) enum WhenDown {
        /// This gateway's part of the limit, counted in the process.
        LocalShare = "local_share",
        /// Admitted, and counted.
        Allow = "allow",
        /// 503.
        Refuse = "refuse",
    }
}

words! {
    /// What the audit of the store does.
    pub enum Audit {
        /// It warns.
        Warn = "warn",
        /// The gateway does not start.
        Refuse = "refuse",
    }
}
