//! The records of requests: the access log, and the counters of failures.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::harness::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, block, frame};
use crate::harness::{Gateway, Upstream, eventually};

fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

#[test]
fn access_log_has_the_bytes_of_both_bodies() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n\
         [[routes]]\nmatch = \"/echo\"\nupstream = \"builtin:echo\"\nbody = \"8B\"\n",
        log.display(),
        upstream.url()
    ));
    let mut connection = gateway.connect();
    for (request, status) in [
        (
            "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde",
            200,
        ),
        (
            "POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
            200,
        ),
        (
            "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n0\r\n\r\n",
            200,
        ),
        ("GET /up HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ] {
        connection.send(request);
        assert_eq!(connection.answer("POST").status, status);
    }
    connection.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabcdefghi\r\n0\r\n\r\n");
    let cut = connection.try_answer("POST");
    let cut = cut.map_or_else(
        |error| error.kind() == ErrorKind::UnexpectedEof,
        |answer| answer.truncated,
    );
    assert!(cut, "an echo keeps to the bound of its route, too");
    eventually("the log is written", || lines(&log).len() == 5);
    let told: Vec<[u64; 2]> = lines(&log)
        .iter()
        .map(|line| ["received_bytes", "sent_bytes"].map(|name| line[name].as_u64().unwrap_or(0)))
        .collect();
    assert_eq!(told[..4], [[5, 5], [7, 5], [6, 6], [0, 5]]);
    assert_eq!(lines(&log)[4]["reason"], "too_big");
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_received_bytes_total 27\n"),
        "{metrics}"
    );
}

#[test]
fn access_log_refusal_has_id_and_limits_and_no_plain_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\nsample = \"0% of requests\"\n\
         [identities.who]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
         [limits.it]\nrate = \"1/minute\"\nburst = 1\nper = \"who\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        log.display()
    ));
    let ask = || gateway.request("GET", "/a?token=hush", &[("x-api-key", "hush")]);
    assert_eq!(ask().status, 200);
    let refused = ask();
    eventually("the refusal is kept, whatever the sample", || {
        lines(&log).len() == 1
    });
    let line = &lines(&log)[0];
    assert_eq!(line["id"], refused.json()["decision_id"]);
    assert_eq!(
        (line["status"].as_u64(), line["retry_after_ms"].as_u64()),
        (Some(429), Some(60_000))
    );
    assert!(line.to_string().contains("\"it\""), "{line}");
    assert!(!line.to_string().contains("hush"), "{line}");
}

