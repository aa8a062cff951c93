//! The metrics as Prometheus reads them: both of its text formats, and a real scrape.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::encrypted;
use crate::harness::{Connection, Gateway, Upstream, eventually};
use crate::servers::{self, Redis, available, free_port};

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
         [[routes]]\nmatch = \"/dead\"\nupstream = \"dead\"\n\
         [limits.once]\nrate = \"1/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/once\"\nupstream = \"app\"\nlimits = [\"once\"]\n",
        upstream.url(),
        free_port(),
    ));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/dead").status, 502);
    let once = [200, 429].map(|_| gateway.get("/once").status);
    assert_eq!(once, [200, 429], "a refusal is an exemplar");
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
    let sample = |line: &str| match line.split_once(" # ") {
        _ if line.starts_with('#') => format!("{line}\n"),
        Some((sample, exemplar)) => format!("{sample} 1800000000 # {exemplar}\n"),
        None => format!("{line} 1800000000\n"),
    };
    let text: String = answer.text().lines().map(sample).collect();
    assert!(
        text.contains(" # {decision_id="),
        "there are exemplars: {text}"
    );
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

/// A Prometheus that scrapes one gateway every second, under the job `tollgate`.
struct Prometheus {
    port: u16,
    _process: servers::Process,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn scraping(gateway: &Gateway) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
             scrape_configs: [{{ job_name: tollgate, static_configs: [{{ targets: ['{}'] }}] }}]\n",
            gateway.admin()
        );
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("prometheus.yml"), config).expect("written");
        let port = free_port();
        let process = servers::Process::spawn(Command::new("prometheus").args([
            format!("--config.file={}", at("prometheus.yml")),
            format!("--storage.tsdb.path={}", at("data")),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--enable-feature=exemplar-storage".to_owned(),
        ]));
        let prometheus = Self {
            port,
            _process: process,
            _folder: folder,
        };
        servers::wait_until("scrape that succeeds", || {
            prometheus.value("up").as_deref() == Some("1")
        });
        prometheus
    }

    /// The series that a query finds.
    fn query(&self, query: &str) -> Option<Vec<serde_json::Value>> {
        let found = self.ask("query", query, "")?;
        found["result"].as_array().cloned()
    }

    /// The exemplars of a series.
    fn exemplars(&self, query: &str) -> Option<Vec<serde_json::Value>> {
        let found = self.ask("query_exemplars", query, "&start=0&end=4000000000")?;
        found[0]["exemplars"].as_array().cloned()
    }

    fn ask(&self, what: &str, query: &str, more: &str) -> Option<serde_json::Value> {
        let mut stream = Connection::try_open(([127, 0, 0, 1], self.port).into())?;
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        stream.send(format!(
            "GET /api/v1/{what}?query={query}{more} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ));
        let answer = stream.try_answer("GET").ok()?;
        match answer.status {
            200 => Some(answer.json()["data"].clone()),
            400 => panic!("{query}: {}", answer.text()),
            // It is not ready yet.
            _ => None,
        }
    }

    fn value(&self, query: &str) -> Option<String> {
        let series = self.query(query)?;
        series.first()?["value"][1].as_str().map(str::to_owned)
    }

    fn finds(&self, query: &str) -> bool {
        self.query(query).is_some_and(|series| !series.is_empty())
    }
}

#[test]
fn metrics_are_scraped_by_a_real_prometheus() {
    if !available("prometheus") {
        return;
    }
    let (gateway, _upstream) = busy();
    let prometheus = Prometheus::scraping(&gateway);
    let limit = "tollgate_limit_decisions_total{limit=\"per_caller\",outcome=\"allow\"}";
    eventually("the limit's counter is there", || {
        prometheus.value(limit).as_deref() == Some("2")
    });
    assert_eq!(
        prometheus.value("tollgate_build_info").as_deref(),
        Some("1")
    );
}

#[test]
fn metrics_exemplars_of_refusals_name_their_decision() {
    if !available("prometheus") {
        return;
    }
    let (gateway, _upstream) = busy();
    let trace = (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    // Of two refusals in the same microsecond either may be the exemplar.
    gateway.advance(Duration::from_millis(1));
    let refused = gateway.request("GET", "/once", &[trace]);
    assert_eq!(refused.status, 429);
    let id = refused.json()["decision_id"].clone();
    let prometheus = Prometheus::scraping(&gateway);
    for series in [
        "tollgate_limit_decisions_total{limit=\"once\",outcome=\"deny\"}",
        "tollgate_rejections_total{reason=\"denied\"}",
    ] {
        eventually("the exemplar is there", || {
            prometheus
                .exemplars(series)
                .is_some_and(|found| !found.is_empty())
        });
        let found = prometheus.exemplars(series).expect("as before");
        let labels = &found.last().expect("one")["labels"];
        assert_eq!(labels["decision_id"], id, "{series}");
        assert_eq!(labels["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    }
    // The older text has none.
    assert!(!gateway.admin_get("/metrics").text().contains("decision_id"));
}

#[test]
fn metrics_units_of_limits_equal_the_costs() {
    let gateway = Gateway::start(
        "[limits.paid]\nrate = \"10/day\"\nper = \"everyone\"\ncost = 4\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"paid\"]\n",
    );
    let statuses = [(); 3].map(|()| gateway.get("/").status);
    assert_eq!(statuses, [200, 200, 429]);
    let text = gateway.admin_get("/metrics").text();
    for (outcome, units) in [
        ("allow", 8),
        ("give_back", 0),
        ("deny", 4),
        ("shadow_deny", 0),
    ] {
        let line =
            format!("tollgate_limit_units_total{{limit=\"paid\",outcome=\"{outcome}\"}} {units}\n");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}

/// A gateway of which every metric that the dashboard or an alert speaks of has a series.
fn with_every_metric(folder: &std::path::Path, redis: &Redis, upstream: &Upstream) -> Gateway {
    std::fs::write(folder.join("secret"), "a secret of this test alone").expect("written");
    encrypted::issue(folder, "site", &encrypted::authority(folder, "root"));
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = [\"http://127.0.0.1:0\", \"https://127.0.0.1:0\"]\nworkers = 1\n\
         certificates = [{{ certificate = '{folder}/site.pem', key = '{folder}/site.key' }}]\n\
         bounds = {{ connections_per_address = 4 }}\n\
         [log]\naccess = '{folder}/access.log'\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"allow\"\n\
         key_secret_file = '{folder}/secret'\n\
         [limits.per_caller]\nrate = \"100/minute\"\nper = \"address\"\n\
         [limits.once]\nrate = \"1/day\"\nper = \"address\"\nstore = \"local\"\ncandidate = {{ rate = \"2/day\" }}\n\
         [limits.careful]\nrate = \"100/minute\"\nper = \"address\"\nstore = \"local\"\nfollow_upstream = {{ least = \"1/hour\" }}\n\
         [limits.jobs]\nin_flight = \"adaptive\"\nper = \"everyone\"\nstore = \"local\"\n\
         [upstreams.app]\nservers = [\"{}\"]\n\
         [upstreams.dead]\nservers = [\"http://127.0.0.1:{}\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"per_caller\", \"careful\", \"jobs\"]\n\
         [[routes]]\nmatch = \"/once\"\nupstream = \"app\"\nlimits = [\"once\"]\n\
         [[routes]]\nmatch = \"/dead\"\nupstream = \"dead\"\n",
        redis.url(),
        upstream.url(),
        free_port(),
        folder = folder.display(),
    ));
    for (path, status) in [("/", 200), ("/once", 200), ("/once", 429), ("/dead", 502)] {
        assert_eq!(gateway.get(path).status, status, "{path}");
    }
    gateway
}

/// What Grafana puts in the place of its variables.
fn filled_in(query: &str) -> String {
    query
        .replace("$__rate_interval", "1m")
        .replace("$job", "tollgate")
        .replace("$instance", ".+")
}

#[test]
fn packaging_queries_of_dashboard_and_alerts_find_their_metrics() {
    if !available("prometheus") || !available("redis-server") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (redis, upstream) = (Redis::start(), Upstream::hello());
    let gateway = with_every_metric(folder.path(), &redis, &upstream);
    // One more than an address may have.
    let _connections: Vec<_> = (0..5).map(|_| gateway.connect()).collect();
    let prometheus = Prometheus::scraping(&gateway);

    let read = |name: &str| {
        let path = format!(
            "{}/packaging/helm/tollgate/files/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::read_to_string(path).expect("it is there")
    };
    let (dashboard, alerts) = (read("dashboard.json"), read("alerts.yaml"));
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut queries = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().expect("queries") {
            let query = filled_in(target["expr"].as_str().expect("a query"));
            queries += 1;
            eventually(
                &format!("{}: {query} finds a series", panel["title"]),
                || prometheus.finds(&query),
            );
        }
    }
    assert!(queries > 20, "the dashboard has {queries} queries");

    // The alerts themselves must find nothing here: it is their metrics that must be there.
    let names: BTreeSet<&str> = alerts
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("tollgate_"))
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        eventually(&format!("{name} is there"), || prometheus.finds(name));
    }
}

#[test]
fn packaging_alerts_pass_promtool_rule_tests() {
    if !available("promtool") {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/prometheus");
    let output = Command::new("promtool")
        .args(["test", "rules", "alerts_test.yaml"])
        .current_dir(folder)
        .output()
        .expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
}
