//! Overrides on one gateway reach the others on the same store, also those without operators, and last as long as they
//! say.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::gateways::{self, Gateway, response, status, store};
use crate::servers::wait_until;
use crate::servers::{Server, StoreKind};

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

const RATE: &str = "rate = \"40/hour\"\n";

fn settings(admin: &str, server: &Server, place: usize, more: &str) -> String {
    let store = store(server, place);
    format!(
        "{admin}{store}[limits.total]\nper = \"everyone\"\n{more}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
    )
}

/// Two gateways, both with operators.
fn two(server: &Server) -> [Gateway; 2] {
    [0, 1].map(|place| Gateway::start_on(&settings(OPERATORS, server, place, RATE)))
}

/// Asks a gateway until a limit refuses; returns how many it granted. (A store on a busy machine may be late.)
fn exhaust(port: u16) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut granted = 0;
    loop {
        match status(&mut stream, "/") {
            Some(200) => granted += 1,
            Some(503) => {}
            _ => return granted,
        }
    }
}

fn ask(port: u16) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    status(&mut stream, "/").unwrap()
}

fn change(admin: u16, method: &str, body: &Value) -> String {
    let told = gateways::change(admin, method, "override", body);
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    told
}

/// Waits until a gateway responds so, and says how long that took.
fn reached(what: &str, since: Instant, port: u16, wanted: u16) {
    wait_until(what, || ask(port) == wanted);
    println!("{what}: after {:?}", since.elapsed());
}

/// Two gateways have exhausted the bucket, and the second has no operators. It obeys each change that is made on the
/// first; no end of an override refills the bucket.
pub fn reaches_the_others(server: Server, more: &str) {
    let limit = format!("{RATE}{more}");
    let first = Gateway::start_on(&settings(OPERATORS, &server, 0, &limit));
    let second = Gateway::start_on(&settings("", &server, 1, &limit));
    assert!(exhaust(first.port) + exhaust(second.port) <= 40);
    let since = Instant::now();
    change(
        first.admin,
        "PUT",
        &json!({ "reason": "r", "unlimited": true, "for": "1h" }),
    );
    assert_eq!(
        ask(first.port),
        200,
        "the gateway that was asked obeys at once"
    );
    reached("an admission by the other gateway", since, second.port, 200);
    let since = Instant::now();
    change(first.admin, "DELETE", &json!({ "reason": "r" }));
    assert_eq!(ask(first.port), 429);
    reached("the end on the other gateway", since, second.port, 429);
    let since = Instant::now();
    change(
        first.admin,
        "PUT",
        &json!({ "reason": "r", "block": true, "for": "4s" }),
    );
    let blocked = response(first.port, "GET / HTTP/1.1\r\n");
    assert!(
        blocked.contains("urn:problem-type:tollgate:blocked"),
        "{blocked}"
    );
    wait_until("a block on the other gateway", || {
        response(second.port, "GET / HTTP/1.1\r\n").contains("tollgate:blocked")
    });
    println!("a block on the other gateway: after {:?}", since.elapsed());
    wait_until("its end", || {
        !response(second.port, "GET / HTTP/1.1\r\n").contains("tollgate:blocked")
    });
    // A gateway knows the store's clock to half of what a call takes.
    assert!(
        since.elapsed() >= Duration::from_millis(3900),
        "it lasts as long as it says: {:?}",
        since.elapsed()
    );
    assert_eq!(ask(second.port), 429, "and refills nothing");
}

/// How long a change takes to the other gateway where the store publishes it: most of these times a poll once
/// a second would be later.
pub fn is_published(server: Server) {
    let [first, second] = two(&server);
    exhaust(first.port);
    let mut times: Vec<Duration> = (0..15)
        .map(|_| {
            let since = Instant::now();
            let unlimited = json!({ "reason": "r", "unlimited": true, "for": "1h" });
            change(first.admin, "PUT", &unlimited);
            wait_until("an admission by the other gateway", || {
                ask(second.port) == 200
            });
            let time = since.elapsed();
            change(first.admin, "DELETE", &json!({ "reason": "r" }));
            wait_until("its end", || ask(second.port) == 429);
            time
        })
        .collect();
    times.sort_unstable();
    assert!(times[7] < Duration::from_millis(150), "{times:?}");
}

