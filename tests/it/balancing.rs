//! Which server of an upstream gets a request, as its callers see it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use crate::harness::{Gateway, Reply, Upstream, eventually};

/// One that says which it is.
fn named(name: &'static str) -> Upstream {
    Upstream::start(move |_| Reply::ok(name))
}

/// A gateway with one worker, balancing like this over servers with weights.
fn config(balance: &str, more: &str, servers: &[(&Upstream, u32)]) -> String {
    let servers: Vec<String> = servers
        .iter()
        .map(|(server, weight)| format!("{{ url = \"{}\", weight = {weight} }}", server.url()))
        .collect();
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [identities.who]\nkey = \"header:x-who\"\nwhen_missing = \"refuse\"\n\
         [limits.many]\nrate = \"1000000/second\"\nper = \"who\"\n\
         [upstreams.app]\nservers = [{}]\nbalance = \"{balance}\"\n{more}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"many\"]\n",
        servers.join(", ")
    )
}

/// What each of `count` callers gets.
fn placed(gateway: &Gateway, count: usize) -> Vec<String> {
    let mut connection = gateway.connect();
    (0..count)
        .map(|who| {
            connection
                .request("GET", "/", &[("x-who", &format!("caller-{who}"))])
                .text()
        })
        .collect()
}

fn counted(placed: &[String]) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for name in placed {
        *counted.entry(name.as_str()).or_default() += 1;
    }
    counted
}

#[test]
fn identity_hash_server_removed_or_moved_keeps_the_callers_of_the_others() {
    let (a, b, c, d) = (named("a"), named("b"), named("c"), named("d"));
    let gateway = Gateway::start(&config(
        "identity_hash",
        "",
        &[(&a, 1), (&b, 1), (&c, 1), (&d, 1)],
    ));
    let before = placed(&gateway, 200);
    assert!(
        counted(&before).values().all(|count| *count > 20),
        "{:?}",
        counted(&before)
    );
    let again = |servers: &[(&Upstream, u32)]| {
        gateway
            .reload(&config("identity_hash", "", servers))
            .expect("in force");
        placed(&gateway, 200)
    };
    assert_eq!(
        again(&[(&d, 1), (&b, 1), (&a, 1), (&c, 1)]),
        before,
        "the order is nothing"
    );
    let without = again(&[(&b, 1), (&c, 1), (&d, 1)]);
    for (now, then) in without.iter().zip(&before).filter(|(_, then)| *then != "a") {
        assert_eq!(now, then, "only the callers of the one that went are moved");
    }
    // A weight that grows draws callers to its server, and moves no other.
    for (now, then) in again(&[(&a, 1), (&b, 4), (&c, 1), (&d, 1)])
        .iter()
        .zip(&before)
    {
        assert!(now == then || now == "b", "from {then} to {now}");
    }
}

#[test]
fn identity_hash_weights_are_shares_of_the_callers() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let gateway = Gateway::start(&config(
        "identity_hash",
        "",
        &[(&a, 100), (&b, 200), (&c, 500)],
    ));
    let placed = placed(&gateway, 800);
    let counted = counted(&placed);
    assert!(
        (60..150).contains(&counted["a"]) && (150..260).contains(&counted["b"]),
        "{counted:?}"
    );
}

#[test]
fn least_requests_weights_are_shares_of_the_requests() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let gateway = Gateway::start(&config("least_requests", "", &[(&a, 1), (&b, 2), (&c, 5)]));
    let placed = placed(&gateway, 800);
    let counted = counted(&placed);
    assert_eq!(
        (counted["a"], counted["b"], counted["c"]),
        (100, 200, 500),
        "one after the other"
    );
}

/// Sends no response before it is let.
#[derive(Default)]
struct Holder {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Holder {
    fn server(self: &Arc<Self>) -> Upstream {
        let held = Arc::clone(self);
        Upstream::start(move |_| {
            let open = held.open.lock().expect("no panic");
            drop(
                held.opened
                    .wait_while(open, |open| !*open)
                    .expect("no panic"),
            );
            Reply::ok("held")
        })
    }

    fn open(&self) {
        *self.open.lock().expect("no panic") = true;
        self.opened.notify_all();
    }
}

#[test]
fn least_requests_weights_are_shares_of_requests_in_progress() {
    let holder = Arc::new(Holder::default());
    let servers = [1, 2, 5].map(|weight| (holder.server(), weight));
    let listed: Vec<(&Upstream, u32)> = servers
        .iter()
        .map(|(server, weight)| (server, *weight))
        .collect();
    let gateway = Gateway::start(&config("least_requests", "", &listed));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(gateway.request("GET", "/", &[("x-who", "a")]).status, 200));
        }
        let under_way = || {
            servers
                .iter()
                .map(|(server, _)| server.seen().len())
                .collect::<Vec<_>>()
        };
        eventually("all are under way", || {
            under_way().iter().sum::<usize>() == 16
        });
        let under_way = under_way();
        holder.open();
        assert_eq!(under_way, [2, 4, 10]);
    });
}

#[test]
fn least_requests_full_server_is_passed_over_while_another_has_room() {
    for balance in ["least_requests", "round_robin"] {
        let holder = Arc::new(Holder::default());
        let (full, idle) = (holder.server(), named("idle"));
        let more = "connections = 1\npending = 0\nretries = { attempts = 1 }";
        let gateway = Gateway::start(&config(balance, more, &[(&full, 5), (&idle, 1)]));
        std::thread::scope(|scope| {
            // One after the other, until one comes to the server that holds it.
            scope
                .spawn(|| while gateway.request("GET", "/", &[("x-who", "a")]).text() != "held" {});
            eventually("one is held", || full.seen().len() == 1);
            let statuses: Vec<u16> = {
                let mut connection = gateway.connect();
                (0..20)
                    .map(|_| connection.request("GET", "/", &[("x-who", "b")]).status)
                    .collect()
            };
            holder.open();
            assert!(
                statuses.iter().all(|status| *status == 200),
                "{balance}: {statuses:?}"
            );
        });
    }
}

#[test]
fn slow_start_server_added_by_a_reload_gets_its_share_slowly() {
    for balance in ["least_requests", "round_robin"] {
        let (old, new) = (named("old"), named("new"));
        let more = "slow_start = \"1h\"";
        let gateway = Gateway::start(&config(balance, more, &[(&old, 1)]));
        assert_eq!(counted(&placed(&gateway, 10))["old"], 10);
        gateway
            .reload(&config(balance, more, &[(&old, 1), (&new, 1)]))
            .expect("in force");
        let placed = placed(&gateway, 200);
        let new = counted(&placed).get("new").copied().unwrap_or(0);
        assert!(
            (1..60).contains(&new),
            "{balance}: a tenth at first, and not {new} of 200"
        );
    }
}

#[test]
fn slow_start_servers_of_the_first_configuration_take_their_shares_at_once() {
    let (a, b) = (named("a"), named("b"));
    let gateway = Gateway::start(&config(
        "round_robin",
        "slow_start = \"1h\"",
        &[(&a, 1), (&b, 1)],
    ));
    assert_eq!(
        counted(&placed(&gateway, 100)),
        BTreeMap::from([("a", 50), ("b", 50)])
    );
}
