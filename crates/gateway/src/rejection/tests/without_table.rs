//! Refusals that are written without a table of headers have the same bytes as those with one.

use tollgate_policy::Template;
use tollgate_response::write_headers;

use super::*;

#[tokio::test]
async fn without_a_table_a_refusal_is_byte_for_byte_the_same() {
    let of = |name: &str, retry_after, never_fits, budget| {
        let violated = [Arc::from(name)].into_iter().collect();
        Rejection::Denied(Refused {
            violated,
            retry_after,
            never_fits,
            budget,
            ..Refused::default()
        })
    };
    let one = |name: &str, retry_after, never_fits| of(name, retry_after, never_fits, false);
    let plain = HeaderValue::from_static("text/plain");
    let template = Template::from("in {retry_after} s: {limits}".to_owned());
    let own = Form::Template(&plain, &template);
    let mut bare = 0;
    for (rejection, limit) in [
        (of("month", Some(Micros(7)), false, true), Some("month")),
        (of("month", Some(Micros(7)), true, true), Some("month")),
        (
            one("minute", Some(Micros(1_234_567)), false),
            Some("minute"),
        ),
        (
            one("per \"minute\"\u{e4}\n", Some(Micros(u64::MAX)), false),
            Some("per \"minute\"\u{e4}\n"),
        ),
        (one("minute", Some(Micros(0)), false), Some("minute")),
        (one("minute", None, false), Some("minute")),
        (one("minute", Some(Micros(7)), true), Some("minute")),
        (denied(), None),
        (Rejection::Overloaded, None),
        (Rejection::Overloaded, Some("shed")),
        (Rejection::NoRoute, None),
        (store_down(), None),
    ] {
        let asked = asked(&[]);
        let budget = matches!(&rejection, Rejection::Denied(refused) if refused.budget);
        let prepared = limit.map(|limit| Denial::by(limit, budget));
        for own in [None, Some(own)] {
            let id = "00c0ffee00c0ffee";
            let general = rejection.response(&asked, own, id);
            let without = rejection.response_without_table(&asked, own, prepared.as_ref(), id);
            let Some((response, content_type)) = without else {
                assert!(
                    matches!(rejection, Rejection::NoRoute | Rejection::StoreDown(_)),
                    "{rejection:?}"
                );
                continue;
            };
            bare += 1;
            assert_eq!(response.status(), general.status());
            assert!(response.headers().is_empty());
            let mut out = Vec::new();
            write_headers(&mut out, &content_type, rejection.retry_after());
            let mut expected = Vec::new();
            tollgate_http1::head::write_fields(&mut expected, general.headers());
            assert_eq!(
                out.escape_ascii().to_string(),
                expected.escape_ascii().to_string()
            );
            assert_eq!(text(response).await, text(general).await);
        }
    }
    assert_eq!(bare, 20);
    // What has more to say than that keeps its table.
    let mut head = Request::new(());
    *head.method_mut() = Method::HEAD;
    let mut second = Request::new(());
    *second.version_mut() = Version::HTTP_2;
    for asked in [
        asked(&[("origin", "https://a.example")]),
        asked(&[("content-type", "application/grpc")]),
        asked_of(&head),
        asked_of(&second),
    ] {
        assert!(
            denied()
                .response_without_table(&asked, None, None, "")
                .is_none(),
            "{asked:?}"
        );
    }
}
