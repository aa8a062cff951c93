//! What is wrong with the parts of a policy together.

use http::HeaderName;

use super::fixtures::{by, identity, parts, route, rule, with_callers};
use crate::identity::{WhenMissing, WhenUnknown};
use crate::routes::Template;
use crate::{BuildError, Policy, Scope};

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
    let expected = [
        BuildError::IdentityCycle(0),
        BuildError::IdentityCycle(1),
        BuildError::CallersOfComposite(2),
        BuildError::Sources(3),
        BuildError::UnknownCapture {
            route: 0,
            identity: 1,
            name: "id".into(),
        },
        BuildError::TemplateCapture {
            route: 2,
            name: "no".into(),
        },
        BuildError::Tie {
            first: 0,
            second: 1,
        },
        BuildError::Unreachable {
            route: 3,
            by: vec![4, 5],
        },
    ];
    assert_eq!(errors, expected);
}