/// A gateway without requests makes one call for each of its heartbeats.
#[test]
fn gateway_that_is_idle_calls_redis_once_for_each_heartbeat() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let _gateway = Gateway::start_on(&settings("", &server, 0, RATE));
    let server = server.redis();
    let calls = || {
        let info = server.ask("INFO commandstats");
        ["zadd", "evalsha"].map(|command| {
            let line = info
                .lines()
                .find(|line| line.starts_with(&format!("cmdstat_{command}:")));
            let (_, calls) = line.and_then(|line| line.split_once("calls=")).unwrap();
            calls.split(',').next().unwrap().parse::<u64>().unwrap()
        })
    };
    let beats = |more: u64| {
        let enough = calls()[0] + more;
        wait_until("heartbeats", || calls()[0] >= enough);
    };
    wait_until("a heartbeat", || {
        server.ask("INFO commandstats").contains("cmdstat_zadd")
    });
    beats(2);
    let before = calls();
    beats(4);
    let after = calls();
    // (A heartbeat that is slow on a busy machine looks like a clock that drifts: the document is read once more.)
    let [beats, calls] = [0, 1].map(|place| after[place] - before[place]);
    assert!(calls < 2 * beats, "{calls} calls for {beats} heartbeats");
}

/// While the store is away its overrides stay, and a gateway that starts again finds them.
pub fn stays_while_the_store_is_away(mut server: Server) {
    let settings = settings(OPERATORS, &server, 0, RATE);
    let gateway = Gateway::start_on(&settings);
    change(
        gateway.admin,
        "PUT",
        &json!({ "reason": "r", "block": true, "for": "1h" }),
    );
    assert_eq!(ask(gateway.port), 429);
    server.crash();
    wait_until("a gateway that misses its store", || {
        gateway.metric("store_up") == 0
    });
    assert_eq!(ask(gateway.port), 429);
    drop(gateway);
    server.run();
    let gateway = Gateway::start_on(&settings);
    wait_until("the block", || ask(gateway.port) == 429);
    change(gateway.admin, "DELETE", &json!({ "reason": "r" }));
    assert_eq!(ask(gateway.port), 200);
}

/// A gateway that starts while the store is away obeys what the store told it before.
#[test]
fn override_holds_on_a_gateway_that_starts_while_its_store_is_away() {
    let Some(mut server) = StoreKind::Redis.start_durable() else {
        return;
    };
    let settings = settings(OPERATORS, &server, 0, RATE).replace("refuse", "local_share");
    let gateway = Gateway::start_on(&settings);
    let block = json!({ "reason": "r", "block": true, "for": "1h" });
    change(gateway.admin, "PUT", &block);
    wait_until("the block", || ask(gateway.port) == 429);
    server.crash();
    let gateway = gateway.killed_and_started(&settings);
    for _ in 0..3 {
        assert_eq!(ask(gateway.port), 429);
    }
    server.run();
    // The gateway takes a change after it has read the overrides of the store, soon after the store is up.
    wait_until("a change on a gateway that has its store again", || {
        let end = json!({ "reason": "r" });
        gateways::change(gateway.admin, "DELETE", "override", &end).starts_with("HTTP/1.1 200")
    });
    wait_until("no block", || ask(gateway.port) == 200);
    // What was lifted is not obeyed later.
    server.crash();
    let gateway = gateway.killed_and_started(&settings);
    assert_eq!(ask(gateway.port), 200);
}

fn tollgate(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).env("TOLLGATE_TOKEN", "test");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}{errors}");
    told
}

