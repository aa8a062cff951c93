use std::sync::Arc;

use http::HeaderValue;

use super::*;
use tollgate_limit::{Kind, Micros, Terms, Verdict, fixtures};

fn limit(
    index: usize,
    name: &str,
    kind: Kind,
    amount: u64,
    period: u64,
    burst: Option<u64>,
) -> Arc<Limit> {
    let terms = Terms {
        burst,
        ..fixtures::terms(kind, amount, Micros::from_secs(period))
    };
    Arc::new(Limit {
        index,
        ..fixtures::limit(name, &terms)
    })
}

fn fields(dialects: &[Dialect], reset: Reset) -> QuotaFields {
    let limits = [
        limit(0, "burst", Kind::FixedWindow, 100, 60, None),
        limit(1, "dai\"ly", Kind::FixedWindow, 5000, 86_400, None),
        limit(2, "jobs", Kind::InFlight, 10, 0, None),
        limit(3, "bucket", Kind::TokenBucket, 100, 60, Some(20)),
    ];
    QuotaFields::new(
        &Responses {
            headers: dialects.to_vec(),
            reset,
            refusal: None,
        },
        &limits,
        &[],
    )
}

fn standing(remaining: u64, effective: u64, reset: u64) -> Standing {
    Standing {
        verdict: Verdict::Allow { wait: Micros::ZERO },
        left: i64::try_from(remaining).unwrap_or(i64::MAX),
        reset: Micros::from_secs(reset),
        effective: Micros::from_secs(effective),
        window_end: Timestamp::default(),
    }
}

/// A limit that admits a request of one unit.
fn fact(limit: usize, standing: &Standing) -> Fact<'_> {
    Fact {
        limit,
        standing,
        cost: 1,
        violated: false,
        key: b"",
    }
}

/// The quota headers of an admitted request.
fn admitted(fields: &QuotaFields, facts: &[Fact<'_>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    fields.annotate(&mut headers, &report(facts));
    headers
}

/// The report of an admitted request.
fn report<'f>(facts: &'f [Fact<'f>]) -> Report<'f> {
    Report {
        facts,
        refused: false,
        retry_after: None,
        now: NOW,
    }
}

const NOW: Timestamp = Timestamp::from_micros(1_000_000_500_000);

#[test]
fn quota_headers_of_an_admitted_request_name_every_limit() {
    let (burst, daily) = (standing(80, 48, 48), standing(4100, 36_000, 36_000));
    let facts = [fact(0, &burst), fact(1, &daily)];
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"upstream\";r=1"));
    headers.insert("x-ratelimit-limit", HeaderValue::from_static("9"));
    fields(&[Dialect::Draft11], Reset::Seconds).annotate(&mut headers, &report(&facts));
    assert_eq!(
        headers["ratelimit-policy"],
        r#""burst";q=100;w=60, "dai\"ly";q=5000;w=86400"#
    );
    assert_eq!(
        headers["ratelimit"],
        r#""burst";r=80;t=48, "dai\"ly";r=4100;t=36000"#
    );
    assert_eq!(headers.len(), 2);
}

