//! What the documents say is true: every TOML block of the README is a configuration that parses, the shipped file
//! checks clean, and the README's commands exist.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use tollgate_store::clock::Clock;

use crate::harness::{Connection, Gateway, Upstream};

#[test]
fn every_toml_block_of_the_documents_is_a_good_configuration() {
    let mut seen = 0;
    for document in ["README.md", "DESIGN.md"] {
        let text = read(document);
        for (line, block) in fences(&text, "toml") {
            seen += 1;
            let name = format!("{document}:{line}");
            // Secrets and addresses of the examples come from the environment.
            let env = |_: &str| Some("redis://127.0.0.1:6379/0".to_owned());
            if let Err(error) =
                tollgate_config::parse(&complete(&block), &name, &env, Clock::system().now())
            {
                panic!("{name} is no good configuration:\n{block}\n{error}");
            }
        }
    }
    assert!(seen > 0, "the README shows a configuration");
}

#[test]
fn the_shipped_file_checks_clean_and_its_tests_pass() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["check", "--strict", "--config", "gateway.toml"])
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains(" 0 failed"), "it has tests: {text}");
}

#[test]
fn the_shipped_file_serves_then_refuses_and_keeps_its_word() {
    let shipped = read("gateway.toml");
    let free = shipped
        .replace("http://0.0.0.0:8080", "127.0.0.1:0")
        .replace("127.0.0.1:9180", "127.0.0.1:0");
    let kept = tempfile::tempdir().expect("a directory");
    let free = free.replace(
        "${STATE_DIRECTORY:-.}",
        kept.path().to_str().expect("a name"),
    );
    let gateway = Gateway::start(&free);
    for left in (0..5).rev() {
        let answer = gateway.get("/hello");
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-remaining")),
            (200, Some(left.to_string().as_str()))
        );
        assert!(
            answer.header("ratelimit").is_some() && answer.header("ratelimit-policy").is_some()
        );
    }
    let refused = gateway.get("/hello");
    assert_eq!(refused.status, 429);
    let wait = refused
        .header("retry-after")
        .and_then(|seconds| seconds.parse().ok())
        .expect("seconds");
    assert_eq!(
        gateway.get("/health").status,
        200,
        "a more specific route, charged on nothing"
    );
    gateway.advance(Duration::from_secs(wait));
    assert_eq!(gateway.get("/hello").status, 200, "its word is kept");
}

#[test]
fn the_metrics_and_admin_pages_of_the_readme_exist() {
    let readme = read("README.md");
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"1/minute\"\nper = \"address\"\nfollow_upstream = {{ least = \"1/hour\", obey_quota = true }}\n\
         [limits.jobs]\nin_flight = \"adaptive\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\", \"jobs\"]\n",
        upstream.url()
    ));
    assert_eq!(gateway.get("/").status, 200);
    let metrics = gateway.admin_get("/metrics").text();
    let mut claimed = 0;
    for (at, _) in readme.match_indices("`tollgate_") {
        let name: String = readme[at + 1..]
            .chars()
            .take_while(|&letter| matches!(letter, 'a'..='z' | '0'..='9' | '_'))
            .collect();
        claimed += 1;
        assert!(
            metrics.contains(&format!("\n{name}")),
            "the README speaks of {name}, which is not in\n{metrics}"
        );
    }
    assert!(claimed > 3, "the README names metrics");
    for page in ["/livez", "/readyz", "/metrics", "/api/v1/status"] {
        assert!(readme.contains(page), "{page}");
        assert_eq!(gateway.admin_get(page).status, 200, "{page}");
    }
    assert_eq!(
        Connection::open(gateway.admin())
            .request("POST", "/-/reload", &[])
            .status,
        200
    );
}

#[test]
fn the_configurations_of_the_packaging_are_good() {
    for file in [
        "packaging/compose/gateway.toml",
        "packaging/helm/tollgate/ci/redis-values.yaml",
        "packaging/helm/tollgate/values.yaml",
        "packaging/kubernetes/sidecar.yaml",
    ] {
        let text = read(file);
        // In a manifest it is a block of text: what is indented further than the key before it.
        let block = match text.split_once(": |\n") {
            Some((_, after)) => after
                .lines()
                .take_while(|line| line.is_empty() || line.starts_with("  "))
                .collect::<Vec<_>>()
                .join("\n"),
            None => text,
        };
        let env = |name: &str| match name {
            "REDIS_URL" => Some("redis://redis:6379/0".to_owned()),
            _ => Some("a secret that is long enough to be one".to_owned()),
        };
        if let Err(error) = tollgate_config::parse(&block, file, &env, Clock::system().now()) {
            panic!("{file}:\n{error}");
        }
    }
}

#[test]
fn the_verbs_and_options_of_the_readme_exist() {
    let known = verbs();
    let mut used = BTreeSet::new();
    for (_, block) in fences(&read("README.md"), "console") {
        for line in block.lines() {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| *word != "tollgate" && *word != "--");
            if words.next().is_some()
                && let Some(verb) = words
                    .next()
                    .filter(|verb| verb.starts_with(|first: char| first.is_ascii_lowercase()))
            {
                used.insert(verb.to_owned());
            }
        }
    }
    for verb in used {
        assert!(
            known.contains(&verb),
            "the README speaks of `tollgate {verb}`, which does not exist"
        );
    }
}

fn verbs() -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("--help")
        .output()
        .expect("the program runs");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let commands = help.split("Commands:\n").nth(1).expect("a list of verbs");
    commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// A fragment is completed with a route, so that it is a whole configuration.
fn complete(block: &str) -> String {
    if block.contains("[[routes]]") {
        return block.to_owned();
    }
    let limits: Vec<String> = block
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("[limits.")?
                .split([']', '.'])
                .next()
        })
        .map(|name| format!("\"{name}\""))
        .collect();
    format!(
        "{block}\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [{}]\n",
        limits.join(", ")
    )
}

/// The blocks of one language, with the line each begins on.
fn fences(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, Vec<&str>)> = None;
    for (at, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(named)) if named.trim() == language => open = Some((at + 2, Vec::new())),
            (Some(_), Some(_)) => {
                if let Some((line, block)) = open.take() {
                    found.push((line, block.join("\n")));
                }
            }
            (Some((_, block)), None) => block.push(line),
            _ => {}
        }
    }
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .expect("a document")
}
