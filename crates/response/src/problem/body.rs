//! A body that is too large, or from which a value that must be known cannot be read.

use http::StatusCode;

use super::{INTERNAL, Problem, RESOURCE_EXHAUSTED};
use tollgate_policy::OperationFlaw;

impl Problem {
    /// The body lacks a value that requests are limited by.
    pub const KEY_MISSING_IN_BODY: Self =
        Self::MALFORMED.saying("The body lacks a value that it must have here, is too long, or has no form in which it is read.");
    /// The body is no JSON, and something in it must be known.
    pub const BODY_MALFORMED: Self =
        Self::MALFORMED.saying(
            "The body of the request is not a JSON object or list in UTF-8, or is nested more than 128 levels deep.",
        );
    /// The model of the request has no price.
    pub const MODEL_UNKNOWN: Self =
        Self::MALFORMED.saying(
            "The body of the request names no model that has a price here, or is too long to be read for it.",
        );
    /// The body says something twice, or in a form that servers read differently.
    pub const BODY_AMBIGUOUS: Self = Self::MALFORMED
        .saying("A value in the body of the request is given twice, or in a form that servers read differently.");
    /// It is not clear which operation a GraphQL request executes, for this reason.
    pub const fn operation(why: OperationFlaw) -> Self {
        Self::BODY_AMBIGUOUS.saying(why.words())
    }
    /// The calls of a batch are limited differently.
    pub const BODY_MIXED: Self = Self::MALFORMED
        .saying("The calls of the batch are limited differently: send them one by one.");
    /// 413: the body is larger than the route allows.
    pub const BODY_TOO_LARGE: Self = Self {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        kind: "urn:problem-type:tollgate:body-too-large",
        title: "The body is too large",
        detail: "The body of the request is larger than this route admits.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 413: the route depends on the body, which is too large for that.
    pub const BODY_TOO_LARGE_TO_ROUTE: Self =
        Self::BODY_TOO_LARGE.saying("The body of the request is too large to find its route.");
    /// A batch of more calls than are read for a value in them.
    pub const BATCH_TOO_LONG: Self = Self::BODY_TOO_LARGE
        .saying("The batch has more than 1000 calls, which is the most that are read.");
    /// 415: the charset of the body is not UTF-8, and something in it must be known.
    pub const BODY_CHARSET: Self = Self {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        kind: "urn:problem-type:tollgate:unsupported-media-type",
        title: "The body cannot be read",
        detail: "The body of the request must be in UTF-8.",
        grpc: INTERNAL,
    };
    /// 415: the body is compressed, and something in it must be known.
    pub const BODY_COMPRESSED: Self =
        Self::BODY_CHARSET.saying("The body of the request must not be compressed.");
}
