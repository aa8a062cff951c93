//! The page "choose numbers" of the book, as a new user follows it: on a log of NGINX and on one of Tollgate.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Connection, Gateway, Nginx, Upstream, eventually};
use crate::replay::json;

/// Runs the commands of a part of the page; how many there are.
fn run_commands(folder: &Path, part: &str) -> usize {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!(
        "{}:{}",
        program.parent().expect("a folder").display(),
        std::env::var_os("PATH").unwrap_or_default().display()
    );
    let mut commands = 0;
    for line in part.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let (command, code) = match line.split_once("  # exit ") {
            Some((command, code)) => (command, code.trim().parse().expect("a code")),
            None => (line, 0),
        };
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(folder)
            .env("PATH", &path)
            .env_remove("TOLLGATE_CONFIG")
            .output()
            .expect("a shell");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        commands += 1;
    }
    commands
}

/// The burst of the limit that the page has written.
fn deployed_burst(folder: &Path) -> usize {
    let file = fs::read_to_string(folder.join("gateway.toml")).expect("the file");
    let burst = file
        .lines()
        .find_map(|line| line.strip_prefix("burst = "))
        .expect("a burst");
    burst.parse().expect("a number")
}

/// Deploys the file of the folder and sends it requests of one client at one moment: how many are refused, and the log.
fn live(folder: &Path, requests: usize) -> (usize, String) {
    let upstream = Upstream::hello();
    let log = folder.join("live.log");
    let _ = fs::remove_file(&log);
    let file = fs::read_to_string(folder.join("gateway.toml")).expect("the file");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[address]\ntrusted_proxies = [\"127.0.0.0/8\"]\n{}",
        log.display(),
        file.replace("http://127.0.0.1:3000", &upstream.url())
    ));
    let mut connection = gateway.connect();
    let headers = [("x-forwarded-for", "198.51.100.9")];
    let statuses = (0..requests).map(|_| connection.request("GET", "/a", &headers).status);
    let refused = statuses.filter(|status| *status == 429).count();
    gateway.shutdown();
    (refused, fs::read_to_string(&log).expect("the log"))
}

/// The page of the book, command by command, in a folder with `access.log`.
fn follow_the_page(folder: &Path) {
    let page = include_str!("../../docs/src/do/choose-numbers.md");
    let before = page
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    fs::write(folder.join("gateway.toml"), before.expect("a file")).expect("written");
    let (until_shadow, from_shadow) = page.split_once("\n## Shadow\n").expect("the heading");
    let mut commands = run_commands(folder, until_shadow);
    // Deployed, the limit counts and refuses no request.
    let burst = deployed_burst(folder);
    let (refused, log) = live(folder, burst + 5);
    assert_eq!(refused, 0, "in shadow mode no request is refused");
    assert_eq!(log.matches("\"shadow_deny\"").count(), 5, "{log}");
    let report = json(folder, &["replay", "live.log", "--format", "json"]);
    assert_eq!(report["limits"][0]["refused"], 5, "{report:#}");
    assert_eq!(report["limits"][0]["mode"], "shadow");
    commands += run_commands(folder, from_shadow);
    assert!(commands >= 8, "{commands}");
    let file = fs::read_to_string(folder.join("gateway.toml")).expect("the file");
    assert!(
        file.starts_with("# gateway.toml\n"),
        "its comments stay: {file}"
    );
    assert!(file.contains("mode = \"enforce\""), "{file}");
    // Deployed once more, the limit refuses what it only counted before.
    assert_eq!(live(folder, burst + 5).0, 5);
    // In force, the numbers refuse only floods of the log they were made from.
    let report = json(folder, &["replay", "access.log", "--format", "json"]);
    assert_eq!(report["limits"][0]["refused"], 0, "{report:#}");
    assert!(
        report["requests"]
            .as_u64()
            .is_some_and(|requests| requests > 50),
        "{report:#}"
    );
}

#[test]
fn choose_numbers_page_holds_for_a_log_of_nginx() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let nginx = Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port}; access_log {} combined; \
             set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; location / {{ return 200 ok; }} }}",
            log.display()
        )
    });
    let Some(nginx) = nginx else { return };
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], nginx.port()));
    let mut connection = Connection::open(to);
    for number in 0..90 {
        let client = format!("192.0.2.{}", 1 + number % 7);
        assert_eq!(
            connection
                .request("GET", "/a", &[("x-forwarded-for", &client)])
                .status,
            200
        );
    }
    eventually("nginx has logged", || {
        fs::read_to_string(&log).unwrap_or_default().lines().count() == 90
    });
    follow_the_page(folder.path());
}

#[test]
fn choose_numbers_page_holds_for_a_log_of_tollgate() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[address]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        log.display(),
        upstream.url()
    ));
    let mut connection = gateway.connect();
    for number in 0..90 {
        let client = format!("192.0.2.{}", 1 + number % 7);
        assert_eq!(
            connection
                .request("GET", "/a", &[("x-forwarded-for", &client)])
                .status,
            200
        );
        gateway.advance(Duration::from_millis(130));
    }
    gateway.shutdown();
    follow_the_page(folder.path());
}
