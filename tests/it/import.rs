//! `tollgate import`: its exits, what it writes, and NGINX's own limiter beside what was made of its file.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Connection, Nginx, Upstream, eventually};

const GOOD: &str = "limit_req_zone $binary_remote_addr zone=api:10m rate=10r/s;\n\
    server {\n    listen 80;\n    location / {\n        limit_req zone=api burst=5 nodelay;\n        \
    proxy_pass http://127.0.0.1:3000;\n    }\n}\n";

#[test]
fn import_writes_a_file_that_check_accepts_and_never_overwrites_one() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("nginx.conf"), GOOD).expect("written");
    let output = tollgate(
        folder.path(),
        &["import", "nginx.conf", "--output", "made.toml"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for words in [
        "nginx.conf is of NGINX",
        "limits.api: equal",
        "wrote made.toml",
    ] {
        assert!(err(&output).contains(words), "{}", err(&output));
    }
    assert!(output.stdout.is_empty(), "the file has it");
    let checked = tollgate(folder.path(), &["check", "--strict", "made.toml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", err(&checked));
    let again = tollgate(folder.path(), &["import", "nginx.conf", "-o", "made.toml"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).contains("not overwritten"), "{}", err(&again));
    // Without --output it is printed, and the report keeps apart.
    let printed = tollgate(folder.path(), &["import", "nginx.conf"]);
    let made = fs::read_to_string(folder.path().join("made.toml")).expect("the file");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), made);
    let document = tollgate(folder.path(), &["import", "nginx.conf", "--format", "json"]);
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    assert_eq!(document["toml"], made);
    assert_eq!(document["findings"][0]["outcome"], "equal");
    assert_eq!(document["findings"][0]["line"], 5);
}

#[test]
fn import_exit_code_follows_the_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    file(
        "part.conf",
        &GOOD.replace("nodelay;", "nodelay;\n limit_rate 10k;"),
    );
    file("broken.conf", "server {\n");
    file("empty.conf", "");
    file("notes.txt", "hello");
    file("haproxy.cfg", "frontend a\n bind :80\n");
    file(
        "main.conf",
        "include parts/*.conf;\ninclude more.conf;\ninclude /dev/zero;\n",
    );
    fs::create_dir(folder.path().join("parts")).expect("a folder");
    fs::write(folder.path().join("parts/a.conf"), GOOD).expect("written");
    for (arguments, code, words) in [
        (
            &["import", "part.conf"][..],
            1,
            "part.conf:6: limit_rate 10k\n  not imported: Tollgate does not limit bandwidth",
        ),
        (
            &["import", "broken.conf", "--from", "nginx"],
            1,
            "broken.conf:1: the block of `server` is not closed",
        ),
        (&["import", "notes.txt"], 2, "--from says whose it is"),
        (
            &["import", "haproxy.cfg"],
            2,
            "of HAProxy and of Caddy none is imported",
        ),
        (&["import", "absent.conf"], 1, "cannot read `absent.conf`"),
        (
            &["import", "empty.conf", "--from", "nginx"],
            1,
            "no limit was found",
        ),
        (
            &["import", "part.conf", "--from", "apache"],
            2,
            "invalid value 'apache'",
        ),
        (
            &["import", "empty.conf", "--from", "ingress-nginx"],
            1,
            "that is read as ingress-nginx's",
        ),
        (&["import"], 2, "FILE"),
        (
            &["import", "main.conf", "--from", "nginx"],
            1,
            "parts/a.conf:5: limit_req zone=api",
        ),
        (
            &["import", "main.conf", "--from", "nginx"],
            1,
            "main.conf:2: include more.conf\n  not imported: it cannot be read",
        ),
        (
            &["import", "main.conf", "--from", "nginx"],
            1,
            "it is no regular file",
        ),
    ] {
        let output = tollgate(folder.path(), arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            err(&output)
        );
        assert!(
            err(&output).contains(words),
            "{arguments:?}: {}",
            err(&output)
        );
    }
}

