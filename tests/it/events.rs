//! The stream of events and the figures of a running gateway.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::head;
use crate::harness::{Gateway, PATIENCE, Reply, Upstream};
use crate::servers::{self, Redis};

const LIMITS: &str = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"1/minute\"\nburst = 5\nper = \"tenant\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n";

/// The token is `test`.
const OPERATOR: &str = "[admin]\nlisten = \"127.0.0.1:0\"\noperators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

/// The seconds after which an event does not come any more.
const LATE: usize = 60;

pub(crate) struct Reader(BufReader<TcpStream>);

impl Reader {
    pub(crate) fn open(gateway: &Gateway, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(gateway.admin()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = head("GET", "/api/v1/events", headers);
        stream.write_all(head.as_bytes()).expect("sent");
        Self(BufReader::new(stream))
    }

    /// A reader that has seen the first figures: changes from now on are events.
    pub(crate) fn ready(gateway: &Gateway) -> Self {
        let mut reader = Self::open(gateway, &[]);
        reader.next("figures");
        reader
    }

    /// The next event of this name, and its id.
    pub(crate) fn next(&mut self, name: &str) -> (String, Value) {
        let (mut id, mut event) = (String::new(), String::new());
        let mut figures = 0;
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line);
            assert!(
                count.expect("events come") > 0,
                "the stream ended before {name}"
            );
            match line.trim_end().split_once(": ") {
                Some(("id", value)) => id = value.to_owned(),
                Some(("event", value)) => {
                    event = value.to_owned();
                    // They come twice a second whatever happens.
                    figures += usize::from(event == "figures");
                    assert!(figures <= 2 * LATE, "no {name} for so long");
                }
                Some(("data", value)) if event == name => {
                    let data: Value = serde_json::from_str(value).expect("JSON");
                    assert_eq!(data["format"], 1, "{data}");
                    return (id, data);
                }
                Some(("data", _)) => id.clear(),
                _ => {}
            }
        }
    }
}

fn ask(gateway: &Gateway, key: &str) -> u16 {
    gateway.request("GET", "/", &[("x-api-key", key)]).status
}

#[test]
fn events_report_begin_and_end_of_refusals_and_a_reader_resumes() {
    let gateway = Gateway::start(LIMITS);
    let mut reader = Reader::ready(&gateway);
    for _ in 0..4 {
        assert_eq!(ask(&gateway, "k-secret"), 200);
    }
    let (_, near) = reader.next("near");
    assert_eq!(near["limit"], "search", "{near}");
    assert_eq!(
        [ask(&gateway, "k-secret"), ask(&gateway, "k-secret")],
        [200, 429]
    );
    let (began_id, began) = reader.next("refusals_began");
    let listed = gateway.admin_get("/api/v1/limits/search/keys").json();
    for member in [
        "key",
        "name",
        "tier",
        "count",
        "count_error",
        "since",
        "until",
    ] {
        assert_eq!(began[member], listed["keys"][0][member], "{member}");
    }
    assert!(!began.to_string().contains("secret"), "{began}");

    // As long as a retry is refused, the refusals go on.
    gateway.advance(Duration::from_secs(59));
    let (_, figures) = reader.next("figures");
    assert_eq!(figures["refused"]["found"], 1, "{figures}");
    gateway.advance(Duration::from_secs(2));
    let (ended_id, ended) = reader.next("refusals_ended");
    assert_eq!(ended["name"], began["name"]);
    assert_ne!(began_id, ended_id);
    drop(reader);

    let mut again = Reader::open(&gateway, &[("last-event-id", &began_id)]);
    assert_eq!(again.next("hello").1["missed"], false);
    assert_eq!(again.next("refusals_ended").0, ended_id);
    let mut stranger = Reader::open(&gateway, &[("last-event-id", "0-7")]);
    assert_eq!(stranger.next("hello").1["missed"], true);
}

#[test]
fn events_report_a_key_that_a_response_brings_near_its_end() {
    let upstream = Upstream::start(|seen| {
        let cost = seen.header("x-used").unwrap_or("0").to_owned();
        Reply::new(200, &[("x-cost", &cost)], "")
    });
    let gateway = Gateway::start(&format!(
        "[limits.units]\nrate = \"100/day\"\nalgorithm = \"fixed_window\"\nper = \"header:x-key\"\n\
         when_missing = \"refuse\"\nsettle = {{ from = \"header:x-cost\", estimate = 10 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"units\"]\n",
        upstream.url()
    ));
    let mut reader = Reader::ready(&gateway);
    let spend = |key: &str, units: &str| {
        let mut connection = gateway.connect();
        connection.send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Key: {key}\r\nX-Used: {units}\r\n\r\n"
        ));
        assert_eq!(connection.answer("GET").status, 200);
    };
    spend("one", "79");
    spend("two", "80");
    let (_, near) = reader.next("near");
    let keys = gateway.admin_get("/api/v1/limits/units/keys?near").json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1), "{keys}");
    assert_eq!(near["name"], keys["keys"][0]["name"], "{near}");
    // The first one, whose response left 21 units, is near with the next request.
    spend("one", "1");
    let (_, near) = reader.next("near");
    assert_ne!(near["name"], keys["keys"][0]["name"], "{near}");
}

