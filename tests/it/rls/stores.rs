//! Envoy's rate limit service on every store: several gateways on one server, a server that is down or slow, and the
//! exact number that the real Envoy admits.

use serde_json::{Value, json};

use super::{CONFIG, Client, descriptor, is_ok};
use crate::envoy::{FILTER, Filter, envoy};
use crate::harness::envoy::free_address;
use crate::harness::{Connection, Gateway, Upstream, eventually, load};
pub(crate) use crate::servers::{Server, StoreKind};

/// A server, and the table of the file that names it.
pub(crate) struct Shared {
    server: Server,
    pub(crate) table: String,
    _folder: tempfile::TempDir,
}

impl Shared {
    pub(crate) fn new(server: Server) -> Self {
        let (kind, url) = (server.name(), server.url());
        let folder = tempfile::tempdir().expect("a folder");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("written");
        let table = format!(
            "\n[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"2s\"\n\
             key_secret_file = '{}'\n",
            secret.display()
        );
        Self {
            server,
            table,
            _folder: folder,
        }
    }

    /// Stops the server as an operator does.
    pub(crate) fn stop(&mut self) {
        self.server.stop();
    }

    /// Starts it again.
    pub(crate) fn run(&mut self) {
        self.server.run();
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: &str) {
        self.server.signal(signal);
    }

    /// The port of the server in its URL.
    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }
}

/// The servers that are installed here, one after the other.
pub(crate) fn each_server(test: impl Fn(Shared)) {
    for kind in [StoreKind::Redis, StoreKind::Postgres, StoreKind::Mysql] {
        if let Some(server) = kind.start() {
            test(Shared::new(server));
        }
    }
}

#[test]
fn rls_descriptors_are_charged_together_or_not_at_all_on_shared_stores() {
    each_server(charges_together);
}

fn charges_together(shared: Shared) {
    let config = format!("{CONFIG}{}", shared.table);
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    let clients: Option<Vec<Client>> = gateways.iter().map(Client::of).collect();
    let Some(mut clients) = clients else {
        return;
    };
    let login = "user=ann path=/login/a";
    for (place, left) in [(0, 1), (1, 0)] {
        let response = clients[place].ask(&[login, "all=1"]);
        assert!(is_ok(&response), "{response}");
        assert_eq!(response["statuses"][0]["limitRemaining"], left);
    }
    for client in &mut clients {
        let response = client.ask(&[login, "all=1"]);
        assert!(!is_ok(&response), "{response}");
        let other = &response["statuses"][1];
        assert_eq!(
            (&other["code"], &other["limitRemaining"]),
            (&json!("OK"), &json!(2))
        );
    }
    assert_eq!(
        clients[1].ask(&["all=1"])["statuses"][0]["limitRemaining"],
        1
    );
    // One unit of `total` is left for 64 requests at once, and only the request that gets it is charged on `login`.
    let descriptors = ["user=bob path=/login", "all=1"].map(descriptor);
    let request = json!({"domain": "edge", "descriptors": descriptors});
    let flood = json!({"do": "flood", "threads": 16, "each": 2, "request": request});
    clients.iter_mut().for_each(|client| client.0.say(&flood));
    let counts: Vec<Value> = clients.iter_mut().map(|client| client.0.hear()).collect();
    let sum = |name: &str| {
        counts
            .iter()
            .filter_map(|one| one[name].as_u64())
            .sum::<u64>()
    };
    assert_eq!([sum("OK"), sum("OVER_LIMIT"), sum("error")], [1, 63, 0]);
    let bob = clients[0].ask(&["user=bob path=/login"]);
    assert_eq!(bob["statuses"][0]["limitRemaining"], 0, "{bob}");
    // A hit that one gateway gives back can be spent at the other one.
    let back = json!({"hitsAddend": 1, "isNegativeHits": true});
    assert!(clients[0].admits(login, &back));
    let mut look = descriptor(login);
    look["hitsAddend"] = json!(0);
    let look = json!({"domain": "edge", "descriptors": [look]});
    eventually("the hit is given back", || {
        clients[1].request(look.clone())["statuses"][0]["limitRemaining"] == 1
    });
    assert!(clients[1].admits(login, &json!({})));
    assert!(!clients[0].admits(login, &json!({})));
}