/// A customer is refused by one gateway at three in the morning: from the decision id to an admission by the other.
pub fn helps_a_refused_customer(server: Server) {
    let gateways = two(&server);
    let [first, second] = gateways
        .each_ref()
        .map(|one| format!("127.0.0.1:{}", one.admin));
    assert!(exhaust(gateways[0].port) <= 40);
    let refused = response(gateways[0].port, "GET / HTTP/1.1\r\n");
    let (_, rest) = refused.split_once("\"decision_id\":\"").unwrap();
    let id = &rest[..16];
    let since = Instant::now();
    let why = tollgate(&["why", id, "--admin", &format!("{second},{first}")]);
    assert!(
        why.contains("total") && why.contains("refused until"),
        "{why}"
    );
    let raise = [
        "key",
        "raise",
        "everyone",
        "--limit",
        "total",
        "--rate",
        "1000/second",
        "--for",
        "15s",
        "--reason",
        "ticket 4711",
    ];
    let raised = tollgate(&[&raise[..], &["--admin", &first]].concat());
    assert!(raised.contains("rate 1000/second until"), "{raised}");
    reached(
        "an admission by the other gateway",
        since,
        gateways[1].port,
        200,
    );
    let why = tollgate(&["why", id, "--admin", &first]);
    assert!(why.contains("override: rate 1000/second until"), "{why}");
    // The other gateway may admit before it reads the list: the bucket in the store has the raised rate.
    wait_until("the override in both lists", || {
        let listed = tollgate(&["overrides", "--admin", &format!("{first},{second}")]);
        listed.matches("by ann: ticket 4711").count() == 2
    });
    wait_until("its end", || {
        tollgate(&["overrides", "--admin", &second]).contains("override   none")
    });
    assert!(since.elapsed() >= Duration::from_secs(15));
    exhaust(gateways[0].port);
    assert_eq!(ask(gateways[1].port), 429, "the limit is as it was");
    let lift = [
        "key", "lift", "everyone", "--reason", "r", "--admin", &first,
    ];
    let block = [
        "key", "block", "everyone", "--for", "1h", "--reason", "r", "--admin", &first,
    ];
    tollgate(&block);
    tollgate(&lift);
    let audit = response(gateways[0].admin, "GET /api/v1/audit HTTP/1.1\r\n");
    for line in [
        "\"action\": \"override\"",
        "\"action\": \"lift\"",
        "\"override_after\"",
        "ticket 4711",
    ] {
        assert!(audit.contains(line), "{line}: {audit}");
    }
}

/// Two gateways share a store, and an operator names both: each change is made once, and recorded by one of them.
pub fn is_recorded_once(server: Server) {
    let gateways = two(&server);
    let admin = gateways
        .each_ref()
        .map(|one| format!("127.0.0.1:{}", one.admin));
    let admin = admin.join(",");
    let recorded = || {
        let audits = gateways
            .each_ref()
            .map(|one| response(one.admin, "GET /api/v1/audit HTTP/1.1\r\n"));
        audits
            .iter()
            .map(|audit| audit.matches("\"action\"").count())
            .sum::<usize>()
    };
    let change = |arguments: &[&str]| {
        let named = ["everyone", "--reason", "r", "--admin", &admin];
        tollgate(&[arguments, &named].concat())
    };
    let told = change(&["key", "raise", "--unlimited", "--for", "1h"]);
    assert!(
        told.contains("is in the shared store: another gateway of it is asked"),
        "{told}"
    );
    assert_eq!(
        told.matches("override: unlimited until").count(),
        1,
        "{told}"
    );
    assert_eq!(recorded(), 1);
    change(&["key", "raise", "--unlimited", "--for", "2h"]);
    assert_eq!(recorded(), 2, "another change");
    change(&["key", "reset"]);
    assert_eq!(recorded(), 3);
    change(&["key", "lift"]);
    assert_eq!(recorded(), 4);
    for gateway in &gateways {
        wait_until("the end on every gateway", || {
            !response(gateway.admin, "GET /api/v1/overrides HTTP/1.1\r\n").contains("\"until\"")
        });
    }
}

/// Operators of two gateways override one key at the same time: each change says, in its response and in the audit, what it
/// has replaced, so that the changes make one chain.
pub fn records_what_it_replaced(server: Server) {
    const EACH: u64 = 15;
    let gateways = two(&server);
    let together = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for (place, gateway) in (0..).zip(&gateways) {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                for number in 0..EACH {
                    let burst = 100 + place * EACH + number;
                    let body = json!({ "reason": "r", "burst": burst, "for": "1h" });
                    change(gateway.admin, "PUT", &body);
                }
            });
        }
    });
    let mut replaced = Vec::new();
    for gateway in &gateways {
        let told = response(gateway.admin, "GET /api/v1/audit HTTP/1.1\r\n");
        let (_, body) = told.split_once("\r\n\r\n").unwrap();
        let audit: Value = serde_json::from_str(body).unwrap();
        let entries = audit["entries"].as_array().unwrap().iter();
        replaced.extend(entries.map(|entry| entry["override_before"]["burst"].as_u64()));
    }
    replaced.sort_unstable();
    assert_eq!(replaced.len() as u64, 2 * EACH);
    replaced.dedup();
    assert_eq!(replaced.len() as u64, 2 * EACH, "{replaced:?}");
}
