//! The command line as a person meets it: what is printed where, and the exit codes 0, 1 and 2.

use std::path::Path;
use std::process::{Command, Output};

use crate::servers::free_port;
use serde_json::Value;

const GOOD: &str = r#"
    [limits.per_key]
    rate = "2/minute"
    per = "tenant"

    [tiers.pro]
    per_key = { rate = "60/minute", burst = 10 }

    [identities.tenant]
    key = ["header:x-api-key"]
    when_missing = "refuse"
    when_unknown = "refuse"

    [identities.tenant.callers]
    # sha256 of "test"
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" = { name = "acme", tier = "pro" }
    # sha256 of "free"
    "sha256:ad95d5fa651ba86d8923fe1238d24a4f1988a752acfe426ac72ac7c04471bc17" = { name = "small" }

    [[routes]]
    match = "GET /v1/{item}"
    upstream = "builtin:echo"
    limits = ["per_key"]

    [[routes]]
    match = "/open"
    upstream = "builtin:echo"
"#;

#[test]
fn a_good_file_is_said_back_and_its_tests_run() {
    let tests = r#"
        [[tests]]
        send = "11 x GET /v1/a as tenant:acme at 0s"
        expect = { allowed = 10, refused = 1, retry_after = "1s", limit = "per_key" }
        [[tests]]
        send = ["2 x GET /v1/a as tenant:small at 0s", "GET /v1/a as tenant:small at 30s"]
        expect = { allowed = 3, refused = 0 }
        [[tests]]
        name = "strangers stay out"
        send = "GET /v1/a at 0s"
        expect = { status = 401 }
    "#;
    let folder = folder(&format!("{GOOD}{tests}"));
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        out.contains("10 at once, then one every second"),
        "the tier is said back: {out}"
    );
    assert!(out.contains("3 tests passed, 0 failed"), "{out}");
    let room = out
        .split("per_key: room for ")
        .nth(1)
        .and_then(|rest| rest.split_once(" callers at once in 65536 KiB"));
    let room: u64 = room
        .and_then(|(room, _)| room.parse().ok())
        .unwrap_or_default();
    assert!(room > 500_000, "tens of bytes for each caller: {out}");
    assert!(out.contains("strangers stay out"), "{out}");
}

