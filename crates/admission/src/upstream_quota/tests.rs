use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn told(fields: &[(&'static str, &str)]) -> Option<(u64, u64)> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).expect("a field value"));
    }
    left(&headers, NOW).map(|left| (left.units, left.span.0 / 1_000_000))
}

proptest::proptest! {
    #[test]
    fn whatever_comes_is_read_or_left(
        field in "[-\"a-z0-9=;, .rtqw\\\\]{0,40}", policy in "[\"a-z0-9=;, ]{0,40}", number in "[0-9.]{0,24}",
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in [("ratelimit", &field), ("ratelimit-policy", &policy)] {
            headers.append(name, HeaderValue::from_str(value).expect("a field value"));
        }
        let by_field = left(&headers, NOW);
        for name in ["x-ratelimit-remaining", "x-ratelimit-reset"] {
            headers.append(name, HeaderValue::from_str(&number).expect("a field value"));
        }
        headers.remove("ratelimit");
        for told in [by_field, left(&headers, NOW)].into_iter().flatten() {
            proptest::prop_assert!(told.span.0 > 0);
        }
    }
}

#[test]
fn retry_after_date_is_relative_to_the_date_header_within_bounds() {
    // Ours is 08:00:00 on 15 January 2027, a Friday.
    let on = |time: &str| format!("Fri, 15 Jan 2027 {time} GMT");
    let wait = |after: &str, fields: &[(&'static str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields.iter().chain([&("retry-after", after)]) {
            headers.append(*name, HeaderValue::from_str(value).expect("a field value"));
        }
        retry_after(&headers, NOW).map(|wait| wait.0 / 1_000_000)
    };
    assert_eq!(
        wait("7", &[("date", &on("09:00:00"))]),
        Some(7),
        "seconds are seconds"
    );
    assert_eq!(
        wait(&on("08:00:10"), &[]),
        Some(10),
        "no Date: by our clock"
    );
    assert_eq!(
        wait(&on("09:00:10"), &[("date", &on("09:00:00"))]),
        Some(10),
        "an hour ahead"
    );
    assert_eq!(
        wait(&on("07:00:10"), &[("date", &on("07:00:00"))]),
        Some(10),
        "an hour behind"
    );
    assert_eq!(
        wait(&on("09:00:00"), &[("date", &on("09:00:00"))]),
        Some(0),
        "now"
    );
    assert_eq!(
        wait(&on("09:00:30"), &[("date", &on("09:00:00")), ("age", "20")]),
        Some(10),
        "kept by a cache"
    );
    for (date, why) in [
        ("Thu, 01 Jan 1970 00:00:00 GMT", "fifty years behind"),
        ("Tue, 15 Jan 2137 08:00:00 GMT", "a century ahead"),
        ("soon", "none at all"),
        (&*on("05:00:00"), "it would make the wait three hours"),
    ] {
        assert_eq!(wait(&on("08:00:10"), &[("date", date)]), Some(10), "{why}");
    }
    let two = [("date", &*on("09:00:00")), ("date", &*on("07:00:00"))];
    assert_eq!(wait(&on("08:00:10"), &two), Some(10), "two clocks are none");
    assert_eq!(wait("tomorrow", &[]), None);
    // The same clock rules a reset that is a moment.
    for (date, left) in [
        (on("09:00:00"), 3_600),
        (on("08:00:10"), 7_190),
        (on("01:00:00"), 7_200),
    ] {
        let fields = [
            ("x-ratelimit-remaining", "3"),
            ("x-ratelimit-reset", "1800007200"),
            ("date", &*date),
        ];
        assert_eq!(told(&fields), Some((3, left)), "{date}");
    }
}

#[test]
fn every_dialect_is_understood() {
    for (fields, expected) in [
        (
            &[("ratelimit", "\"default\";r=50;t=30")][..],
            Some((50, 30)),
        ),
        (
            &[("ratelimit", "\"a,b;c\";r=5;t=1, \"daily\";r=900;t=3600")],
            Some((900, 3600)),
        ),
        (
            &[
                ("ratelimit", "\"burst\";r=0;t=1"),
                ("ratelimit", "\"daily\";r=0;t=3600"),
            ],
            Some((0, 3600)),
        ),
        (
            &[
                ("ratelimit", "default;r=7"),
                ("ratelimit-policy", "default;q=10;w=60"),
            ],
            Some((7, 60)),
        ),
        (
            &[
                ("ratelimit", "\"b\";r=7"),
                ("ratelimit-policy", "\"a\";q=10;w=60"),
            ],
            None,
        ),
        (
            &[
                ("ratelimit", "\"bytes\";r=1;t=60, \"d\";r=9;t=60"),
                (
                    "ratelimit-policy",
                    "\"bytes\";q=10;qu=\"content-bytes\";w=60",
                ),
            ],
            Some((9, 60)),
        ),
        (
            &[("ratelimit", "limit=100, remaining=50, reset=30")],
            Some((50, 30)),
        ),
        (
            &[("ratelimit-remaining", "3"), ("ratelimit-reset", "9")],
            Some((3, 9)),
        ),
        (
            &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "9")],
            Some((3, 9)),
        ),
        (
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset-after", "1.25"),
            ],
            Some((0, 2)),
        ),
        (
            &[
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1800000060"),
            ],
            Some((3, 60)),
        ),
        (
            &[
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1800000060000"),
            ],
            Some((3, 60)),
        ),
        (
            &[
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1800000060"),
                ("date", "Fri, 15 Jan 2027 08:00:50 GMT"),
            ],
            Some((3, 10)),
        ),
        (
            &[
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "1700000000"),
            ],
            None,
        ),
        (&[("x-ratelimit-remaining", "3")], None),
        (&[("ratelimit", "\"d\";r=-1;t=5")], None),
        (&[("ratelimit", "\"d\";r=1;t=0")], None),
        (&[("ratelimit", "\";r=;t=,,;=")], None),
        (
            &[("ratelimit", "remaining=99999999999999999999999, reset=1")],
            None,
        ),
        (&[], None),
    ] {
        assert_eq!(told(fields), expected, "{fields:?}");
    }
}