#[test]
fn events_report_a_key_that_a_report_of_a_program_brings_near_its_end() {
    let gateway = crate::decisions::gateway(
        "permit_expiry = \"30s\"",
        "[limits.units]\nrate = \"100/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\n\
         settle = { from = \"header:x-cost\", estimate = 10 }\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"units\"]\n",
    );
    let mut reader = Reader::ready(&gateway);
    let settle = |client: &str, units: u64| {
        let headers = crate::permits::headers("/", client);
        let admitted = crate::decisions::check(&gateway, &headers);
        let permit = admitted.header("x-tollgate-permit").expect("a permit");
        let report = json!({ "permit": permit, "units": units });
        let settled = crate::permits::post(&gateway, "/v1/settle", &report);
        assert_eq!(settled.json()["charged"]["units"], units, "{settled:?}");
    };
    settle("192.0.2.1", 79);
    let near = || gateway.admin_get("/api/v1/limits/units/keys?near").json();
    assert_eq!(near()["found"], 0, "{}", near());
    settle("192.0.2.2", 80);
    let (_, event) = reader.next("near");
    assert_eq!(event["name"], near()["keys"][0]["name"], "{event}");
}

#[test]
fn figures_equal_the_api_and_have_rates() {
    let gateway = Gateway::start(LIMITS);
    let mut reader = Reader::ready(&gateway);
    for _ in 0..8 {
        ask(&gateway, "k");
    }
    gateway.advance(Duration::from_secs(1));
    let figures = loop {
        let (_, figures) = reader.next("figures");
        let rates = &figures["limits"][0]["per_second"];
        if rates["refused"].as_f64().is_some_and(|rate| rate > 0.0) {
            break figures;
        }
    };
    let told = &figures["limits"][0];
    assert_eq!(told["per_second"]["refused"], 3.0, "{figures}");
    assert_eq!(told["per_second"]["allowed"], 5.0);
    assert_eq!(told["near"], 2);
    let limits = gateway.admin_get("/api/v1/limits").json();
    for (member, value) in limits["limits"][0].as_object().expect("an object") {
        assert_eq!(&told[member], value, "{member}");
    }
    let asked = gateway.admin_get("/api/v1/figures").json();
    let keys = gateway.admin_get("/api/v1/limits/search/keys").json();
    assert_eq!(asked["refused"]["keys"][0]["limit"], "search");
    for (member, value) in keys["keys"][0].as_object().expect("an object") {
        assert_eq!(&asked["refused"]["keys"][0][member], value, "{member}");
    }
    assert_eq!(
        asked["exact"],
        json!({ "ungoverned": 0, "key_evictions": 0, "inherited_refusals": 0, "store": null, "upstreams_out": [] })
    );
}

#[test]
fn events_report_reset_and_reload_and_the_key_is_admitted() {
    let gateway = Gateway::start(&format!("{OPERATOR}{LIMITS}"));
    let mut reader = Reader::ready(&gateway);
    for _ in 0..6 {
        ask(&gateway, "k");
    }
    reader.next("refusals_began");
    let body = json!({ "reason": "their job ran twice" });
    let done = gateway.change("POST", "tenant/k/reset", &body);
    assert_eq!(done.status, 200);
    let (_, reset) = reader.next("reset");
    assert_eq!(
        (&reset["operator"], &reset["reason"], &reset["limit"]),
        (
            &json!("ann"),
            &json!("their job ran twice"),
            &json!("search")
        )
    );
    gateway.advance(Duration::from_secs(3));
    reader.next("refusals_ended");
    let figures = gateway.admin_get("/api/v1/figures").json();
    assert_eq!(figures["refused"]["found"], 0, "{figures}");
    let keys = gateway.admin_get("/api/v1/limits/search/keys").json();
    assert_eq!(keys["found"], 0, "{keys}");

    let text = format!("{OPERATOR}{}", LIMITS.replace("burst = 5", "burst = 6"));
    gateway.reload(&text).expect("good");
    let (_, reload) = reader.next("reload");
    assert_eq!(
        (&reload["good"], &reload["generation"]),
        (&json!(true), &json!(2))
    );
    gateway.reload("nonsense = 1").expect_err("bad");
    let (_, reload) = reader.next("reload");
    assert_eq!(reload["good"], false);
    assert!(
        reload["message"]
            .as_str()
            .is_some_and(|words| words.contains("nonsense"))
    );
}