#[test]
fn malformed_request_gets_a_problem_and_is_counted() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server.bounds]\nheaders = 20\nheader_bytes = \"32KiB\"\nbody = \"1KiB\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    ));
    let counted = || {
        let metrics = gateway.admin_get("/metrics").text();
        let of = |line: &str| {
            line.starts_with("tollgate_bad_requests_total{") || line.contains("reason=\"too_big\"")
        };
        metrics
            .lines()
            .filter(|line| of(line))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum::<u64>()
    };
    let target = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(20 << 10));
    let head = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nx-big: {}\r\n\r\n",
        "a".repeat(40 << 10)
    );
    let fields = format!(
        "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
        "x-a: b\r\n".repeat(30)
    );
    for (request, status) in [
        ("NONSENSE\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nbad name: 1\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n",
            413,
        ),
        (&target, 414),
        (&head, 431),
        (&fields, 431),
    ] {
        let before = counted();
        let mut connection = gateway.connect();
        connection.send(request);
        let answer = connection.answer("GET");
        let shown = &request[..request.len().min(60)];
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, Some("application/problem+json")),
            "{shown}"
        );
        assert_eq!(answer.json()["status"], status, "{shown}");
        eventually("it is counted", || counted() == before + 1);
    }
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn access_log_has_a_line_for_input_that_is_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[server.bounds]\nheaders = 20\nheader_bytes = \"32KiB\"\n\
         [server.timeouts]\nheader_read = \"300ms\"\n\
         [log]\naccess = '{}'\nsample = \"0% of requests\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        log.display()
    ));
    let target = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(20 << 10));
    let head = format!(
        "GET /big?secret HTTP/1.1\r\nHost: x\r\nx-big: {}\r\n\r\n",
        "a".repeat(40 << 10)
    );
    let fields = format!(
        "GET /many HTTP/1.1\r\nHost: x\r\n{}\r\n",
        "x-a: b\r\n".repeat(30)
    );
    for (number, (request, status, reason, path)) in [
        ("NONSENSE\r\n\r\n", 400, "malformed", None),
        (
            "GET /bad?secret HTTP/1.1\r\nHost: x\r\nbad name: 1\r\n\r\n",
            400,
            "malformed",
            Some("/bad"),
        ),
        ("GET / HTTP/1.1\r\n\r\n", 400, "host", Some("/")),
        (
            "POST /two HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            400,
            "malformed",
            Some("/two"),
        ),
        (
            "GET /new HTTP/3.0\r\nHost: x\r\n\r\n",
            505,
            "malformed",
            Some("/new"),
        ),
        (&target, 414, "target_too_long", None),
        (&head, 431, "head_too_large", Some("/big")),
        (&fields, 431, "head_too_large", Some("/many")),
        (
            "GET /slow?secret HTTP/1.1\r\nHost: x\r\n",
            408,
            "slow_head",
            Some("/slow"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let shown = &request[..request.len().min(60)];
        let mut connection = gateway.connect();
        connection.send(request);
        assert_eq!(connection.answer("GET").status, status, "{shown}");
        eventually("a line of the log", || lines(&log).len() > number);
        let line = &lines(&log)[number];
        assert_eq!(line["status"], status, "{line}");
        assert_eq!(
            (line["refused"].as_bool(), line["client"].as_str()),
            (Some(true), Some("127.0.0.1")),
            "{line}"
        );
        assert_eq!(line["reason"], reason, "{shown}: {line}");
        if let Some(path) = path {
            assert_eq!(line["path"], path, "{line}");
        }
        assert!(
            !line.to_string().contains("secret"),
            "a query stays out of the log: {line}"
        );
    }
    assert_eq!(lines(&log).len(), 9, "one line for each");
}

#[test]
fn access_log_has_the_query_only_where_the_file_says_so() {
    for (setting, expected) in [
        ("", None),
        ("query = false\n", None),
        ("query = true\n", Some("a=1&b=%22")),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (json, combined) = (
            folder.path().join("json.log"),
            folder.path().join("combined.log"),
        );
        for (log, format) in [(&json, "json"), (&combined, "combined")] {
            let gateway = Gateway::start(&format!(
                "[log]\naccess = '{}'\nformat = \"{format}\"\n{setting}\
                 [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
                log.display()
            ));
            assert_eq!(gateway.get("/x?a=1&b=%22").status, 200);
            eventually("a line", || {
                fs::read_to_string(log).is_ok_and(|text| text.ends_with('\n'))
            });
        }
        let line = &lines(&json)[0];
        assert_eq!(
            (
                line["path"].as_str(),
                line.get("query").and_then(Value::as_str)
            ),
            (Some("/x"), expected)
        );
        let text = fs::read_to_string(&combined).expect("written");
        let target = expected.map_or_else(|| "/x".to_owned(), |query| format!("/x?{query}"));
        assert!(
            text.contains(&format!("\"GET {target} HTTP/1.1\"")),
            "{text}"
        );
    }
}

#[test]
fn access_log_marks_a_candidate() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[limits.it]\nrate = \"9/hour\"\nburst = 9\nper = \"everyone\"\n\
         candidate = {{ rate = \"1/hour\", burst = 1 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        log.display()
    ));
    let mut connection = gateway.connect();
    for _ in 0..2 {
        assert_eq!(connection.request("GET", "/", &[]).status, 200);
    }
    eventually("both are logged", || lines(&log).len() == 2);
    let line = &lines(&log)[1];
    let told = |index: usize| {
        let limit = &line["limits"][index];
        (
            limit["name"].clone(),
            limit.get("candidate").cloned(),
            limit["outcome"].clone(),
        )
    };
    assert_eq!(told(0), ("it".into(), None, "allow".into()), "{line}");
    assert_eq!(
        told(1),
        ("it".into(), Some(true.into()), "shadow_deny".into()),
        "{line}"
    );
}

#[test]
fn access_log_names_the_host_of_an_http2_request() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        log.display(),
        upstream.url()
    ));
    let mut connection = Frames::open(gateway.address(), &[]);
    connection.send(frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        block(&[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "shop.example"),
            (":path", "/"),
        ]),
    ));
    connection.fate(1);
    eventually("the log is written", || lines(&log).len() == 1);
    assert_eq!(lines(&log)[0]["host"], "shop.example");
}

#[test]
fn malformed_chunks_are_a_bad_request_and_a_caller_that_left_is_none() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        log.display(),
        upstream.url()
    ));
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let mut malformed = gateway.connect();
    malformed.send(format!("{head}nonsense\r\n"));
    let answer = malformed.answer("POST");
    assert_eq!(
        (answer.status, answer.header("connection")),
        (400, Some("close")),
        "{answer:?}"
    );
    let kind = answer.json()["type"].clone();
    assert!(!kind.to_string().contains("client-gone"), "{kind}");
    eventually("the first is logged", || lines(&log).len() == 1);
    let mut left = gateway.connect();
    left.send(head);
    std::thread::park_timeout(std::time::Duration::from_millis(100));
    drop(left);
    eventually("both are logged", || lines(&log).len() == 2);
    let told: Vec<_> = lines(&log)
        .iter()
        .map(|line| (line["status"].as_u64(), line["reason"].to_string()))
        .collect();
    assert_eq!(told[0], (Some(400), "\"client_malformed\"".to_owned()));
    assert_eq!(told[1].0, Some(499), "{told:?}");
    let metrics = gateway.admin_get("/metrics").text();
    let bad: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("tollgate_bad_requests_total{"))
        .collect();
    assert!(
        bad.iter().any(|line| line.contains("client_malformed"))
            && !bad.iter().any(|line| line.contains("client_gone")),
        "{bad:?}"
    );
}
