use crate::reading::{At, Named, OneOrMany, ShortOr, Text, settings, table, words};
use crate::values::certificates::AuthoritiesPem;
use crate::values::forms::BLOCK;
use crate::values::key_source::{KeySource, WHEN_MISSING};
use crate::values::names::ServerName;
use crate::values::rate::Rate;
use tollgate_limit::Micros;
use tollgate_policy::identity::WhenUnknown;
use tollgate_policy::identity::jwt::FetchSettings;
use tollgate_policy::upstream::TlsFiles;

table! {
    /// A way to identify callers.
    RawIdentity {
        /// Where the key is in a request: `header:NAME`, `bearer`, `basic` (the user), `jwt:CLAIM`, `cookie:NAME`, `query:NAME`,
        /// `path:NAME`, `client_certificate` (its subject, or where that is empty its first alternative name as `dns:NAME`, `uri:URI` or
        /// `email:ADDRESS`), `address`, or a part of the body: `json:PATH` (a member of JSON, the names that lead to it joined by dots), `form:NAME`
        /// or `graphql:operation`. A list takes all of them together; `{ first_of = [...] }` takes the first that is present.
        @required("key = \"header:x-api-key\" says where the key is in a request") key: ShortOr<OneOrMany<KeySource>, RawFirstOf> => "header:x-api-key",
        /// How a request without the key is treated: `refuse` (401, or 400 for a key in the body), `skip` (limits by this identity are left out), `use:address`
        /// (the address counts instead) or `use:IDENTITY` (another identity counts instead). `{ use = "address", tier = "anonymous" }`
        /// gives such clients a tier.
        @required(WHEN_MISSING) when_missing: ShortOr<Text, RawWhenMissing> => { use = "address", tier = "anonymous" },
        /// How a key is treated that is not on the list of callers. Required where `callers` is written, and only there: a made-up
        /// key must not be a fresh bucket.
        when_unknown: WhenUnknown => "refuse",
        /// Known callers, each by `sha256:` and the SHA-256 of its key in hex digits (`tollgate hash`); or the name of a file with
        /// such a table, which is read again when it changes.
        callers: ShortOr<Text, Named<RawCaller>> => { "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" = { name = "acme", tier = "pro" } },
        /// How tokens are verified. Required for `jwt:` keys.
        jwt: RawJwt => { keys = "jwks.json", issuer = "https://id.example.com", audience = "api", algorithms = ["ES256"] },
    }
}

table! {
    /// Several parts of a request that may contain the same key.
    RawFirstOf {
        /// Sources of which the first that is present is the key. Two that are present with different values are refused with 400.
        /// Either all are keys that clients send, or all are claims of a token.
        @required("{ first_of = [\"header:x-api-key\", \"query:api_key\"] }") first_of: Vec<KeySource> => ["header:x-api-key", "query:api_key"],
    }
}

table! {
    /// What counts for clients without a key, and their tier.
    RawWhenMissing {
        /// What counts instead: `address`.
        @required("{ use = \"address\", tier = \"anonymous\" }") r#use: Text => "address",
        /// The tier of clients that are counted by their address, because their key is missing, or because it is unknown and
        /// `when_unknown` is `use:address`.
        tier: Text => "anonymous",
    }
}

words! {
    for WhenUnknown {
        /// The request is refused with 401.
        Refuse = "refuse",
        /// The client's address counts instead.
        UseAddress = "use:address",
        /// The key is a caller like any other. A client that makes up keys then has a fresh bucket for each.
        Accept = "accept",
    }
}

table! {
    /// A known caller.
    RawCaller {
        /// Its name in logs, in `{caller}`, and as its bucket's key: two keys with one name share their buckets.
        @required("{ name = \"acme\", tier = \"pro\" }") name: Text => "acme",
        /// Its tier, one of `[tiers]`. Default: none, so that each limit's own numbers apply.
        tier: Text => "pro",
        /// Numbers of limits for this caller alone, in place of its tier's. At most 10,000 callers of a file may have some.
        limits: Named<ShortOr<Rate, super::RawTier>> => { search = "500/minute" },
    }
}

table! {
    /// How tokens (JWT) are verified.
    RawJwt {
        /// The public keys: a JWKS file or a PEM file, which is read again when it changes, or the `https://` URL of a JWKS document,
        /// which is fetched.
        keys: Text => "jwks.json",
        /// The issuer whose OpenID configuration (`/.well-known/openid-configuration`) names the keys, in place of `keys`. Without
        /// `issuer`, it is the accepted one.
        discovery: Text => "https://id.example.com",
        /// How keys are fetched. Only with a URL in `keys`, or with `discovery`.
        fetch: FetchSettings => { refresh = "10m", unknown_kid = "30s" },
        /// The shared secret of HS256, HS384 and HS512, in place of `keys`. It must come from the environment.
        secret: Text => "${JWT_SECRET}",
        /// A file that holds the shared secret.
        secret_file: Text => "/run/secrets/jwt",
        /// Accepted issuers (`iss`). Default: any.
        issuer: OneOrMany<String> => "https://id.example.com",
        /// Accepted audiences (`aud`). Default: any.
        audience: OneOrMany<String> => "api",
        /// Accepted algorithms: a token must not choose its own.
        @required("a token must not choose its own: algorithms = [\"ES256\"]") algorithms: Vec<At<Text>> => ["ES256"],
        /// How far clocks may differ when `exp` and `nbf` are checked.
        leeway: Micros = "30s",
    }
}

settings! {
    /// How keys are fetched. Certificates are always verified.
    for FetchSettings as RawFetch {
        /// How often they are fetched, at least. The keys in force stay while that fails, and it is tried again after one to sixty seconds.
        refresh: Micros [BLOCK] = "10m",
        /// A key id that is not known has them fetched at once, at most once in this time.
        unknown_kid: Micros [BLOCK] = "30s",
        /// How long one attempt may take, with its redirects. A start without keys waits for one attempt.
        timeout: Micros [BLOCK] = "5s",
        /// Other hosts that redirects and the OpenID configuration may lead to. Default: none.
        hosts: Vec<ServerName> => ["www.googleapis.com"],
        /// Whether a host name may resolve to a private, loopback or link-local address. An address in the URL is written, and may be one.
        private_addresses: bool = false => true,
        /// The authorities that certificates are verified against, a PEM file. Default: the system's.
        ca_file: Option<AuthoritiesPem> => "id-ca.pem",
    }
    make FetchSettings {
        refresh,
        unknown_kid,
        timeout,
        hosts,
        private_addresses,
        tls: TlsFiles { ca: ca_file, ..TlsFiles::default() },
    };
}
