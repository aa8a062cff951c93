//! Fields of a form that the target of the request states, too.

use super::fixtures::{by, identity, policy, route, rule, send};
use crate::identity::WhenMissing;
use crate::identity::source::Source;
use crate::{BodyFlaw, BodyRefusal};

/// The user that a form names, for a request with this target.
fn user(target: &str, form: &str) -> Result<Option<String>, BodyRefusal> {
    let users = identity("user", &["form:user"], WhenMissing::Refuse);
    let policy = policy(
        vec![users],
        vec![rule("users", by(0))],
        vec![route("POST /login", &[0])],
    );
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let sent = send(&format!("POST {target}"), &headers);
    let facts = policy.read_body(&sent.describe(&policy), form.as_bytes())?;
    let value = facts.value(&Source::Form("user".into()));
    Ok(value.map(|user| String::from_utf8_lossy(&user).into_owned()))
}

#[test]
fn form_field_that_the_target_states_otherwise_is_ambiguous() {
    let ambiguous = Err(BodyRefusal::Flaw(BodyFlaw::Ambiguous));
    for target in [
        "/login?user=victim",
        "/login?us%65r=victim",
        "/login?a=1&user=ann&user=victim",
        "/login?USER=victim",
        "/login?user[]=victim",
        "/login?a=1;user=victim",
    ] {
        assert_eq!(user(target, "user=ann&password=x"), ambiguous, "{target}");
    }
    for target in [
        "/login",
        "/login?",
        "/login?a=user",
        "/login?user=ann",
        "/login?user=",
    ] {
        let named = user(target, "user=ann&password=x");
        assert_eq!(named, Ok(Some("ann".into())), "{target}");
    }
    assert_eq!(user("/login?user=victim", "password=x"), Ok(None));
}
