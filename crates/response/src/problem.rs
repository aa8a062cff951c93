//! Every error response of the gateway: status, problem type and texts, each defined once.
//!
//! Connections refuse input that never becomes a request, the request path and the layer for
//! services refuse requests: all with these constants. A [`Problem`] is only the content of a
//! response; other crates decide when to refuse. The constants are in `problem/table.rs`.

/// Declares problems: the status, the type, the title, the status of a gRPC call and the detail, or
/// another problem with another detail.
macro_rules! problems {
    (@next $(#[doc = $doc:literal])* $name:ident = $status:ident, $kind:literal, $title:literal, $grpc:ident: $detail:literal; $($rest:tt)*) => {
        $(#[doc = $doc])*
        pub const $name: Self = Self {
            status: http::StatusCode::$status,
            kind: $kind,
            title: $title,
            detail: $detail,
            grpc: super::$grpc,
        };
        problems!(@next $($rest)*);
    };
    (@next $(#[doc = $doc:literal])* $name:ident of $base:ident: $detail:literal; $($rest:tt)*) => {
        $(#[doc = $doc])*
        pub const $name: Self = Self::$base.saying($detail);
        problems!(@next $($rest)*);
    };
    (@next) => {};
    ($($rest:tt)*) => {
        impl super::Problem { problems!(@next $($rest)*); }
    };
}

mod document;
mod table;

use http::StatusCode;

use tollgate_limit::printable::hex;
use tollgate_policy::Malformed;
use tollgate_policy::identity::IdentityReason;
use tollgate_policy::identity::jwt::JwtError;
use tollgate_policy::identity::source::Ambiguous;

pub use document::{END, PROBLEM_JSON};

/// The part of a problem (RFC 9457) that is the same for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    pub kind: &'static str,
    pub title: &'static str,
    pub detail: &'static str,
    /// The status that a gRPC call receives (google.rpc.Code).
    pub grpc: u8,
}

impl Problem {
    pub const fn unidentified(reason: IdentityReason) -> Self {
        match reason {
            IdentityReason::Ambiguous(Ambiguous::Twice) => Self::KEY_TWICE,
            IdentityReason::Ambiguous(Ambiguous::Unclear) => Self::KEY_UNCLEAR,
            IdentityReason::ModelUnknown => Self::MODEL_UNKNOWN,
            IdentityReason::Missing => Self::KEY_MISSING,
            IdentityReason::MissingInBody => Self::KEY_MISSING_IN_BODY,
            IdentityReason::Unknown => Self::KEY_UNKNOWN,
            IdentityReason::Token(JwtError::NoKeys) => Self::NO_KEYS,
            IdentityReason::Token(_) | IdentityReason::Unverified => Self::TOKEN,
        }
    }

    pub const fn unmatchable(why: Malformed) -> Self {
        match why {
            Malformed::Host => Self::HOST_SYNTAX,
            Malformed::Method => Self::METHOD_CASE,
            Malformed::Client => Self::CLIENT,
            Malformed::NotAbsolute
            | Malformed::Escape
            | Malformed::Separator
            | Malformed::Control
            | Malformed::Encoding
            | Malformed::AboveRoot
            | Malformed::DotParameters => Self::PATH,
        }
    }

    const fn saying(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }
}

const CANCELLED: u8 = 1;
const DEADLINE_EXCEEDED: u8 = 4;
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

/// A decision's id as text: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionId([u8; 16]);

impl DecisionId {
    /// The id of the decision with this number. The number is mixed first, so that consecutive ids
    /// do not look alike (the finalizer of Steele, Lea and Flood's SplitMix, which is a bijection).
    pub fn of(count: u64) -> Self {
        let mut mixed = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Self(hex(mixed))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}