/// Windows of every kind, held requests, debt and places in flight: the same code decides as in service.
#[test]
fn tests_of_the_file_run_every_algorithm_in_virtual_time() {
    let mut file = String::new();
    for (name, numbers) in [
        ("hit", "rate = \"2/minute\"\nalgorithm = \"fixed_window\""),
        (
            "clock",
            "rate = \"2/minute\"\nalgorithm = \"fixed_window\"\nwindow = { align = \"clock\" }",
        ),
        (
            "day",
            "rate = \"2/day\"\nalgorithm = \"fixed_window\"\nwindow = { align = \"calendar\", zone = \"Etc/GMT-2\" }",
        ),
        (
            "steps",
            "rate = \"4/minute\"\nalgorithm = \"interval\"\nburst = 2",
        ),
        (
            "estimate",
            "rate = \"2/minute\"\nalgorithm = \"sliding_window\"",
        ),
        ("log", "rate = \"2/minute\"\nalgorithm = \"sliding_log\""),
        (
            "estimated",
            "rate = \"10/second\"\nalgorithm = \"sliding_window\"\nmax_wait = \"1s\"",
        ),
        (
            "held",
            "rate = \"10/second\"\nburst = 1\nmax_wait = \"250ms\"",
        ),
        (
            "credit",
            "rate = \"1/second\"\nburst = 1\ndebt = 2\ncost = 3",
        ),
        ("places", "in_flight = 2"),
        ("found", "in_flight = { adaptive = true, most = 2 }"),
        (
            "gentle",
            "rate = \"2/minute\"\nfollow_upstream = { least = \"1/minute\" }",
        ),
    ] {
        file.push_str(&format!(
            "[limits.{name}]\n{numbers}\nper = \"everyone\"\n\
             [[routes]]\nmatch = \"/{name}\"\nupstream = \"builtin:echo\"\nlimits = [\"{name}\"]\n"
        ));
    }
    let mut tests = 0;
    for (send, expect) in [
        (
            "\"3 x GET /hit at 30s\", \"GET /hit at 89s\", \"GET /hit at 90s\"",
            "allowed = 3, refused = 2, retry_after = \"1s\"",
        ),
        (
            "\"3 x GET /clock at 30s\", \"GET /clock at 59s\", \"GET /clock at 60s\"",
            "allowed = 3, refused = 2, retry_after = \"1s\"",
        ),
        // Midnight two hours east of Greenwich is 22:00 there.
        (
            "\"3 x GET /day at 0s\", \"GET /day at 21h59m\", \"GET /day at 22h\"",
            "allowed = 3, refused = 2, retry_after = \"60s\"",
        ),
        (
            "\"3 x GET /steps at 0s\", \"3 x GET /steps at 60s\"",
            "allowed = 4, refused = 2, retry_after = \"60s\"",
        ),
        // Half of the window before still counts: one of two.
        (
            "\"2 x GET /estimate at 59s\", \"2 x GET /estimate at 90s\"",
            "allowed = 3, refused = 1, retry_after = \"30s\"",
        ),
        (
            "\"2 x GET /log at 59s\", \"GET /log at 118s\", \"GET /log at 119s\"",
            "allowed = 3, refused = 1, retry_after = \"1s\"",
        ),
        // Ten go; the eleventh falls due 1.1 s later, which is too long at first and not any more 100 ms on.
        (
            "\"11 x GET /estimated at 0s\", \"GET /estimated at 100ms\"",
            "allowed = 11, refused = 1, retry_after = \"1s\"",
        ),
        (
            "\"4 x GET /held at 0s\"",
            "allowed = 3, refused = 1, retry_after = \"1s\"",
        ),
        (
            "\"2 x GET /credit at 0s\", \"GET /credit at 3s\"",
            "allowed = 2, refused = 1, retry_after = \"3s\"",
        ),
        (
            "\"3 x GET /places at 0s for 500ms\", \"GET /places at 1s\"",
            "allowed = 3, refused = 1",
        ),
        (
            "\"3 x GET /found at 0s for 500ms\"",
            "allowed = 2, refused = 1, status = 503",
        ),
        (
            "\"3 x GET /gentle at 0s\"",
            "allowed = 2, refused = 1, retry_after = \"30s\"",
        ),
    ] {
        tests += 1;
        file.push_str(&format!(
            "[[tests]]\nsend = [{send}]\nexpect = {{ {expect} }}\n"
        ));
    }
    let folder = folder(&file);
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        out.contains(&format!("{tests} tests passed, 0 failed")),
        "{out}"
    );
}

#[test]
fn requests_of_a_test_are_over_at_once_unless_it_says_how_long_they_take() {
    let jobs = GOOD.replace("limits = [\"per_key\"]", "limits = [\"per_key\", \"jobs\"]")
        + "[limits.jobs]\nin_flight = 2\nper = \"tenant\"\n";
    let tests = r#"
        [[tests]]
        send = "10 x GET /v1/a as tenant:acme at 0s"
        expect = { allowed = 10, refused = 0 }
        [[tests]]
        send = ["3 x GET /v1/a as tenant:acme at 0s for 2s", "2 x GET /v1/a as tenant:acme at 1s every 1s"]
        expect = { allowed = 3, refused = 2, limit = "jobs" }
    "#;
    let folder = folder(&format!("{jobs}{tests}"));
    let (out, err) = texts(&tollgate(folder.path(), &["check"]));
    assert!(out.contains("2 tests passed, 0 failed"), "{out}{err}");
}