#[test]
fn rls_request_that_quotas_refuse_charges_no_other_limit_at_any_instant() {
    each_server(charges_nothing_when_quotas_refuse);
}

fn charges_nothing_when_quotas_refuse(shared: Shared) {
    let gateway = Gateway::start(&format!("{CONFIG}{}", shared.table));
    let (Some(mut asking), Some(mut looking)) = (Client::of(&gateway), Client::of(&gateway)) else {
        return;
    };
    let quotas = ["first=a", "second=a"];
    for quota in [quotas, quotas].concat() {
        eventually("the store decides", || is_ok(&asking.ask(&[quota])));
    }
    let all = [quotas[0], quotas[1], "all=1"].map(descriptor);
    let request = json!({"domain": "edge", "descriptors": all});
    let flood = json!({"do": "flood", "threads": 8, "each": 40, "request": request});
    let counts = std::thread::scope(|scope| {
        let flood = scope.spawn(|| asking.0.tell(&flood));
        let mut look = descriptor("all=1");
        look["hitsAddend"] = json!(0);
        let look = json!({"domain": "edge", "descriptors": [look]});
        loop {
            let ended = flood.is_finished();
            let response = looking.request(look.clone());
            assert_eq!(response["statuses"][0]["limitRemaining"], 4, "{response}");
            if ended {
                break flood.join().expect("it ends");
            }
        }
    });
    assert_eq!(counts["OVER_LIMIT"], 320, "{counts}");
}

/// A gateway that only decides is not ready where every rule refuses without its store.
#[test]
fn rls_store_down_is_not_serving_where_every_rule_refuses_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("written");
    for (second, is_ready) in [("refuse", false), ("allow", true)] {
        let rule = |key: &str, when_down: &str| {
            format!(
                "[limits.{key}]\nrate = \"1/hour\"\nper = \"descriptor\"\nwhen_down = \"{when_down}\"\n\
                 [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"{key}\" }}]\nlimits = [\"{key}\"]\n"
            )
        };
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\n\
             [store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\nwhen_down = \"refuse\"\nkey_secret_file = '{}'\n{}{}",
            crate::servers::free_port(),
            secret.display(),
            rule("first", "refuse"),
            rule("second", second),
        ));
        let (status, words) = if is_ready {
            (200, "1 of 2 routes and rules for descriptors refuse")
        } else {
            (503, "2 of 2 routes and rules for descriptors refuse")
        };
        eventually("the store is known to be down", || {
            let ready = gateway.admin_get("/readyz?verbose");
            ready.text().contains(words) && ready.status == status
        });
        if let Some(mut client) = Client::of(&gateway) {
            let health = if is_ready { "SERVING" } else { "NOT_SERVING" };
            assert_eq!(client.0.tell(&json!({"do": "health"})), health);
            assert_eq!(client.0.tell(&json!({"do": "watch"})), health);
        }
    }
}

#[test]
fn rls_store_down_or_slow_is_decided_by_when_down_and_limits_again_afterwards() {
    each_server(survives_its_store);
}

fn survives_its_store(mut shared: Shared) {
    let rule = |key: &str| {
        format!(
            "[[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"{key}\" }}]\nlimits = [\"{key}\"]\n"
        )
    };
    // A store's deadline is one of the gateway's clock.
    let gateway = Gateway::start_in_real_time(&format!(
        "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\n{}{}\
         [limits.strict]\nrate = \"1/hour\"\nper = \"descriptor\"\n\
         [limits.open]\nrate = \"1/hour\"\nper = \"descriptor\"\nwhen_down = \"allow\"\n{}",
        rule("strict"),
        rule("open"),
        shared.table
    ));
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let status = |response: &Value| {
        let body = response["rawBody"].as_str().expect("text");
        let document: Value = serde_json::from_str(body).expect("a problem document");
        document["status"].clone()
    };
    let mut callers = 0;
    // A caller that has not been seen yet gets its one unit, and no more.
    let mut limits = |client: &mut Client| {
        for key in ["strict", "open"] {
            let mut caller = String::new();
            eventually("the store decides", || {
                callers += 1;
                caller = format!("{key}={callers}");
                let response = client.ask(&[&caller]);
                is_ok(&response) && response["statuses"][0]["limitRemaining"] == 0
            });
            let response = client.ask(&[&caller]);
            assert!(!is_ok(&response), "{response}");
            assert_eq!(status(&response), 429, "{response}");
        }
    };
    let undecided = |client: &mut Client| {
        let response = client.ask(&["strict=a"]);
        assert!(!is_ok(&response), "{response}");
        assert_eq!(status(&response), 503, "{response}");
        assert!([0; 2].iter().all(|_| is_ok(&client.ask(&["open=a"]))));
        // Together the strict one decides.
        assert!(!is_ok(&client.ask(&["open=a", "strict=a"])));
    };
    limits(&mut client);
    shared.stop();
    undecided(&mut client);
    shared.run();
    limits(&mut client);
    shared.signal("-STOP");
    undecided(&mut client);
    shared.signal("-CONT");
    limits(&mut client);
}