#[test]
fn quota_headers_of_a_refusal_name_only_limits_that_refused_and_agree_with_retry_after() {
    let (burst, daily) = (standing(0, 9, 48), standing(4100, 36_000, 36_000));
    let facts = [
        fact(1, &daily),
        Fact {
            violated: true,
            ..fact(0, &burst)
        },
    ];
    let mut headers = HeaderMap::new();
    let every = [Dialect::Draft11, Dialect::XRateLimit];
    let refusal = Report {
        refused: true,
        retry_after: Some(Micros(4_200_000)),
        ..report(&facts)
    };
    fields(&every, Reset::Epoch).annotate(&mut headers, &refusal);
    assert_eq!(headers["ratelimit"], r#""burst";r=0;t=5"#);
    assert_eq!(
        headers["ratelimit-policy"],
        r#""dai\"ly";q=5000;w=86400, "burst";q=100;w=60"#
    );
    assert_eq!(headers["x-ratelimit-limit"], "100");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert_eq!(headers["x-ratelimit-reset"], "1000006");
}

#[test]
fn quota_headers_of_older_drafts_name_the_scarcest_limit() {
    let (burst, daily) = (standing(80, 48, 48), standing(100, 36_000, 36_000));
    let facts = [fact(0, &burst), fact(1, &daily)];
    let headers = admitted(&fields(&[Dialect::Draft07], Reset::Seconds), &facts);
    assert_eq!(
        headers["ratelimit"],
        "limit=5000, remaining=100, reset=36000"
    );
    assert_eq!(headers["ratelimit-policy"], "5000;w=86400");
    let headers = admitted(&fields(&[Dialect::Draft06], Reset::Seconds), &facts);
    assert_eq!(headers["ratelimit-limit"], "5000");
    assert_eq!(headers["ratelimit-remaining"], "100");
    assert_eq!(headers["ratelimit-reset"], "36000");
}

#[test]
fn a_bucket_is_described_by_its_burst_and_a_concurrency_limit_has_no_window() {
    let (bucket, jobs) = (standing(u64::MAX, 12, 12), standing(3, 0, 0));
    let facts = [
        Fact {
            cost: 2,
            ..fact(3, &bucket)
        },
        fact(2, &jobs),
    ];
    let headers = admitted(&fields(&[Dialect::DraftNext], Reset::Seconds), &facts);
    assert_eq!(
        headers["ratelimit-policy"],
        r#""bucket";q=20;w=12, "jobs";q=10;qu="concurrent-requests""#
    );
    assert_eq!(
        headers["ratelimit"],
        r#""bucket";a=999999999999999;w=12;c=2, "jobs";a=3;c=1"#
    );
}

#[test]
fn milliseconds_of_the_epoch_and_one_prepared_policy() {
    let burst = standing(80, 48, 48);
    let facts = [fact(0, &burst)];
    let headers = admitted(
        &fields(&[Dialect::Draft11, Dialect::XRateLimit], Reset::EpochMillis),
        &facts,
    );
    assert_eq!(headers["ratelimit-policy"], r#""burst";q=100;w=60"#);
    assert_eq!(headers["x-ratelimit-reset"], "1000048500");
}

#[test]
fn quota_headers_of_the_upstream_pass_without_limits() {
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"theirs\";r=1"));
    fields(&[Dialect::Draft11], Reset::Seconds).annotate(&mut headers, &report(&[]));
    assert_eq!(headers["ratelimit"], "\"theirs\";r=1");
}

/// The headers as the encoder of a response writes them.
fn lines(headers: &HeaderMap) -> String {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        format!("{name}: {}\r\n", value.to_str().expect("text"))
    };
    headers.iter().map(line).collect()
}

#[test]
fn quota_headers_are_the_same_as_lines_and_as_a_table() {
    let all = [
        Dialect::Draft11,
        Dialect::DraftNext,
        Dialect::Draft07,
        Dialect::Draft06,
        Dialect::XRateLimit,
    ];
    let mut dice = fastrand::Rng::with_seed(11);
    let mut reported = 0;
    for round in 0..3000 {
        let dialects: Vec<Dialect> = all.iter().filter(|_| dice.bool()).cloned().collect();
        let reset = [Reset::Seconds, Reset::Epoch, Reset::EpochMillis][round % 3];
        let standings: Vec<Standing> = (0..dice.usize(..4))
            .map(|_| {
                standing(
                    if dice.bool() { 0 } else { dice.u64(..) },
                    dice.u64(..99_999),
                    dice.u64(..99_999),
                )
            })
            .collect();
        let facts: Vec<Fact<'_>> = standings
            .iter()
            // There is no limit 4.
            .map(|standing| Fact {
                limit: dice.usize(..5),
                standing,
                cost: dice.u64(..9),
                violated: dice.bool(),
                key: b"",
            })
            .collect();
        let refused = dice.bool();
        let retry_after = if refused && dice.bool() {
            Some(Micros(dice.u64(..9_000_000)))
        } else {
            None
        };
        let fields = fields(&dialects, reset);
        let mut headers = HeaderMap::new();
        let report = Report {
            refused,
            retry_after,
            ..report(&facts)
        };
        fields.annotate(&mut headers, &report);
        let mut out = b"before\r\n".to_vec();
        fields.write(&mut out, &report);
        assert_eq!(
            String::from_utf8(out).expect("text"),
            format!("before\r\n{}", lines(&headers)),
            "{dialects:?}"
        );
        reported += headers.len();
    }
    assert!(reported > 3000, "{reported}");
}
