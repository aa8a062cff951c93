//! Events when a key has used a percentage of its limit: once for each window, by what was used, on every store.

use std::time::Duration;

use serde_json::{Value, json};

use crate::events::Reader;
use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};
use crate::rls::stores::each_server;

/// Calls of which the request reserves a hundred units and the header says what they cost.
fn provider() -> Upstream {
    Upstream::start(|seen| {
        let cost = seen.header("x-used").unwrap_or("0").to_owned();
        Reply::new(200, &[("x-cost", &cost)], "")
    })
}

fn config(service: &str, upstream: &str, more: &str) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\nwebhook = {{ url = \"{service}/hook\", events = [\"threshold\"] }}\n\
         [limits.units]\nrate = \"1000/day\"\nalgorithm = \"fixed_window\"\nper = \"header:x-key\"\nwhen_missing = \"refuse\"\n\
         events = [\"80%\", \"50%\", \"100%\"]\n\
         cost = {{ header = \"x-most\", default = 100, max = 1000 }}\nsettle = {{ from = \"header:x-cost\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"units\"]\n{more}"
    )
}

fn spend(gateway: &Gateway, key: &str, used: u64) {
    let mut connection: Connection = gateway.connect();
    connection.send(format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Key: {key}\r\nX-Used: {used}\r\n\r\n"
    ));
    assert_eq!(connection.answer("GET").status, 200);
}

/// The percentages that the service was told, in their order.
fn percents(service: &Upstream) -> Vec<u64> {
    let seen = service.seen();
    let events = seen.iter().map(|seen| {
        let event: Value = serde_json::from_slice(&seen.body).expect("JSON");
        event["data"]["percent"].as_u64().expect("a percentage")
    });
    events.collect()
}

#[test]
fn thresholds_are_told_once_for_each_window_by_what_was_used() {
    let (service, upstream) = (Upstream::hello(), provider());
    let gateway = Gateway::start(&config(&service.url(), &upstream.url(), ""));
    let mut reader = Reader::ready(&gateway);
    for _ in 0..4 {
        spend(&gateway, "k-secret", 99);
    }
    // 396 are used, and another call reserves all the rest: what is reserved is not used.
    let mut connection = gateway.connect();
    connection
        .send("GET / HTTP/1.1\r\nHost: x\r\nX-Key: k-secret\r\nX-Most: 604\r\nX-Used: 104\r\n\r\n");
    assert_eq!(connection.answer("GET").status, 200);
    let (_, event) = reader.next("threshold");
    assert_eq!(event["limit"], "units", "{event}");
    assert_eq!(
        (&event["percent"], &event["used"], &event["of"]),
        (&json!(50), &json!(500), &json!(1000))
    );
    assert!(!event.to_string().contains("secret"), "{event}");
    spend(&gateway, "k-secret", 100);
    spend(&gateway, "other", 100);
    spend(&gateway, "k-secret", 300);
    let next = reader.next("threshold").1;
    assert_eq!(
        (&next["percent"], &next["used"]),
        (&json!(80), &json!(900)),
        "{next}"
    );
    eventually("both are sent", || percents(&service) == [50, 80]);
    gateway.advance(Duration::from_secs(86_400));
    spend(&gateway, "k-secret", 1000);
    let all: Vec<Value> = (0..3)
        .map(|_| reader.next("threshold").1["percent"].clone())
        .collect();
    assert_eq!(all, [50, 80, 100], "all at once, in the next window");
}

#[test]
fn thresholds_are_told_once_by_all_gateways_of_a_store_and_after_a_restart() {
    each_server(|shared| {
        let (service, upstream) = (Upstream::hello(), provider());
        let config = config(&service.url(), &upstream.url(), &shared.table);
        let gateways = [Gateway::start(&config), Gateway::start(&config)];
        for _ in 0..3 {
            gateways.iter().for_each(|gateway| spend(gateway, "k", 80));
        }
        assert!(percents(&service).is_empty(), "480 of 1000");
        for gateway in &gateways {
            spend(gateway, "k", 80);
        }
        eventually("the half is told", || percents(&service) == [50]);
        drop(gateways);
        let gateway = Gateway::start(&config);
        spend(&gateway, "k", 100);
        spend(&gateway, "k", 90);
        eventually("the next one is told, and the half no more", || {
            percents(&service) == [50, 80]
        });
    });
}