/// Of many keys that change at once the first are events of their own, and the others are counted.
#[test]
fn events_of_more_keys_than_are_told_at_once_are_counted_as_omitted() {
    let gateway = Gateway::start(LIMITS);
    let mut reader = Reader::ready(&gateway);
    for key in 0..30 {
        for _ in 0..6 {
            ask(&gateway, &key.to_string());
        }
    }
    while reader.next("figures").1["refused"]["found"] != 30 {}
    gateway.advance(Duration::from_secs(120));
    for _ in 0..20 {
        reader.next("refusals_ended");
    }
    let (_, omitted) = reader.next("omitted");
    assert_eq!(
        (
            &omitted["refusals_ended"],
            &omitted["refusals_began"],
            &omitted["near"]
        ),
        (&json!(10), &json!(0), &json!(0))
    );
}

#[test]
fn events_report_an_override_that_is_set_and_lifted_or_ends() {
    let gateway = Gateway::start(&format!("{OPERATOR}{LIMITS}"));
    let mut reader = Reader::ready(&gateway);
    let change = |method: &str, body: &Value| {
        let done = gateway.change(method, "tenant/k/override", body);
        assert_eq!(done.status, 200);
    };
    let block = json!({ "reason": "scans", "block": true, "for": "10m" });
    for is_lifted in [true, false] {
        change("PUT", &block);
        let (_, set) = reader.next("override_set");
        assert_eq!(
            (
                &set["limit"],
                &set["block"],
                &set["operator"],
                &set["reason"]
            ),
            (
                &json!("search"),
                &json!(true),
                &json!("ann"),
                &json!("scans")
            )
        );
        assert!(!set.to_string().contains("\"k\""), "{set}");
        match is_lifted {
            true => change("DELETE", &json!({ "reason": "done" })),
            false => gateway.advance(Duration::from_secs(600)),
        }
        let (_, ended) = reader.next("override_ended");
        assert_eq!(
            (&ended["lifted"], &ended["name"]),
            (&json!(is_lifted), &set["name"])
        );
    }
}

#[test]
fn events_report_failure_and_return_of_store_and_upstream() {
    if !servers::available("redis-server") {
        return;
    }
    let mut redis = Redis::start();
    let ill = Arc::new(AtomicBool::new(true));
    let its = Arc::clone(&ill);
    let moody = Upstream::start(move |_| {
        let status = if its.load(Ordering::SeqCst) { 503 } else { 200 };
        Reply::new(status, &[], "moody")
    });
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that gateways share").expect("written");
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"allow\"\nkey_secret_file = '{}'\n\
         [limits.all]\nrate = \"9/hour\"\nper = \"everyone\"\n\
         [upstreams.app]\nservers = [\"{}\"]\neject = {{ failures = 3, wait = \"1s\" }}\n\
         [[routes]]\nmatch = \"/\"\nupstream = \"builtin:echo\"\nlimits = [\"all\"]\n\
         [[routes]]\nmatch = \"/app\"\nupstream = \"app\"\n",
        redis.url(),
        secret.display(),
        moody.url(),
    ));
    servers::wait_until("the store responds", || gateway.get("/").status == 200);
    let mut reader = Reader::ready(&gateway);
    redis.kill();
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let (_, down) = reader.next("store_down");
    assert_eq!(down["kind"], "redis", "{down}");
    assert!(
        down["why_not"].is_string() && down["when_down"].is_string(),
        "{down}"
    );
    let figures = gateway.admin_get("/api/v1/figures").json();
    assert!(
        figures["exact"]["ungoverned"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
    redis.run();
    assert_eq!(reader.next("store_up").1["answers"], true);

    for _ in 0..3 {
        gateway.get("/app");
    }
    let (_, out) = reader.next("upstream_out");
    assert_eq!(
        (&out["upstream"], &out["state"]),
        (&json!("app"), &json!("ejected"))
    );
    ill.store(false, Ordering::SeqCst);
    servers::wait_until("it is back", || gateway.get("/app").status == 200);
    assert_eq!(reader.next("upstream_back").1["server"], out["server"]);
}