/// Three locations that the report calls equal: a rate per second, one per minute, and two zones.
fn limits(upstream: &str, log: &Path) -> String {
    format!(
        "log_format timed '$msec $remote_addr \"$request\" $status $request_time';\n\
         limit_req_zone $binary_remote_addr zone=second:1m rate=5r/s;\n\
         limit_req_zone $binary_remote_addr zone=minute:1m rate=120r/m;\n\
         limit_req_zone $binary_remote_addr zone=inner:1m rate=10r/s;\n\
         limit_req_zone $server_name zone=outer:1m rate=4r/s;\n\
         limit_req_status 429;\n\
         server {{\n\
           listen 127.0.0.1:PORT;\n\
           server_name api.example;\n\
           access_log {} timed;\n\
           set_real_ip_from 127.0.0.1;\n\
           real_ip_header X-Forwarded-For;\n\
           real_ip_recursive on;\n\
           location /second {{ limit_req zone=second burst=3 nodelay; proxy_pass {upstream}; }}\n\
           location /minute {{ limit_req zone=minute burst=2 nodelay; proxy_pass {upstream}; }}\n\
           location /two {{ limit_req zone=inner burst=1 nodelay; limit_req zone=outer burst=6 nodelay; proxy_pass {upstream}; }}\n\
         }}\n",
        log.display()
    )
}

/// A request as NGINX logged it.
struct Logged {
    /// Milliseconds, when it came.
    at: u64,
    client: String,
    path: String,
    admitted: bool,
}

fn logged(text: &str) -> Vec<Logged> {
    let millis = |text: &str| text.replace('.', "").parse::<u64>().expect("milliseconds");
    let mut all: Vec<Logged> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            Logged {
                at: millis(words[0]) - millis(words[6]),
                client: words[1].to_owned(),
                path: words[3].to_owned(),
                admitted: words[5] != "429",
            }
        })
        .collect();
    all.sort_by_key(|logged| logged.at);
    all
}

/// What NGINX's zones have given, as far as it is known: when each request would come too near to its turn.
#[derive(Default)]
struct Zones {
    /// By zone and client: since when the bucket is not full, and how many it gave since then.
    buckets: HashMap<(&'static str, String), (u64, u64)>,
}

impl Zones {
    /// The zones that a path draws from: name, requests per second, burst and one.
    fn of(path: &str) -> &'static [(&'static str, u64, u64)] {
        match path {
            "/second" => &[("second", 5, 4)],
            "/minute" => &[("minute", 2, 3)],
            _ => &[("inner", 10, 2), ("outer", 4, 7)],
        }
    }

    fn key(zone: &'static str, client: &str) -> (&'static str, String) {
        let client = if zone == "outer" { "" } else { client };
        (zone, client.to_owned())
    }

    /// How many milliseconds a request at `at` is away from its turn, in the zone where it is nearest; `None`: it is not
    /// waited for.
    fn distance(&self, path: &str, client: &str, at: u64) -> Option<u64> {
        let distance = |(zone, rate, capacity): &(&'static str, u64, u64)| {
            let (since, given) = *self.buckets.get(&Self::key(zone, client))?;
            let due = ((given + 1).saturating_sub(*capacity) * 1_000).div_ceil(*rate);
            let passed = at.saturating_sub(since);
            (due > 0 && passed * rate < given * 1_000).then(|| passed.abs_diff(due))
        };
        Self::of(path).iter().filter_map(distance).min()
    }

    fn record(&mut self, path: &str, client: &str, at: u64, admitted: bool) {
        for (zone, rate, _) in Self::of(path) {
            let bucket = self.buckets.entry(Self::key(zone, client));
            let (since, given) = bucket.or_insert((at, 0));
            if at.saturating_sub(*since) * rate >= *given * 1_000 {
                (*since, *given) = (at, 0);
            }
            *given += u64::from(admitted);
        }
    }
}

/// Whether no request was so near to its turn that two clocks of whole milliseconds can judge it otherwise: NGINX
/// counts on another clock than it stamps by.
fn is_conclusive(all: &[Logged]) -> bool {
    let mut zones = Zones::default();
    all.iter().all(|request| {
        let Logged {
            at,
            client,
            path,
            admitted,
        } = request;
        let distance = zones.distance(path, client, *at);
        zones.record(path, client, *at, *admitted);
        distance.is_none_or(|distance| distance > 3)
    })
}

/// The system's clock in milliseconds, which NGINX stamps its log by.
#[expect(clippy::disallowed_methods, reason = "NGINX's clock is the system's")]
fn millis() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("a moment of our time")
}