#[test]
fn check_test_states_upstream_response_and_start() {
    let folder = folder(
        r#"
        [limits.logins]
        rate = "3/15m"
        per = "address"
        count = "failures"
        [limits.monthly]
        rate = "2/month"
        algorithm = "fixed_window"
        window = { align = "calendar", zone = "Europe/Berlin" }
        per = "everyone"
        [[routes]]
        match = "/login"
        upstream = "http://127.0.0.1:9"
        limits = ["logins"]
        [[routes]]
        match = "/monthly"
        upstream = "http://127.0.0.1:9"
        limits = ["monthly"]

        [[tests]]
        send = ["9 x POST /login", "3 x POST /login answered 401", "POST /login"]
        expect = { allowed = 12, refused = 1, retry_after = "5m" }
        [[tests]]
        name = "a place is held while the answer is open"
        send = ["6 x POST /login for 1s", "3 x POST /login at 1s"]
        expect = { allowed = 6, refused = 3 }
        [[tests]]
        name = "the first of January, by the clock of London"
        send = ["2 x GET /monthly at 0s", "GET /monthly at 1s"]
        expect = { allowed = 2, refused = 1, retry_after = "2674799s" }
        [[tests]]
        name = "an hour to March in Berlin"
        at = "2026-02-28T22:00:00Z"
        send = ["3 x GET /monthly at 0s", "2 x GET /monthly at 1h"]
        expect = { allowed = 4, refused = 1, retry_after = "1h" }
    "#,
    );
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert!(out.contains("4 tests passed, 0 failed"), "{out}{err}");
}

/// What other numbers do not say is as in the limit itself.
#[test]
fn a_candidate_and_a_tier_have_the_burst_of_their_limit() {
    let folder = folder(&GOOD.replace(
        "rate = \"2/minute\"",
        "rate = \"2/minute\"\nburst = 7\ncandidate = { rate = \"60/minute\" }",
    ));
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert!(
        out.contains("candidate, only counted: 7 at once, then one every second"),
        "{out}{err}"
    );
}

