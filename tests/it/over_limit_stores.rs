//! `over_limit` with limits that are shared, leased, or count places: each target's budget is exact, and nothing is
//! charged twice.

use crate::harness::client::Answer;
use crate::harness::{Gateway, Reply, Upstream, eventually};
use crate::rls::stores::{Shared, each_server};

/// So many requests to a big budget, the next to a cheap one, and a limit by address for both of them.
fn config(urls: [&str; 2], kind: &str, table: &str) -> String {
    let [dear, cheap] = urls;
    format!(
        "[limits.caller]\nrate = \"100/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\n\
         [limits.big]\nrate = \"20/day\"\nper = \"everyone\"\n{kind}\n\
         [limits.cheap]\nrate = \"30/day\"\nper = \"everyone\"\n{kind}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{dear}\"\nlimits = [\"caller\", \"big\"]\n\
         over_limit = {{ instead_of = \"big\", upstream = \"{cheap}\", limits = [\"cheap\"] }}\n{table}"
    )
}

const WINDOW: &str = "algorithm = \"fixed_window\"";

/// What is left of the limit by address, as the response says; a refusal says it of the limits that refuse.
fn left_of_caller(answer: &Answer) -> Option<u64> {
    answer.left_of("caller")
}

/// Sends 80 requests over two gateways at the same time; returns how many of them each upstream got.
fn spend(shared: &Shared, kind: &str) -> [u64; 2] {
    let upstreams = [Upstream::hello(), Upstream::hello()];
    let urls = [&*upstreams[0].url(), &*upstreams[1].url()];
    let config = config(urls, kind, &shared.table);
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let mut connection = gateways[thread % 2].connect();
                scope.spawn(move || {
                    (0..20)
                        .map(|_| connection.request("GET", "/", &[]))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let each = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        each.flatten().collect()
    });
    let seen = upstreams
        .each_ref()
        .map(|upstream| upstream.seen().len() as u64);
    let count = |status| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count() as u64
    };
    let admitted = count(200);
    let refused = count(429);
    assert_eq!(admitted + refused, 80, "{answers:?}");
    assert_eq!(seen[0] + seen[1], admitted);
    // A request that passed on has paid the limit of both targets once, a refused one nothing.
    let left = answers.iter().filter_map(left_of_caller).min();
    assert_eq!(left, Some(100 - admitted));
    seen
}

#[test]
fn over_limit_budgets_are_exact_on_shared_stores() {
    each_server(|shared| {
        assert_eq!(spend(&shared, WINDOW), [20, 30]);
    });
}

#[test]
fn over_limit_budgets_of_leased_limits_are_never_exceeded() {
    each_server(|shared| {
        let [dear, cheap] = spend(&shared, "lease = true");
        assert!(dear <= 20 && cheap <= 30, "{dear} and {cheap}");
        assert!(dear > 0 && cheap > 0, "{dear} and {cheap}");
    });
}

#[test]
fn over_limit_place_that_is_free_again_is_taken_first() {
    let upstreams = [(); 2].map(|()| Upstream::start(|_| Reply::Silence));
    let gateway = Gateway::start(&format!(
        "[limits.few]\nin_flight = 1\nper = \"everyone\"\n[limits.more]\nin_flight = 2\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"few\"]\n\
         over_limit = {{ instead_of = \"few\", upstream = \"{}\", limits = [\"more\"] }}\n",
        upstreams[0].url(),
        upstreams[1].url()
    ));
    let seen = || upstreams.each_ref().map(|upstream| upstream.seen().len());
    let open = |expected: [usize; 2]| {
        let mut connection = gateway.connect();
        connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        eventually("an upstream gets it", || seen() == expected);
        connection
    };
    let first = open([1, 0]);
    let (second, _third) = (open([1, 1]), open([1, 2]));
    assert_eq!(gateway.get("/").status, 429, "all three places are taken");
    drop(first);
    // Its place is free as soon as the gateway notices; until then requests are refused.
    let mut connections = Vec::new();
    eventually("the place is free", || {
        let mut connection = gateway.connect();
        connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        connections.push(connection);
        seen()[0] == 2
    });
    assert_eq!(seen()[1], 2, "the first target has a place");
    drop(second);
}
