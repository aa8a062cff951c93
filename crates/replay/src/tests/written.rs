//! Files that are written: limits with suggested numbers, and the layout.

use super::*;
use crate::edit;

#[test]
fn suggest_writes_a_shadow_limit_and_keeps_comments() {
    let suggestion = suggested(&line(1, 0).repeat(3), &[(1, 1_000_000)]);
    let mut choice = suggestion.choice("balanced").expect("a choice").clone();
    choice.rate = "1/second".into();
    let evidence = ["From 3 requests".to_owned()];
    let file = "# mine\n[limits.old] # in force\nrate = \"5/minute\" # hand made\nper = \"everyone\"\n\n\
                [[routes]] # all\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"old\"] # one\n";
    let (written, name) =
        edit::written(file, "old", "everyone", &choice, &evidence).expect("written");
    assert_eq!(name, "old_suggested");
    for kept in [
        "# mine",
        "# in force",
        "# hand made",
        "# all",
        "# one",
        "rate = \"5/minute\"",
    ] {
        assert!(written.contains(kept), "{kept}: {written}");
    }
    let made = config(&written);
    assert_eq!(made.policy.rules.len(), 2);
    assert_eq!(made.policy.routes[0].limits.len(), 2);
    assert!(
        written.contains("# suggest: From 3 requests\nrate = \"1/second\""),
        "{written}"
    );
    // Once more: the numbers and the evidence are replaced, and nothing is added.
    choice.burst = 77;
    let (again, _) = edit::written(
        &written,
        "old",
        "everyone",
        &choice,
        &["From 9 requests".to_owned()],
    )
    .expect("written");
    assert!(
        again.contains("burst = 77") && !again.contains("From 3 requests"),
        "{again}"
    );
    assert_eq!(config(&again).policy.rules.len(), 2);
    let bare = "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    let (bare, name) =
        edit::written(bare, "per_caller", "header:x-api-key", &choice, &evidence).expect("written");
    assert_eq!(
        (name.as_str(), config(&bare).policy.routes[0].limits.len()),
        ("per_caller", 1)
    );
    config(&format!(
        "{}\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\"]\n",
        edit::table("per_caller", "address", &choice, &evidence)
    ));
}

#[test]
fn fmt_changes_blanks_only_and_nothing_the_second_time() {
    let file = "# top\n\n\n[limits.a]   \nrate=\"1/minute\" # x = y\nper   =  \"address\"\n[[routes]]\nmatch = \"/a=b\"\nlimits = [\n   \"a\", # first\n]\nrespond = { status = 200, body = \"\"\"\n  x   = y\n\"\"\" }\n\n\n";
    let laid_out = edit::formatted(file).expect("good");
    assert_eq!(
        laid_out,
        "# top\n\n[limits.a]\nrate = \"1/minute\" # x = y\nper = \"address\"\n\n[[routes]]\nmatch = \"/a=b\"\nlimits = [\n   \"a\", # first\n]\nrespond = { status = 200, body = \"\"\"\n  x   = y\n\"\"\" }\n"
    );
    assert_eq!(edit::formatted(&laid_out).expect("good"), laid_out);
    assert!(edit::formatted("a = ").is_err());
}
