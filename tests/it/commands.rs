//! Verbs that help to begin, and the ways to name a configuration.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const GOOD: &str = "[limits.a]\nrate = \"2/minute\"\nper = \"address\"\n\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n";

#[test]
fn command_without_a_file_prints_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = tollgate(folder.path(), &[], "");
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output);
    for words in ["no gateway.toml here", "tollgate init", "--upstream"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn init_writes_a_file_that_check_accepts_and_never_overwrites_one() {
    let folder = tempfile::tempdir().expect("a folder");
    for setup in ["sidecar", "edge", "egress"] {
        let name = format!("{setup}.toml");
        let output = tollgate(folder.path(), &["init", setup, &name], "");
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let checked = tollgate(folder.path(), &["check", "--strict", &name], "");
        assert_eq!(
            checked.status.code(),
            Some(0),
            "{setup}: {}{}",
            out(&checked),
            err(&checked)
        );
        assert!(out(&checked).contains(", 0 failed"), "{}", out(&checked));
    }
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, "mine").expect("written");
    let output = tollgate(folder.path(), &["init"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("not overwritten"), "{}", err(&output));
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "mine");
}

#[test]
fn configuration_is_an_argument_an_option_or_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("other.toml"), GOOD).expect("written");
    for args in [&["check", "other.toml"][..], &["check", "-c", "other.toml"]] {
        let output = tollgate(folder.path(), args, "");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
    }
    for args in [
        &["check", "-"][..],
        &["check", "-c", "-"],
        &["explain", "GET /", "-"],
    ] {
        let output = tollgate(folder.path(), args, GOOD);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
    }
    let output = tollgate(folder.path(), &["check", "-"], &GOOD.replace("rate", "rat"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("standard input:2:1"),
        "{}",
        err(&output)
    );
    let both = tollgate(folder.path(), &["check", "a.toml", "-c", "b.toml"], "");
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn command_verb_misspelt_suggests_the_nearest() {
    let folder = tempfile::tempdir().expect("a folder");
    for (word, verb) in [("chekc", "check"), ("explian", "explain")] {
        let output = tollgate(folder.path(), &[word], "");
        assert_eq!(output.status.code(), Some(2));
        let said = err(&output);
        assert!(
            said.contains(&format!("`{word}` is neither a verb nor a file")),
            "{said}"
        );
        assert!(said.contains(&format!("tollgate {verb}")), "{said}");
    }
    // Verbs of other programs, with the file that they take there.
    for (word, words) in [
        ("reload", "kill -HUP"),
        ("validate", "`tollgate check`"),
        ("version", "`tollgate --version`"),
        ("status", "`tollgate health`"),
    ] {
        for args in [
            &[word][..],
            &[word, "gateway.toml"],
            &[word, "-c", "gateway.toml"],
        ] {
            let output = tollgate(folder.path(), args, "");
            assert_eq!(output.status.code(), Some(2), "{args:?}");
            assert!(err(&output).contains(words), "{args:?}: {}", err(&output));
        }
    }
    std::fs::write(folder.path().join("status"), "nonsense").expect("written");
    let output = tollgate(folder.path(), &["status"], "");
    assert!(
        err(&output).contains("not TOML"),
        "a file of that name: {}",
        err(&output)
    );
}

/// What `check` calls good, `run` starts: service managers rely on it.
#[test]
fn check_refuses_what_run_would_refuse_and_names_file_line_and_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let made = || {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        (
            params.self_signed(&key).expect("signed").pem(),
            key.serialize_pem(),
        )
    };
    let ((site, key), (_, other)) = (made(), made());
    write("site.pem", &site);
    write("site.key", &key);
    write("other.key", &other);
    write(
        "encrypted.key",
        &key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"),
    );
    write("empty.pem", "");
    std::fs::create_dir(folder.path().join("folder")).expect("made");
    let tls = |certificate: &str, key: &str, more: &str| {
        format!(
            "[server]\nlisten = \"https://127.0.0.1:0\"\n{more}certificates = [{{ certificate = \"{certificate}\", key = \"{key}\" }}]\n"
        )
    };
    let upstream =
        |keys: &str| format!("[upstreams.u]\nservers = \"https://127.0.0.1:1\"\n{keys}\n");
    let off = "[admin]\nlisten = \"off\"\n";
    for (text, words) in [
        (
            tls("site.pem", "other.key", ""),
            "gateway.toml:5: `server.certificates[0].key`: .. another key",
        ),
        (
            tls("site.key", "site.pem", ""),
            "gateway.toml:5: `server.certificates[0].certificate`: .. swapped",
        ),
        (
            tls("empty.pem", "site.key", ""),
            "gateway.toml:5: `server.certificates[0].certificate`: .. has no certificate",
        ),
        (
            tls("site.pem", "empty.pem", ""),
            "gateway.toml:5: `server.certificates[0].key`: .. has no private key",
        ),
        (
            tls("site.pem", "encrypted.key", ""),
            "gateway.toml:5: `server.certificates[0].key`: .. encrypted",
        ),
        (
            tls("site.pem", "site.key", "client_ca = \"empty.pem\"\n"),
            "gateway.toml:5: `server.client_ca`: .. has no certificate",
        ),
        (
            upstream("ca_file = \"site.key\""),
            "gateway.toml:5: `upstreams.u.ca_file`: .. no certificate",
        ),
        (
            upstream("client_certificate = \"site.pem\"\nclient_key = \"other.key\""),
            "gateway.toml:6: `upstreams.u.client_key`: .. another key",
        ),
        (
            "[server]\nstate_file = \"folder\"\n".to_owned(),
            "gateway.toml:4: `server.state_file`: .. is a directory",
        ),
        (
            "[server]\nstate_file = \"nowhere/state\"\n".to_owned(),
            "gateway.toml:4: `server.state_file`: .. No such file",
        ),
        (
            "[log]\naccess = \"nowhere/access.log\"\n".to_owned(),
            "gateway.toml:4: `log.access`: .. No such file",
        ),
        (
            "audit = \"nowhere/audit.log\"\n".to_owned(),
            "gateway.toml:3: `admin.audit`: .. No such file",
        ),
        (
            "[server]\nlisten = \"unix:nowhere/socket\"\n".to_owned(),
            "gateway.toml:4: `server.listen[0]`: .. No such file",
        ),
        (
            "[server]\nlisten = [\"127.0.0.1:0\", \"unix:site.pem\"]\n".to_owned(),
            "gateway.toml:4: `server.listen[1]`: .. no socket is in the way",
        ),
        (
            "[server]\nlisten = [\"0.0.0.0:18080\", \"127.0.0.1:18080\"]\n".to_owned(),
            "gateway.toml:4: .. is listened on twice",
        ),
        (
            "[server]\nlisten = \"0.0.0.0:9190\"\n[decide]\nlisten = \"127.0.0.1:9190\"\n"
                .to_owned(),
            "gateway.toml:6: .. the listener for decisions is another one's",
        ),
    ] {
        let routes = "\n[limits.a]\nrate = \"2/minute\"\nper = \"everyone\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n";
        let used = text
            .contains("[upstreams")
            .then_some("[[routes]]\nmatch = \"/u\"\nupstream = \"u\"\n");
        write(
            "gateway.toml",
            &format!("{off}{text}{routes}{}", used.unwrap_or_default()),
        );
        for verb in ["check", "run"] {
            let output = tollgate(folder.path(), &[verb], "");
            let said = err(&output);
            assert_eq!(output.status.code(), Some(1), "{verb} {words}: {said}");
            let (place, words) = words.split_once(": ").expect("a place");
            assert!(
                said.contains(&format!("--> {place}")),
                "{verb} {place}: {said}"
            );
            for part in words
                .split(" .. ")
                .map(|part| part.trim_start_matches(".. "))
            {
                assert!(said.contains(part), "{verb} {part}: {said}");
            }
        }
    }
    // Nobody reads what it says.
    for verb in ["check", "run", "nonsense"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command
            .arg(verb)
            .current_dir(folder.path())
            .env_remove("TOLLGATE_CONFIG");
        let ended = command
            .stdout(Stdio::null())
            .stderr(writer)
            .status()
            .expect("it runs");
        let expected = if verb == "nonsense" { 2 } else { 1 };
        assert_eq!(ended.code(), Some(expected), "{verb}");
    }
}

