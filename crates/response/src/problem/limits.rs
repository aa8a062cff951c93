//! A limit or a budget refuses, or its numbers cannot be read.

use http::StatusCode;

use super::{Problem, RESOURCE_EXHAUSTED};

impl Problem {
    /// 402: a limit with `refuse_status = 402` refuses, with a known retry time.
    pub const BUDGET_EXHAUSTED: Self = Self {
        status: StatusCode::PAYMENT_REQUIRED,
        kind: "urn:problem-type:tollgate:budget-exhausted",
        title: "The budget does not cover the request",
        detail: "The budget is used up for now. A retry after the time given is admitted.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 402: the same, and the largest number of concurrent requests is in progress.
    pub const BUDGET_AND_CONCURRENCY: Self = Self::BUDGET_EXHAUSTED.saying(
        "The budget is used up for now, and the largest number of concurrent requests is in progress.",
    );
    /// 402: the request costs more than the budget can ever grant.
    pub const NEVER_IN_BUDGET: Self = Self::BUDGET_EXHAUSTED
        .saying("This request costs more than the budget can ever grant. A retry will not help.");
    /// 429: a limit refuses, with a known retry time.
    pub const QUOTA_EXCEEDED: Self = Self {
        status: StatusCode::TOO_MANY_REQUESTS,
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        detail: "The quota is used up for now. A retry after the time given is admitted.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 429: the largest number of concurrent requests is in progress.
    pub const CONCURRENCY_EXCEEDED: Self = Self::QUOTA_EXCEEDED.saying(
        "The largest number of concurrent requests is in progress. Retry when one has ended.",
    );
    /// 429: the request costs more than the quota can ever grant, or more than its limit lets a request cost.
    pub const NEVER_FITS: Self = Self::QUOTA_EXCEEDED
        .saying("This request costs more than the quota can ever grant, or states a cost above the highest allowed one, or one that cannot be read. A retry will not help.");
    /// 429: an operator's override blocks the caller.
    pub const BLOCKED: Self = Self {
        kind: "urn:problem-type:tollgate:blocked",
        title: "The caller is blocked",
        detail: "An operator has blocked this caller for a while. A retry after the time given is not blocked any more.",
        ..Self::QUOTA_EXCEEDED
    };
    /// 429: a penalty blocks the caller.
    pub const PENALTY: Self = Self {
        detail: "The caller is blocked for a while because it was refused too often. A retry after the time given is not blocked any more.",
        ..Self::BLOCKED
    };
    /// 503: a store did not respond, and its limit is configured to refuse in that case.
    pub const STORE_DOWN: Self = Self {
        title: "The quota cannot be read",
        detail: "The store of a limit does not respond, and the limit is configured to refuse requests then.",
        ..Self::OVERLOADED
    };
}
