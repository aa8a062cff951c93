//! NGINX, and ingress-nginx, which configures one.

use super::*;

/// `limit_req`: excess in thousandths of a request, rounded down at each request; keys that were quiet for a minute
/// and owe nothing are forgotten.
struct Nginx {
    rate: i64,
    burst: i64,
    keys: HashMap<u8, (i64, u64)>,
}

impl Nginx {
    fn new(rate: i64, burst: i64) -> Self {
        Self {
            rate,
            burst: burst * 1_000,
            keys: HashMap::new(),
        }
    }

    /// The excess of a request, and what is kept if it is admitted. `None`: it is refused.
    fn excess(&mut self, request: Request) -> Option<i64> {
        let now = request.at / MILLISECOND;
        let rate = self.rate;
        let owes = |excess: i64, last: u64| excess - rate * (now - last).cast_signed() / 1_000;
        self.keys
            .retain(|_, (excess, last)| now - *last < 60_000 || owes(*excess, *last) > 0);
        let excess = match self.keys.get(&request.client) {
            None => 0,
            Some((excess, last)) => (owes(*excess, *last) + 1_000).max(0),
        };
        (excess <= self.burst).then_some(excess)
    }

    fn account(&mut self, request: Request, excess: i64) {
        self.keys
            .insert(request.client, (excess, request.at / MILLISECOND));
    }
}

fn nginx(zones: Vec<Nginx>) -> Model {
    let mut zones = zones;
    Box::new(move |request| {
        let found: Option<Vec<i64>> = zones.iter_mut().map(|zone| zone.excess(request)).collect();
        let Some(found) = found else { return false };
        zones
            .iter_mut()
            .zip(found)
            .for_each(|(zone, excess)| zone.account(request, excess));
        true
    })
}

fn nginx_conf(zones: &str, uses: &str) -> String {
    format!(
        "http {{ {zones}\nserver {{ listen 80; location / {{ {uses}\nproxy_pass http://127.0.0.1:3000; }} }} }}"
    )
}

#[test]
fn equal_nginx_rate_per_second_judges_every_request_alike() {
    let steps = [MILLISECOND, SECOND];
    for (rate, rest, burst) in [
        (2_u32, "burst=5 nodelay", 5),
        (1, "", 0),
        (10, "burst=7", 7),
        (5, "burst=4 delay=2", 4),
        (7, "burst=9 nodelay", 9),
    ] {
        let zone = format!("limit_req_zone $binary_remote_addr zone=a:10m rate={rate}r/s;");
        let text = nginx_conf(&zone, &format!("limit_req zone=a {rest};"));
        equal_at(
            "nginx.conf",
            &text,
            Peer::Nginx,
            &steps,
            u64::from(rate),
            &|| nginx(vec![Nginx::new(i64::from(rate) * 1_000, burst)]),
        );
    }
    let zones = "limit_req_zone $binary_remote_addr zone=a:10m rate=2r/s; limit_req_zone $remote_addr zone=b:10m rate=60r/m;";
    let text = nginx_conf(
        zones,
        "limit_req zone=a burst=3 nodelay; limit_req zone=b burst=20 nodelay;",
    );
    equal("nginx.conf", &text, Peer::Nginx, &steps, &|| {
        nginx(vec![Nginx::new(2_000, 3), Nginx::new(1_000, 20)])
    });
}

#[test]
fn differs_nginx_rate_per_minute_only_as_the_report_says() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:10m rate=50r/m;";
    let made = imported(
        "nginx.conf",
        &nginx_conf(zone, "limit_req zone=a burst=20 nodelay;"),
        Peer::Nginx,
    );
    let Outcome::Differs(differences) = &made.findings[0].outcome else {
        panic!("{}", made.report())
    };
    assert!(
        differences
            .iter()
            .all(|difference| difference.favour == tollgate_import::Favour::Clients)
    );
    assert!(
        made.report()
            .contains("833/1000 a second, 49.98 a minute; here it is 50 a minute, 0.04 % more"),
        "{}",
        made.report()
    );
    let mut differ_somewhere = false;
    for seed in 0..8 {
        let requests = trace(seed, MILLISECOND, 1);
        let (differ, theirs, ours) = compared(&made, &requests, nginx(vec![Nginx::new(833, 20)]));
        differ_somewhere |= differ > 0;
        // At most 0.04 % and 0.1 % more of what is admitted, and one request for each client's last moment.
        let admitted = requests.len() as u64 - theirs;
        assert!(
            ours <= theirs && theirs - ours <= admitted / 500 + 3,
            "seed {seed}: {theirs} and {ours}"
        );
    }
    assert!(
        differ_somewhere,
        "a report that says `differs` is about something"
    );
}

#[test]
fn equal_nginx_connections_judge_every_request_alike() {
    let zone = "limit_conn_zone $binary_remote_addr zone=c:10m;";
    equal(
        "nginx.conf",
        &nginx_conf(zone, "limit_conn c 2;"),
        Peer::Nginx,
        &[MILLISECOND],
        &|| in_flight(2),
    );
}

#[test]
fn equal_ingress_annotations_judge_every_request_alike() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: a\n  annotations:\n    \
                nginx.ingress.kubernetes.io/limit-rps: \"2\"\nspec:\n  rules:\n    - http:\n        paths:\n          \
                - path: /\n            pathType: Prefix\n            backend: {service: {name: a, port: {number: 80}}}\n";
    // Five times the rate is the burst.
    equal(
        "ingress.yaml",
        text,
        Peer::Ingress,
        &[MILLISECOND, SECOND],
        &|| nginx(vec![Nginx::new(2_000, 10)]),
    );
}

#[test]
fn differs_nginx_held_requests_only_by_microseconds() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:10m rate=7r/s;";
    let text = nginx_conf(zone, "limit_req zone=a burst=9;");
    let made = imported("nginx.conf", &text, Peer::Nginx);
    assert!(
        made.report().contains("each waits up to 1 us longer"),
        "{}",
        made.report()
    );
    let mut all = 0;
    for seed in 0..4 {
        let (differ, ..) = compared(
            &made,
            &trace(seed, MILLISECOND, 7),
            nginx(vec![Nginx::new(7_000, 9)]),
        );
        assert!(differ < 10, "seed {seed}: {differ}");
        all += differ;
    }
    assert!(all > 0, "a report that says `differs` is about something");
}

#[test]
fn import_nginx_key_of_a_server_without_a_name_limits_no_request() {
    let zone = "limit_req_zone $server_name zone=a:10m rate=7r/s;";
    let made = imported(
        "nginx.conf",
        &nginx_conf(zone, "limit_req zone=a;"),
        Peer::Nginx,
    );
    let outcome = &made.findings[0].outcome;
    assert!(
        matches!(outcome, Outcome::Nothing(why) if why.contains("the key is empty")),
        "{}",
        made.report()
    );
    assert!(!made.toml.contains("[limits"), "{}", made.toml);
}
