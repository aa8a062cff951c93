//! `[[tests]]`.

use crate::quantity::Time;
use crate::reader::table;
use crate::scalar::{Named, OneOrMany, Text};

table! {
    /// Requests with the verdicts they must get.
    RawTest {
        /// Its name in the report. Default: what is sent.
        name: Text,
        /// `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS]`; a list is
        /// sent in its order, to the same buckets. The upstream answers 200 unless it says otherwise. Must be written.
        send: OneOrMany<Text>,
        /// When it begins, by the calendar: what calendar windows hang on. Default `2026-01-01T00:00:00Z`.
        at: Text,
        /// Headers the requests carry; a `content-length` stands for a body.
        headers: Named<Text>,
        /// What must come out. Must be written.
        expect: RawExpect,
    }
}

table! {
    /// What must come out of a test.
    RawExpect {
        /// Requests admitted.
        allowed: u64,
        /// Requests refused by a limit.
        refused: u64,
        /// The wait the last refusal names: `Retry-After`, whole seconds, rounded up.
        retry_after: Time,
        /// The status of the last answer, when it is the gateway's own (404, 401, 429 …).
        status: u64,
        /// The limit that refused last.
        limit: Text,
    }
}
