//! What is wrong with the parts of a policy together.

use http::HeaderName;

use super::fixtures::{by, identity, parts, route, rule, with_callers};
use crate::identity::{WhenMissing, WhenUnknown};
use crate::routes::Template;
use crate::{BuildError, Policy, Rule, Scope};

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
        identity("user", &["jwt:sub"], WhenMissing::Skip),
    ];
    let mut edited = route("/d", &[99]);
    edited.response_headers.set = vec![(
        HeaderName::from_static("x"),
        Template::parse("{path:no}", |_| None).expect("a template"),
    )];
    let many: Vec<Rule> = (0..18)
        .map(|n| {
            rule(
                &format!("r{n}"),
                if n == 0 { by(0) } else { Scope::Everyone },
            )
        })
        .collect();
    let routes = vec![
        route("/a/{x}", &[0]),
        route("/a/{y}", &[1, 1]),
        route("/c", &(1..18).collect::<Vec<_>>()),
        edited,
        route("/e/**", &[]),
        route("/e", &[]),
        route("/e/{x}/**", &[]),
    ];
    let errors = Policy::build(parts(identities, many, routes))
        .err()
        .unwrap_or_default();
    let expected = [
        BuildError::IdentityCycle(0),
        BuildError::IdentityCycle(1),
        BuildError::CallersOfComposite(2),
        BuildError::Sources(3),
        BuildError::UnverifiedToken(4),
        BuildError::UnknownCapture {
            route: 0,
            identity: 1,
            name: "id".into(),
        },
        BuildError::LimitTwice { route: 1, rule: 1 },
        BuildError::TooManyClaims {
            route: 2,
            claims: 17,
        },
        BuildError::Dangling {
            route: 3,
            what: "limit 99".into(),
        },
        BuildError::TemplateCapture {
            route: 3,
            name: "no".into(),
        },
        BuildError::Tie {
            first: 0,
            second: 1,
        },
        BuildError::Unreachable {
            route: 4,
            by: vec![5, 6],
        },
    ];
    assert_eq!(errors, expected);
}
