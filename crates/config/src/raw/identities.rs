//! `[identities.*]` and caller lists.

use crate::quantity::Time;
use crate::reader::{table, words};
use crate::scalar::{Named, OneOrMany, ShortOr, Text};
use crate::source::At;

table! {
    /// A way to tell who is asking.
    RawIdentity {
        /// Where the key stands: `header:NAME`, `bearer`, `basic`, `jwt:CLAIM`, `cookie:NAME`, `query:NAME`, `path:NAME`,
        /// `client_certificate` (its subject, or its first alternative name as `dns:NAME`, `uri:URI` or `email:ADDRESS` where the
        /// subject is empty) or `address`; a list takes all of them together.
        key: OneOrMany<Text>,
        /// What happens when the key is absent: `refuse` (401), `skip` (no limit by this identity), `use:address` or
        /// `use:IDENTITY`. Must be written.
        when_missing: Text,
        /// What happens when callers are listed and the key is none of them: `refuse` (401), `use:address`, or `accept`.
        /// Must be written where callers are listed.
        when_unknown: WhenUnknown,
        /// Known callers, by the SHA-256 of their key; or the name of a file with such a table, which is read again when it changes.
        callers: ShortOr<Text, Named<RawCaller>>,
        /// How tokens are verified, for `jwt:` keys.
        jwt: RawJwt,
    }
}

words! {
    /// What happens to keys that are on no list.
    pub(crate) enum WhenUnknown {
        /// 401.
        Refuse = "refuse",
        /// The caller's address counts instead.
        UseAddress = "use:address",
        /// A caller like any other.
        Accept = "accept",
    }
}

table! {
    /// A known caller.
    RawCaller {
        /// Its name, in logs and in `{caller}`.
        name: Text,
        /// Its tier.
        tier: Text,
    }
}

table! {
    /// How tokens are verified.
    RawJwt {
        /// The public keys: a JWKS file or a PEM file; it is read again when it changes.
        keys: Text,
        /// The shared secret of HS256, HS384 and HS512: from the environment.
        secret: Text,
        /// A file that holds the shared secret.
        secret_file: Text,
        /// Issuers (`iss`) that are believed. Default: any.
        issuer: OneOrMany<Text>,
        /// Audiences (`aud`) that are meant. Default: any.
        audience: OneOrMany<Text>,
        /// Algorithms that are taken. Must be written: a token must not choose its own.
        algorithms: Vec<At<Text>>,
        /// How far clocks may differ, for `exp` and `nbf`. Default `30s`.
        leeway: Time,
    }
}