/// The log of Tollgate for these requests, with NGINX's verdicts.
fn as_own_log(all: &[Logged]) -> String {
    let mut text = String::new();
    for logged in all {
        let refused = if logged.admitted {
            ""
        } else {
            ",\"refused\":true,\"reason\":\"denied\""
        };
        let _ = writeln!(
            text,
            "{{\"time\":{}.{:03},\"id\":\"-\",\"status\":200,\"method\":\"GET\",\"path\":\"{}\",\"client\":\"{}\"{refused},\
             \"duration_us\":0,\"limits\":[{{\"name\":\"one\",\"cost\":1,\"outcome\":\"allow\"}}]}}",
            logged.at / 1_000,
            logged.at % 1_000,
            logged.path,
            logged.client,
        );
    }
    text
}

#[test]
fn import_of_nginx_judges_as_nginx_did() {
    let upstream = Upstream::hello();
    // Each request is sent while it is clear of its turn. A busy machine may hold it up until it is not: then the run says
    // nothing, and is repeated.
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("access.log");
        let text = limits(&upstream.url(), &log);
        let nginx = Nginx::start(|port| text.replace("PORT", &port.to_string()));
        let Some(nginx) = nginx else { return };
        let mut connection = Connection::open(([127, 0, 0, 1], nginx.port()).into());
        let (mut sent, mut zones) = (0, Zones::default());
        for pause in [0, 310, 90, 250, 510, 110, 730, 270, 90, 470] {
            // NGINX's clock cannot be moved by hand.
            std::thread::sleep(Duration::from_millis(pause));
            for number in 0..12 {
                let path = ["/second", "/minute", "/two"][number % 3];
                let client = ["192.0.2.1", "192.0.2.2"][number % 2];
                let near = |at| {
                    zones
                        .distance(path, client, at)
                        .is_some_and(|away| away <= 15)
                };
                while near(millis()) {
                    std::thread::sleep(Duration::from_millis(4));
                }
                let at = millis();
                let response = connection.request("GET", path, &[("x-forwarded-for", client)]);
                zones.record(path, client, at, response.status != 429);
                sent += 1;
            }
        }
        eventually("nginx has logged", || {
            fs::read_to_string(&log).unwrap_or_default().lines().count() == sent
        });
        let all = logged(&fs::read_to_string(&log).expect("the log"));
        if !is_conclusive(&all) {
            continue;
        }
        let refused = all.iter().filter(|logged| !logged.admitted).count();
        assert!(refused > 20 && refused + 20 < sent, "{refused} of {sent}");
        compare(folder.path(), &text, &all, refused);
        return;
    }
    panic!("no run in which every request was clear of its turn");
}

/// Imports NGINX's file and judges its log by it: no verdict differs.
fn compare(folder: &Path, text: &str, all: &[Logged], refused: usize) {
    fs::write(folder.join("nginx.conf"), text.replace("PORT", "8080")).expect("written");
    let output = tollgate(folder, &["import", "nginx.conf", "-o", "gateway.toml"]);
    let report = err(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(
        report.contains("4 equal, 0 that differ, 0 not imported"),
        "{report}"
    );
    fs::write(folder.join("own.log"), as_own_log(all)).expect("written");
    let own = json(folder, &["replay", "own.log", "--format", "json"]);
    assert_eq!(own["recorded"]["refused"], refused, "{own:#}");
    assert_eq!(own["recorded"]["differ"], 0, "{own:#}");
    // The same from NGINX's own lines.
    let format = "$msec $remote_addr \"$request\" $status $request_time";
    let theirs = json(
        folder,
        &[
            "replay",
            "access.log",
            "--log-format",
            format,
            "--format",
            "json",
        ],
    );
    assert_eq!(theirs["unreadable"], 0, "{theirs:#}");
    assert_eq!(theirs["requests"], all.len(), "{theirs:#}");
    for limit in ["second", "minute"] {
        let path = format!("/{limit}");
        let lost = all
            .iter()
            .filter(|logged| logged.path == path && !logged.admitted)
            .count();
        let found = theirs["limits"]
            .as_array()
            .expect("limits")
            .iter()
            .find(|found| found["name"] == limit);
        assert_eq!(
            found.expect("the limit")["refused"],
            lost,
            "{limit}: {theirs:#}"
        );
    }
}

fn tollgate(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("TOLLGATE_CONFIG")
        .output()
        .expect("it runs")
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = tollgate(folder, arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", err(&output)))
}