#[test]
fn hash_of_a_key_is_that_of_the_key_without_its_line_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let sha = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    for key in ["test", "test\n"] {
        assert_eq!(out(&tollgate(folder.path(), &["hash"], key)).trim(), sha);
    }
    let line = out(&tollgate(
        folder.path(),
        &["hash", "--name", "acme", "--tier", "pro"],
        "test",
    ));
    assert_eq!(
        line.trim(),
        format!("\"{sha}\" = {{ name = \"acme\", tier = \"pro\" }}")
    );
    assert_eq!(
        tollgate(folder.path(), &["hash"], "").status.code(),
        Some(1)
    );
}

#[test]
fn completions_and_manual_know_every_verb() {
    let folder = tempfile::tempdir().expect("a folder");
    for shell in ["bash", "zsh", "fish"] {
        let said = out(&tollgate(folder.path(), &["completions", shell], ""));
        assert!(
            said.contains("explain") && said.contains("completions"),
            "{shell}"
        );
    }
    let output = tollgate(folder.path(), &["man", "pages"], "");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for page in ["tollgate.1", "tollgate-check.1", "tollgate-hash.1"] {
        let page = folder.path().join("pages").join(page);
        let text = std::fs::read_to_string(&page).expect("a page for each verb");
        assert!(text.contains(".SH NAME"), "{}", page.display());
    }
    assert!(out(&tollgate(folder.path(), &["man"], "")).contains(".TH tollgate"));
}

