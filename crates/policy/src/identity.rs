//! Resolves identities: their sources, and the fallback when a key is missing or unknown. Knows no limits.

pub mod address;
pub mod callers;
mod evidence;
pub(crate) mod forwarded;
pub(crate) mod identify;
pub mod jwt;
pub(crate) mod jwt_keys;
pub mod keys;
pub(crate) mod lacking;
pub(crate) mod lookalikes;
pub mod source;

use std::sync::Arc;

use arc_swap::ArcSwap;

use jwt::{JwtError, JwtPolicy};
use source::Ambiguous;
use tollgate_limit::KeyBytes;

pub use address::{ForwardingHeader, NetSet};
pub use callers::{Caller, Callers, parse_digest};
pub(super) use evidence::{Evidence, Signatures};
pub use jwt::JwtSettings;
pub use source::Source;

#[derive(Debug)]
pub struct Identity {
    pub name: Arc<str>,
    pub sources: Vec<Source>,
    /// Whether the first source that is present is the key; otherwise all sources together are.
    pub first_of: bool,
    pub when_missing: WhenMissing,
    pub when_unknown: WhenUnknown,
    /// The tier of clients identified by address here, because their key is missing or unknown.
    pub address_tier: Option<Arc<str>>,
    /// Known callers, if listed. Replaced separately when their own file changes
    /// ([`Identity::replace_callers`]).
    pub callers: Option<ArcSwap<Callers>>,
    pub jwt: Option<JwtPolicy>,
}

impl Identity {
    /// Whether the address alone determines it, without any key.
    pub(super) fn is_address(&self) -> bool {
        let fallback = matches!(self.when_missing, WhenMissing::Use(_));
        !fallback
            && self
                .sources
                .iter()
                .all(|source| matches!(source, Source::Address))
    }

    pub fn missing(&self) -> IdentityReason {
        if self.sources.iter().any(Source::is_of_body) {
            IdentityReason::MissingInBody
        } else {
            IdentityReason::Missing
        }
    }

    /// Replaces the known callers immediately. Has no effect on an identity without listed callers:
    /// listing them decides what unknown keys mean, which is part of the policy.
    pub fn replace_callers(&self, callers: Callers) {
        if let Some(current) = &self.callers {
            current.store(Arc::new(callers));
        }
    }
}

/// What happens when an identity's key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    Refuse,
    /// No limit by this identity.
    Skip,
    UseAddress,
    Use(usize),
}

/// What happens when callers are listed and the key belongs to none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnknown {
    Refuse,
    UseAddress,
    Accept,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("identity `{identity}`: {reason}")]
pub struct IdentityRefusal {
    pub identity: Arc<str>,
    pub reason: IdentityReason,
    /// What the body lacks, in a sentence; `None`: the reason says all.
    pub lacking: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityReason {
    /// The key is absent, and `when_missing = "refuse"`: 401.
    #[error("the key is missing")]
    Missing,
    /// The same of a key in the body: 400, because credentials would not help.
    #[error("the body does not have the key")]
    MissingInBody,
    /// The key belongs to no known caller, and `when_unknown = "refuse"`: 401.
    #[error("the key is not known")]
    Unknown,
    #[error("the token is refused: {0}")]
    Token(#[from] JwtError),
    /// The token was not verified before, and no signature was to be verified. Never reported to a client.
    #[error("the token has not been verified")]
    Unverified,
    #[error("the key is ambiguous: {0}")]
    Ambiguous(#[from] Ambiguous),
    /// The request asks for a model without a price, and the limit refuses such requests: 400. The
    /// refusal names the limit.
    #[error("the model has no price")]
    ModelUnknown,
}

impl IdentityReason {
    /// Whether the request itself is malformed (400) instead of unauthorised (401).
    pub const fn is_malformed(self) -> bool {
        matches!(
            self,
            Self::MissingInBody | Self::Ambiguous(_) | Self::ModelUnknown
        )
    }
}

crate::labels! {
    IdentityReason {
        Self::Missing | Self::MissingInBody => "identity_missing",
        Self::Unknown => "identity_unknown",
        Self::Ambiguous(_) => "identity_ambiguous",
        Self::ModelUnknown => "model_unknown",
    } and {
        Self::Token(why) => why.label(),
        Self::Unverified => "token_unverified",
    }
}

#[derive(Clone, Debug)]
pub struct Resolved {
    pub identity: usize,
    pub how: How,
    /// The part of a bucket's key for this identity; empty when skipped.
    pub key: KeyBytes,
    pub caller: Option<Arc<Caller>>,
    /// The tier of clients identified by address here, because their key is missing or unknown.
    pub address_tier: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Known,
    /// By its key; callers are not listed.
    Key,
    MissingAddress,
    UnknownAddress,
    Skipped,
}
