//! What the shipped configurations say is true: `gateway.toml` checks clean, serves and refuses as its comments say, and the
//! configurations of the packaging parse. README and the book are held to what they say by `tests/documents`.

use std::process::Command;
use std::time::Duration;

use tollgate_store::clock::Clock;

use crate::harness::Gateway;

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
fn the_configurations_of_the_packaging_are_good() {
    let folder = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["api.example.com".to_owned()]);
    let made = made.expect("a certificate");
    for (name, text) in [
        ("tls.crt", made.cert.pem()),
        ("tls.key", made.signing_key.serialize_pem()),
    ] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let mounted = folder.path().to_str().expect("a path of text");
    for file in [
        "packaging/compose/gateway.toml",
        "packaging/helm/tollgate/ci/edge-values.yaml",
        "packaging/helm/tollgate/ci/redis-values.yaml",
        "packaging/helm/tollgate/values.yaml",
        "packaging/kubernetes/sidecar.yaml",
    ] {
        let text = read(file).replace("/etc/tollgate-tls", mounted);
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

fn read(path: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .expect("a document")
}