/// The gateway's file for [`envoy`].
fn users(rate: &str, listen: &str, store: &str) -> String {
    format!(
        "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://{listen}\"\n[limits.users]\n{rate}\nper = \"descriptor\"\n\
         [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"user\" }}]\nlimits = [\"users\"]\n{store}"
    )
}

const STRICT: Filter = Filter {
    failure_mode_deny: true,
    timeout: "30s",
    ..FILTER
};

/// So many gateways behind one Envoy admit what one would.
fn admits_exactly(count: usize, store: &str) {
    let config = users("rate = \"10/second\"\nburst = 10", "127.0.0.1:0", store);
    let gateways: Vec<Gateway> = (0..count)
        .map(|_| Gateway::start_in_real_time(&config))
        .collect();
    let services: Vec<_> = gateways.iter().map(Gateway::deciding).collect();
    let upstream = Upstream::hello();
    let Some(envoy) = envoy(&services, &upstream, STRICT) else {
        return;
    };
    let admitted = load::ten_a_second(envoy.address(), &[("x-user", "all")], |refused| {
        assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
    });
    assert_eq!(upstream.seen().len() as u64, admitted);
    for gateway in &gateways {
        let metrics = gateway.admin_get("/metrics").text();
        let none = "tollgate_rate_limit_service_requests_total{outcome=\"over_limit\"} 0\n";
        assert!(!metrics.contains(none), "Envoy asks every gateway");
    }
}

#[test]
fn rls_one_gateway_admits_exactly_the_limit_to_64_clients_of_envoy() {
    admits_exactly(1, "");
}

#[test]
fn rls_four_gateways_on_one_redis_admit_exactly_the_limit_to_64_clients_of_envoy() {
    if let Some(server) = StoreKind::Redis.start() {
        admits_exactly(4, &Shared::new(server).table);
    }
}

#[test]
fn rls_gateways_on_one_postgres_admit_exactly_the_limit_to_64_clients_of_envoy() {
    if let Some(server) = StoreKind::Postgres.start() {
        admits_exactly(2, &Shared::new(server).table);
    }
}

#[test]
fn rls_gateways_on_one_mariadb_admit_exactly_the_limit_to_64_clients_of_envoy() {
    if let Some(server) = StoreKind::Mysql.start() {
        admits_exactly(2, &Shared::new(server).table);
    }
}

#[test]
fn rls_gateway_restarted_on_a_shared_store_refills_no_caller_of_envoy() {
    each_server(|shared| {
        let (at, upstream) = (free_address(), Upstream::hello());
        let config = users("rate = \"2/hour\"", &at.to_string(), &shared.table);
        let Some(envoy) = envoy(&[at], &upstream, STRICT) else {
            return;
        };
        let get = || {
            let mut connection = Connection::open(envoy.address());
            connection.request("GET", "/", &[("x-user", "ann")]).status
        };
        let first = Gateway::start(&config);
        // Whether a request is charged is known only when Envoy gets the response.
        eventually("Envoy asks", || get() == 429);
        let admitted = upstream.seen().len();
        assert!(admitted <= 2, "{admitted}");
        drop(first);
        assert_eq!(get(), 500, "without a gateway");
        let _second = Gateway::start(&config);
        eventually("Envoy asks the next one", || get() == 429);
        // A decision that came too late for Envoy was given back, and can be made again.
        let in_all = upstream.seen().len();
        assert!(in_all <= 2, "{admitted}, then {in_all} in all");
    });
}
