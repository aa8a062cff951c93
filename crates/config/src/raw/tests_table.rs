//! `[[tests]]`.

use crate::declare::{settings, table};
use crate::lists::{Named, OneOrMany};
use crate::text::Text;
use crate::validate::responses::HeaderText;
use crate::validate::tests_table::{Start, check_expect};
use tollgate_limit::Micros;

table! {
    /// A test: requests and the verdicts that are expected. `tollgate check` runs it in virtual time with fresh buckets.
    RawTest {
        /// Its name in the report. Default: the value of `send`.
        name: Text => "a free key may burst five",
        /// `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS]`. The
        /// entries of a list are sent in order, to the same buckets. The upstream responds with 200 unless `answered` names a status.
        @required("send = \"21 x POST /v1/search/a as tenant:acme at 0s\"") send: OneOrMany<Text> => "21 x POST /v1/search/a as tenant:acme at 0s",
        /// The moment at which it begins, on which calendar windows depend.
        at: Start = "2026-01-01T00:00:00Z",
        /// The body of each request, as keys, conditions, costs and prices read it. Its `content-type` is `application/json` unless
        /// `headers` has another one.
        body: Text => "{\"model\":\"gpt-4o\",\"max_tokens\":100}",
        /// Headers of the requests; a `content-length` stands for a body.
        headers: Named<HeaderText> => { "x-api-key" = "k-123" },
        /// The expected result.
        @required("expect = { allowed = 20, refused = 1 }") expect: Expect => { allowed = 20, refused = 1 },
    }
}

settings! {
    /// The expected result of a test. Values that are left out are not checked.
    pub struct Expect {
        /// Number of requests admitted.
        allowed: Option<u64> => 20,
        /// Number of requests refused by a limit.
        refused: Option<u64> => 1,
        /// Number of requests admitted on another target of their route (`over_limit`).
        over_limit: Option<u64> => 5,
        /// The `Retry-After` of the last refusal, in whole seconds, rounded up.
        retry_after: Option<Micros> => "2s",
        /// The status of the last response, where it is the gateway's own (404, 401, 429).
        status: Option<u16> [100..=599] => 429,
        /// The limit that refused last.
        limit: Option<String> => "search",
    }
    check check_expect;
}