#[test]
fn check_test_failed_prints_the_result_and_exits_1() {
    let tests = "[[tests]]\nsend = \"3 x GET /v1/a as tenant:small at 0s\"\nexpect = { allowed = 3, refused = 0 }\n";
    let folder = folder(&format!("{GOOD}{tests}"));
    let output = tollgate(folder.path(), &["check"]);
    let (out, _) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        out.contains("allowed: expected 3, got 2") && out.contains("refused: expected 0, got 1"),
        "{out}"
    );
    let output = tollgate(folder.path(), &["check", "--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["good"], false);
    assert_eq!(report["tests"][0]["passed"], false);
}

#[test]
fn check_test_failed_by_other_statuses_names_them() {
    let tests = "[[tests]]\nsend = [\"2 x GET /nowhere as tenant:small at 0s\", \"GET /v1/a at 0s\"]\nexpect = { allowed = 3 }\n";
    let folder = folder(&format!("{GOOD}{tests}"));
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let words = "allowed: expected 3, got 0, and 1 with status 401, and 2 with status 404";
    assert!(out.contains(words), "{out}");
}

#[test]
fn a_broken_file_shows_every_mistake_in_its_place_and_exits_1() {
    let folder = folder(
        &GOOD
            .replace("rate = \"2/minute\"", "rat = \"2/minute\"")
            .replace("limits = [\"per_key\"]", "limits = [\"per_kez\"]"),
    );
    let output = tollgate(folder.path(), &["check"]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.is_empty(), "talk goes to standard error: {out}");
    assert!(
        err.contains("`rat`") && err.contains("per_kez") && err.contains("gateway.toml:"),
        "{err}"
    );
    assert!(
        !err.contains('\u{1b}'),
        "no colours where there is no terminal"
    );
    for verb in [&["run"][..], &["explain", "GET /"]] {
        let output = tollgate(folder.path(), verb);
        assert_eq!(output.status.code(), Some(1), "{verb:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("per_kez"));
    }
}

#[test]
fn explain_prints_route_caller_and_buckets() {
    let folder = folder(GOOD);
    let output = tollgate(
        folder.path(),
        &[
            "explain",
            "GET /v1/x",
            "-H",
            "x-api-key: test",
            "--ip",
            "192.0.2.7",
        ],
    );
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    for words in [
        "GET /v1/{item}",
        "{item} is `x`",
        "caller acme",
        "tier       pro",
        "10 at once",
        "192.0.2.7",
        "/open",
    ] {
        assert!(out.contains(words), "no `{words}` in {out}");
    }
    let json = tollgate(
        folder.path(),
        &[
            "explain",
            "GET /v1/x",
            "-H",
            "x-api-key: test",
            "--format",
            "json",
        ],
    );
    let told: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(told["limits"][0]["limit"], "per_key");
    assert_eq!(told["limits"][0]["tier"], "pro");

    let refused = tollgate(folder.path(), &["explain", "GET /v1/x"]);
    assert_eq!(refused.status.code(), Some(1), "401");
    let lost = tollgate(folder.path(), &["explain", "GET /nowhere"]);
    assert_eq!(lost.status.code(), Some(1), "404");
    assert!(texts(&lost).0.contains("404"));
    let small = tollgate(
        folder.path(),
        &["explain", "get /v1/x", "-H", "x-api-key: test"],
    );
    assert_eq!(small.status.code(), Some(1), "400");
    assert!(
        texts(&small).1.contains("answered 400"),
        "{:?}",
        texts(&small)
    );
}

#[test]
fn wrong_use_exits_2() {
    let folder = folder(GOOD);
    for wrong in [
        &["chekc"][..],
        &["check", "--format", "yaml"],
        &["explain"],
        &["explain", "GET"],
        &["explain", "GET /", "-H", "no colon"],
        &["run", "--limit", "1/s"],
        &["run", "--listen", "nowhere"],
        &["run", "--listen", "https://127.0.0.1:0"],
        &["run", "--admin", "unix:"],
        &["health", "--admin", "nowhere"],
    ] {
        let output = tollgate(folder.path(), wrong);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {:?}",
            texts(&output)
        );
        assert!(output.stdout.is_empty(), "{wrong:?}");
    }
}

#[test]
fn check_accepts_only_files_that_start() {
    for (kind, store, word) in [
        ("redis", "url = \"redis://h:notaport\"", "Redis"),
        ("redis", "url = \"unix:relative.sock\"", "whole path"),
        ("redis", "url = \"redis://\"", "Redis"),
        ("redis", "url = \"redis://h/abc\"", "database"),
        ("redis", "url = \"redis+cluster://\"", "host"),
        (
            "postgres",
            "url = \"postgres://h:notaport/db\"",
            "PostgreSQL",
        ),
        (
            "postgres",
            "url = \"postgres://h/db?nonsense=1\"",
            "PostgreSQL",
        ),
        (
            "redis",
            "url = \"unix:/run/redis.sock?user=u&pass=hunter2\"",
            "password is written in clear",
        ),
    ] {
        let folder = folder(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [store]\nkind = \"{kind}\"\n{store}\nwhen_down = \"allow\"\nkey_secret_file = \"secret\"\n{GOOD}"
        ));
        std::fs::write(folder.path().join("secret"), "a secret that gateways share")
            .expect("written");
        for verb in ["check", "run"] {
            let output = tollgate(folder.path(), &[verb]);
            let (out, err) = texts(&output);
            assert_eq!(output.status.code(), Some(1), "{verb} {store}: {out}{err}");
            assert!(err.contains(word), "{verb} {store}: no {word:?} in {err}");
        }
    }
    let socket = "[store]\nkind = \"redis\"\nurl = \"unix:/run/redis.sock?db=1\"\nusername = \"u\"\npassword_file = \"secret\"\n\
                  when_down = \"allow\"\nkey_secret_file = \"secret\"\n";
    let folder = folder(&format!("{socket}{GOOD}"));
    std::fs::write(folder.path().join("secret"), "a secret that gateways share").expect("written");
    let output = tollgate(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
}

#[test]
fn help_has_an_example_for_every_verb() {
    let folder = folder(GOOD);
    for verb in ["run", "check", "explain", "health"] {
        let output = tollgate(folder.path(), &[verb, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(texts(&output).0.contains("Examples:\n  tollgate"), "{verb}");
    }
}

#[test]
fn the_schema_is_json_that_knows_the_keys() {
    let output = tollgate(Path::new("."), &["schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        schema["properties"]["limits"].is_object() && schema["additionalProperties"] == false,
        "{schema}"
    );
}

#[test]
fn health_and_why_use_the_files_admin_listener_despite_mistakes_elsewhere() {
    let why: &[&str] = &["why", "0123456789abcdef"];
    for verb in [&["health"][..], why] {
        let folder = folder(
            "[admin]\nlisten = \"unix:absent.sock\"\n[limits.a]\nrate = \"many\"\n[routes\n",
        );
        let output = tollgate(folder.path(), verb);
        assert_eq!(output.status.code(), Some(1), "{:?}", texts(&output));
        assert!(
            texts(&output).1.contains("absent.sock"),
            "{:?}",
            texts(&output)
        );
        let config = folder.path().join("gateway.toml");
        for unreadable in [
            "[admin]\nlisten = unix:absent.sock\n",
            "[admin]\nlisten = \"off\"\n",
        ] {
            std::fs::write(&config, unreadable).expect("written");
            let output = tollgate(folder.path(), verb);
            assert_eq!(output.status.code(), Some(2), "{:?}", texts(&output));
            assert!(texts(&output).1.contains("--admin"), "{:?}", texts(&output));
        }
        let named = tollgate(
            folder.path(),
            &[verb, &["--config", "absent.toml"]].concat(),
        );
        assert_eq!(named.status.code(), Some(2), "{:?}", texts(&named));
    }
}

#[test]
fn health_without_a_gateway_is_1() {
    let folder = folder(GOOD);
    let nobody = format!("127.0.0.1:{}", free_port());
    let health = ["health", "--admin", &nobody, "--timeout", "500"];
    let output = tollgate(folder.path(), &health);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn gateways_are_asked_although_the_name_of_one_is_not_found() {
    let folder = folder(GOOD);
    let port = free_port();
    // No name has a label of more than 63 bytes, so that no server is asked for it.
    let both = format!("{}:9180,127.0.0.1:{port}", "a".repeat(64));
    let output = tollgate(folder.path(), &["health", "--admin", &both]);
    let told = texts(&output).1;
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("its name is not found"), "{told}");
    assert!(
        told.contains(&format!("127.0.0.1:{port}: no response")),
        "{told}"
    );
}

fn folder(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gateway.toml"), config).expect("written");
    folder
}

#[test]
fn cli_control_characters_in_arguments_are_escaped() {
    let hostile = "\u{1b}[31m\u{9b}2J\u{202e}x\r";
    let file = format!("{hostile}.toml");
    let folder = folder(GOOD);
    // A key whose name is hostile, in a file whose name is.
    let text = format!("{GOOD}\n[{:?}]\na = 1\n", "\\u001b[31m").replace("\\\\", "\\");
    std::fs::write(folder.path().join(&file), text).expect("written");
    let verb = format!("che{hostile}ck");
    let option = format!("--che{hostile}ck");
    let request = format!("GET /{hostile}");
    let header = format!("x{hostile}: y");
    for (args, words) in [
        (vec!["check", &file], "unknown key"),
        (vec!["check", "--format", "json", &file], "unknown key"),
        (vec!["check", "nowhere\u{202e}.toml"], "nowhere"),
        (vec!["init", "sidecar", &file], "is there already"),
        (vec!["fmt", "--check", &file], "is not laid out evenly"),
        (vec![verb.as_str()], "is neither a verb nor a file"),
        (vec![option.as_str()], "unexpected argument"),
        (vec!["explain", &request], "tollgate explain"),
        (vec!["explain", "GET /v1/%c2%9b%e2%80%ae"], "request "),
        (
            vec!["explain", "GET /v1/a", "-H", &header],
            "is no header name",
        ),
    ] {
        let output = tollgate(folder.path(), &args);
        let (out, err) = texts(&output);
        let both = out + &err;
        assert!(both.contains(words), "{args:?}: {both:?}");
        let obeyed = |c: char| (c < ' ' && c != '\n') || ('\u{7f}'..'\u{a0}').contains(&c);
        let obeyed = |c: char| obeyed(c) || c == '\u{202e}';
        assert!(!both.contains(obeyed), "{args:?}: {both:?}");
    }
}

fn tollgate(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .current_dir(folder)
        .args(args)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_ADMIN");
    command.output().expect("the program runs")
}

fn texts(output: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
