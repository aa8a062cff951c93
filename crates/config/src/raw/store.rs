use crate::reading::{Text, table, words};
use crate::values::certificates::{Authorities, Chain, PrivateKey};
use crate::values::forms::{Auto, TIMEOUT};
use tollgate_limit::{Micros, WhenDown};

table! {
    /// The store that several gateways share.
    RawStore {
        /// The kind of store.
        @required("write kind = \"redis\", kind = \"postgres\" or kind = \"mysql\"; leave [store] out to keep everything in the process") kind: StoreKind => "redis",
        /// Where the store is: `redis://`, `rediss://` (TLS), `unix:`, `redis+sentinel://a,b,c/NAME`, `redis+cluster://a,b,c`,
        /// `postgres://`, or `mysql://`. A password in it must come from the environment.
        url: Text => "${REDIS_URL}",
        /// A file that holds the URL, in place of `url`.
        url_file: Text => "/run/secrets/store_url",
        /// The user, where the URL names none.
        username: Text => "tollgate",
        /// The password, where the URL holds none. It must come from the environment.
        password: Text => "${STORE_PASSWORD}",
        /// A file that holds the password.
        password_file: Text => "/run/secrets/store_password",
        /// How long a request waits for the store in all, however often it asks; after that `when_down` applies.
        answer_within: Micros [TIMEOUT] = "20ms" => "50ms",
        /// How requests are treated while the store does not respond. A limit may choose differently.
        @required("when_down = \"local_share\" enforces this gateway's part of each limit, \"allow\" admits, \"refuse\" responds with 503; no default is right for both a login and a search") when_down: WhenDown => "local_share",
        /// The number of gateways that share the limits: the local share is one part of so many. `auto` counts them in the store.
        replicas: Auto<u32> [1..=10_000] = "auto" => 3,
        /// The secret by which keys are hashed before they are stored, at least 16 characters. It must come from the environment,
        /// and every gateway needs the same one.
        key_secret: Text => "${TOLLGATE_KEY_SECRET}",
        /// A file that holds the secret, in place of `key_secret`.
        key_secret_file: Text => "/run/secrets/key_secret",
        /// Whether a charge is on disk before a request is admitted (PostgreSQL only). With `false`, a crash of the server may
        /// forget the last moments.
        synchronous_commit: bool = false => true,
        /// Whether the gateway creates the tables and functions it needs (PostgreSQL, MariaDB and MySQL).
        create: bool = true => false,
        /// How the gateway starts if the server's settings could lose buckets.
        audit: Audit = "warn" => "refuse",
        /// The authorities that sign the server's certificate, a PEM file. Default: the system's. With this file TLS is mandatory.
        ca_file: Authorities => "store-ca.pem",
        /// The certificate that the gateway shows to the server, a PEM file.
        client_certificate: Chain => "gateway.pem",
        /// The private key of that certificate, a PEM file.
        client_key: PrivateKey => "gateway.key",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    /// PostgreSQL, or a database that speaks its protocol.
    Postgres,
    Mysql,
}

words! {
    for StoreKind {
        /// Redis or Valkey.
        Redis = "redis",
        /// PostgreSQL, or a database that speaks its protocol.
        Postgres = "postgres",
        /// MariaDB or MySQL.
        Mysql = "mysql",
        /// The same as `mysql`.
        Mysql = "mariadb",
    }
}

words! {
    for WhenDown {
        /// Each gateway enforces its part of the limit, counted in the process.
        LocalShare = "local_share",
        /// Requests are admitted, and counted in the metrics.
        Allow = "allow",
        /// Requests are refused with 503.
        Refuse = "refuse",
    }
}

words! {
    /// How the gateway starts if the server's settings could lose buckets.
    pub enum Audit {
        /// It logs a warning.
        Warn = "warn",
        /// It does not start.
        Refuse = "refuse",
    }
}
