//! The metrics as Prometheus reads them: both of its text formats, and a real scrape.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::harness::{Connection, Gateway, Upstream, eventually};
use crate::servers::{self, available, free_port};

/// A gateway that has counted something of everything, under names that want escaping.
fn busy() -> (Gateway, Upstream) {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.per_caller]\nrate = \"100/minute\"\nper = \"address\"\ncandidate = {{ rate = \"1/minute\" }}\n\
         follow_upstream = {{ least = \"1/hour\" }}\n\
         [limits.jobs]\nin_flight = \"adaptive\"\nper = \"everyone\"\n\
         [upstreams.app]\nservers = [\"{}\"]\nhealth = {{ path = \"/\", every = \"1h\" }}\n\
         [upstreams.dead]\nservers = [\"http://127.0.0.1:{}\"]\n\
         [[routes]]\nname = 'odd \"name\" \\ of tollgate_process_'\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"per_caller\", \"jobs\"]\n\
         [[routes]]\nmatch = \"/dead\"\nupstream = \"dead\"\n",
        upstream.url(),
        free_port(),
    ));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/dead").status, 502);
    (gateway, upstream)
}

#[test]
fn metrics_text_passes_promtool() {
    if !available("promtool") {
        return;
    }
    let (gateway, _upstream) = busy();
    let answer = gateway.admin_get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(&answer.body)
        .expect("written");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", answer.text());
}

#[test]
fn metrics_openmetrics_is_read_by_promtool() {
    if !available("promtool") {
        return;
    }
    let (gateway, _upstream) = busy();
    let accept = [(
        "Accept",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    )];
    let answer = Connection::open(gateway.admin()).request("GET", "/metrics", &accept);
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(
        kind.starts_with("application/openmetrics-text; version=1.0.0"),
        "{kind}"
    );
    // It reads OpenMetrics only to fill a database with it, and wants to know when each sample was.
    let sample = |line: &str| {
        if line.starts_with('#') {
            format!("{line}\n")
        } else {
            format!("{line} 1800000000\n")
        }
    };
    let text: String = answer.text().lines().map(sample).collect();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("metrics"), &text).expect("written");
    let output = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([folder.path().join("metrics"), folder.path().join("data")])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn metrics_format_is_the_one_that_the_scraper_prefers() {
    let gateway = Gateway::start("[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n");
    let kind = |accept: &[(&str, &str)]| {
        let answer = Connection::open(gateway.admin()).request("GET", "/metrics", accept);
        answer
            .header("content-type")
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    const OPEN: &str = "application/openmetrics-text";
    for (accept, expected) in [
        ("application/openmetrics-text", OPEN),
        (
            "text/plain;q=0.5, Application/OpenMetrics-Text; version=1.0.0",
            OPEN,
        ),
        (
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.9",
            "text/plain",
        ),
        ("application/openmetrics-text;q=0,*/*", "text/plain"),
        ("application/openmetrics-text; q=0.000", "text/plain"),
        ("text/html,*/*;q=0.8", "text/plain"),
        ("text/x-application/openmetrics-text", "text/plain"),
    ] {
        assert_eq!(kind(&[("Accept", accept)]), expected, "{accept}");
    }
    assert_eq!(kind(&[]), "text/plain");
    assert_eq!(
        kind(&[("Accept", "text/plain;q=0.1"), ("Accept", OPEN)]),
        OPEN,
        "in two lines"
    );
}

#[test]
fn metrics_are_scraped_by_a_real_prometheus() {
    if !available("prometheus") {
        return;
    }
    let (gateway, _upstream) = busy();
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
         scrape_configs: [{{ job_name: gateway, static_configs: [{{ targets: ['{}'] }}] }}]\n",
        gateway.admin()
    );
    std::fs::write(folder.path().join("prometheus.yml"), config).expect("written");
    let port = free_port();
    let _prometheus = servers::Process::spawn(Command::new("prometheus").args([
        format!(
            "--config.file={}",
            folder.path().join("prometheus.yml").display()
        ),
        format!(
            "--storage.tsdb.path={}",
            folder.path().join("data").display()
        ),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ]));
    let query = |query: &str| {
        let mut stream = Connection::try_open(([127, 0, 0, 1], port).into())?;
        let path = format!("/api/v1/query?query={query}");
        stream.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let answer = stream
            .try_answer("GET")
            .ok()
            .filter(|answer| answer.status == 200)?;
        answer.json()["data"]["result"][0]["value"][1]
            .as_str()
            .map(str::to_owned)
    };
    servers::wait_until("scrape that succeeds", || {
        query("up").as_deref() == Some("1")
    });
    let limit = "tollgate_limit_decisions_total%7Blimit=%22per_caller%22,outcome=%22allow%22%7D";
    eventually("the limit's counter is there", || {
        query(limit).as_deref() == Some("2")
    });
    assert_eq!(query("tollgate_build_info").as_deref(), Some("1"));
}
