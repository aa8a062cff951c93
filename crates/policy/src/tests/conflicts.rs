//! What is wrong with the parts of a policy together.

use http::HeaderName;

use super::fixtures::{by, identity, parts, route, rule, with_callers};
use crate::identity::{WhenMissing, WhenUnknown};
use crate::routes::Template;
use crate::{BuildError, Part, Policy, Scope};

#[test]
fn everything_wrong_with_the_parts_is_said_at_once() {
    let identities = vec![
        identity("loop", &["address"], WhenMissing::Use(1)),
        identity("back", &["path:id"], WhenMissing::Use(0)),
        with_callers(
            identity("pair", &["bearer", "address"], WhenMissing::Skip),
            WhenUnknown::Accept,
        ),
        identity("none", &[], WhenMissing::Skip),
    ];
    let mut edited = route("/d", &[]);
    edited.response_headers.set = vec![(
        HeaderName::from_static("x"),
        Template::parse("{path:no}", |_| None).expect("a template"),
    )];
    let rules = vec![rule("r0", by(0)), rule("r1", Scope::Everyone)];
    let routes = vec![
        route("/a/{x}", &[0]),
        route("/a/{y}", &[1]),
        edited,
        route("/e/**", &[]),
        route("/e", &[]),
        route("/e/{x}/**", &[]),
    ];
    let errors = Policy::build(parts(identities, rules, routes))
        .err()
        .unwrap_or_default();
    let title = |error: &BuildError| (error.title.clone(), error.marks[0].0, error.marks.len());
    let said: Vec<(String, Part, usize)> = errors.iter().map(title).collect();
    let expected = [
        ("identity `loop` replaces itself", Part::WhenMissing(0), 2),
        (
            "identity `pair` lists callers by the hash of their key, but has no one key to hash",
            Part::Identity(2),
            1,
        ),
        (
            "the key of identity `none` has too many parts",
            Part::Identity(3),
            1,
        ),
        (
            "identity `back` is made of `path:id`, but route `/a/{x}` has no `{id}`",
            Part::Route(0),
            2,
        ),
        (
            "a template says `{path:no}`, but route `/d` has no `{no}`",
            Part::Route(2),
            1,
        ),
        ("routes `/a/{x}` and `/a/{y}` tie", Part::Route(1), 2),
        ("route `/e/**` can never match", Part::Route(3), 3),
    ];
    let expected = expected.map(|(title, part, marks)| (title.to_owned(), part, marks));
    assert_eq!(said, expected);
}
