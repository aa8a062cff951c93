//! `[[tests]]`.

use crate::quantity::Time;
use crate::reader::table;
use crate::scalar::{Named, OneOrMany, Text};

table! {
    /// Requests with the verdicts they must get. `tollgate check` runs them in virtual time with fresh buckets.
    RawTest {
        /// Its name in the report. Default: what is sent.
        name: Text => "a free key may burst five",
        /// `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS]`. The
        /// entries of a list are sent in order, to the same buckets. The upstream answers 200 unless the test says otherwise.
        @required send: OneOrMany<Text> => "21 x POST /v1/search/a as tenant:acme at 0s",
        /// The moment at which it begins, on which calendar windows depend.
        at: Text = "2026-01-01T00:00:00Z",
        /// Headers of the requests; a `content-length` stands for a body.
        headers: Named<Text> => { "x-api-key" = "k-123" },
        /// What must come out.
        @required expect: RawExpect => { allowed = 20, refused = 1 },
    }
}

table! {
    /// What must come out of a test. What is not written may be anything.
    RawExpect {
        /// Number of requests admitted.
        allowed: u64 => 20,
        /// Number of requests refused by a limit.
        refused: u64 => 1,
        /// The `Retry-After` of the last refusal, in whole seconds, rounded up.
        retry_after: Time => "2s",
        /// The status of the last response, where it is the gateway's own (404, 401, 429).
        status: u64 => 429,
        /// The limit that refused last.
        limit: Text => "search",
    }
}