#[test]
fn check_json_has_places_and_help() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = GOOD.replace("rate = \"2/minute\"", "rate = \"2r/m\"");
    let output = tollgate(folder.path(), &["check", "-", "--format", "json"], &wrong);
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&told["version"], &told["good"]),
        (&1.into(), &false.into())
    );
    let error = &told["errors"][0];
    assert_eq!(error["severity"], "error");
    assert_eq!(error["help"][0], "write \"2/minute\"");
    let span = &error["spans"][0];
    assert_eq!(span["file"], "standard input");
    assert_eq!((&span["line"], &span["column"]), (&2.into(), &9.into()));
    assert_eq!(
        (&span["end_line"], &span["end_column"]),
        (&2.into(), &11.into())
    );

    let unused = GOOD.replace(
        "[limits.a]",
        "[limits.b]\nrate = \"1/s\"\nper = \"address\"\n\n[limits.a]",
    );
    let output = tollgate(folder.path(), &["check", "-", "--format", "json"], &unused);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["good"], true);
    assert_eq!(told["warnings"][0]["severity"], "warning");
    assert_eq!(told["warnings"][0]["spans"][0]["line"], 1);
    assert!(told["memory_bytes"].as_u64() > Some(0));
}

#[test]
fn check_and_explain_do_without_secrets_and_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = format!(
        "{GOOD}\n[store]\nkind = \"redis\"\nurl = \"${{KINDER_URL}}\"\nwhen_down = \"allow\"\nkey_secret = \"${{KINDER_SECRET}}\"\n\
         [server.bounds]\nconnections = \"${{KINDER_CONNECTIONS}}\"\n"
    );
    std::fs::write(folder.path().join("gateway.toml"), shared).expect("written");
    let strict = tollgate(folder.path(), &["check"], "");
    assert_eq!(strict.status.code(), Some(1), "a start would refuse");
    assert!(
        err(&strict).contains("`KINDER_SECRET` is not set"),
        "{}",
        err(&strict)
    );
    for args in [&["check", "--without-env"][..], &["explain", "GET /"]] {
        let output = tollgate(folder.path(), args, "");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
        for name in ["KINDER_URL", "KINDER_SECRET", "KINDER_CONNECTIONS"] {
            assert!(err(&output).contains(name), "{}", err(&output));
        }
    }
}

fn tollgate(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(folder)
        .args(args)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_ADMIN")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("piped");
    // A verb that reads nothing has closed it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the program ends")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
