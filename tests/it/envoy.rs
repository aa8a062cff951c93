//! The real Envoy in front: its rate limit filter asks the gateway, which decides and forwards nothing.

mod page;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::harness::envoy::{Envoy, free_address};
use crate::harness::{Connection, Gateway, Upstream, eventually};

/// How the filter treats a service that does not respond.
#[derive(Clone, Copy)]
pub(crate) struct Filter {
    pub(crate) domain: &'static str,
    pub(crate) failure_mode_deny: bool,
    pub(crate) timeout: &'static str,
}

pub(crate) const FILTER: Filter = Filter {
    domain: "edge",
    failure_mode_deny: false,
    timeout: "5s",
};

/// An Envoy with the filter, in front of `upstream`; it asks `services` in turn. A descriptor has the header `x-user`; `/back` gives a hit back.
pub(crate) fn envoy(services: &[SocketAddr], upstream: &Upstream, filter: Filter) -> Option<Envoy> {
    let app = upstream.port();
    let endpoint = |service: &SocketAddr| {
        let port = service.port();
        format!(
            "{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}"
        )
    };
    let services: Vec<String> = services.iter().map(endpoint).collect();
    let services = services.join(", ");
    let Filter {
        domain,
        failure_mode_deny,
        timeout,
    } = filter;
    Envoy::start(|port| {
        format!(
            r#"
static_resources:
  listeners:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{ prefix: /back }}
                          route:
                            cluster: app
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: user }} }}]
                                  hits_addend: {{ number: 1, is_negative_hits: true }}
                        - match: {{ prefix: / }}
                          route:
                            cluster: app
                            rate_limits:
                              - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: user }} }}]
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: {domain}
                      timeout: {timeout}
                      failure_mode_deny: {failure_mode_deny}
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {{ envoy_grpc: {{ cluster_name: tollgate }} }}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: app
      connect_timeout: 5s
      load_assignment:
        cluster_name: app
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {app} }} }} }} }}] }}]
    - name: tollgate
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment:
        cluster_name: tollgate
        endpoints: [{{ lb_endpoints: [{services}] }}]
"#
        )
    })
}

fn config(listen: SocketAddr, rate: &str, burst: u32) -> String {
    format!(
        "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://{listen}\"\n\
         [limits.users]\nrate = \"{rate}\"\nburst = {burst}\nper = \"descriptor\"\n\
         [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"user\" }}]\nlimits = [\"users\"]\n"
    )
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn get(envoy: &Envoy, path: &str, user: &str) -> crate::harness::client::Answer {
    Connection::open(envoy.address()).request("GET", path, &[("x-user", user)])
}

#[test]
fn envoy_client_over_its_limit_gets_our_429_and_does_not_reach_the_upstream() {
    let (gateway, upstream) = (
        Gateway::start(&config(anywhere(), "2/hour", 2)),
        Upstream::hello(),
    );
    let Some(envoy) = envoy(&[gateway.deciding()], &upstream, FILTER) else {
        return;
    };
    for left in [1, 0] {
        let admitted = get(&envoy, "/", "ann");
        assert_eq!(admitted.status, 200, "{}", admitted.text());
        let told = admitted.header("ratelimit").expect("a quota header");
        assert!(
            told.starts_with(&format!("\"users\";r={left};t=")),
            "{told}"
        );
    }
    let refused = get(&envoy, "/", "ann");
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.header("ratelimit-policy"),
        Some("\"users\";q=2;w=3600")
    );
    assert_eq!(refused.header("retry-after"), Some("1800"));
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(
        refused.json()["violated-policies"],
        serde_json::json!(["users"])
    );
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(get(&envoy, "/", "bob").status, 200);
    // A hit that Envoy gives back admits another request.
    assert_eq!(get(&envoy, "/back", "ann").status, 200);
    assert_eq!(get(&envoy, "/", "ann").status, 200);
    assert_eq!(get(&envoy, "/", "ann").status, 429);
    // A client that waits as long as it was told is admitted.
    gateway.advance(Duration::from_secs(1_800));
    assert_eq!(get(&envoy, "/", "ann").status, 200);
}

#[test]
fn envoy_with_an_unknown_domain_admits_every_request() {
    let (gateway, upstream) = (
        Gateway::start(&config(anywhere(), "1/hour", 1)),
        Upstream::hello(),
    );
    let filter = Filter {
        domain: "elsewhere",
        failure_mode_deny: true,
        ..FILTER
    };
    let Some(envoy) = envoy(&[gateway.deciding()], &upstream, filter) else {
        return;
    };
    for _ in 0..3 {
        assert_eq!(get(&envoy, "/", "ann").status, 200);
    }
    let metrics = gateway.admin_get("/metrics").text();
    let line = "tollgate_rate_limit_service_requests_total{outcome=\"unknown_domain\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn envoy_outside_the_trusted_networks_decides_by_its_failure_mode_and_charges_nothing() {
    let upstream = Upstream::hello();
    let trusting = config(anywhere(), "1/hour", 1);
    let gateway =
        Gateway::start(&trusting.replace("\n[limits", "\ntrusted = [\"192.0.2.0/24\"]\n[limits"));
    for (deny, status) in [(false, 200), (true, 500)] {
        let filter = Filter {
            failure_mode_deny: deny,
            ..FILTER
        };
        let Some(envoy) = envoy(&[gateway.deciding()], &upstream, filter) else {
            return;
        };
        for _ in 0..2 {
            let forged = [("x-user", "ann"), ("x-forwarded-for", "192.0.2.1")];
            let answer = Connection::open(envoy.address()).request("GET", "/", &forged);
            assert_eq!((answer.status, answer.header("ratelimit")), (status, None));
        }
    }
    let Some(envoy) = envoy(&[gateway.deciding()], &upstream, FILTER) else {
        return;
    };
    gateway.reload(&trusting).expect("valid");
    assert_eq!(
        get(&envoy, "/", "ann")
            .header("ratelimit")
            .map(|told| told.contains("r=0")),
        Some(true)
    );
    assert_eq!(get(&envoy, "/", "ann").status, 429);
}

#[test]
fn envoy_decides_by_its_failure_mode_while_the_service_is_down_and_limits_when_it_is_back() {
    let upstream = Upstream::hello();
    let at = free_address();
    for deny in [false, true] {
        let filter = Filter {
            failure_mode_deny: deny,
            ..FILTER
        };
        let Some(envoy) = envoy(&[at], &upstream, filter) else {
            return;
        };
        let without = if deny { 500 } else { 200 };
        assert_eq!(get(&envoy, "/", "ann").status, without, "not started yet");
        for round in 0..2 {
            let gateway = Gateway::start(&config(at, "1/hour", 1));
            let user = format!("user{round}");
            eventually("Envoy asks again", || {
                get(&envoy, "/", &user).header("ratelimit").is_some()
            });
            assert_eq!(get(&envoy, "/", &user).status, 429);
            drop(gateway);
            assert_eq!(get(&envoy, "/", &user).status, without, "stopped");
        }
    }
}

#[test]
fn envoy_decides_by_its_failure_mode_while_the_service_is_slow() {
    let upstream = Upstream::hello();
    // It accepts connections and says nothing.
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let at = silent.local_addr().expect("its address");
    for (deny, status) in [(false, 200), (true, 500)] {
        let filter = Filter {
            failure_mode_deny: deny,
            timeout: "0.1s",
            ..FILTER
        };
        let Some(envoy) = envoy(&[at], &upstream, filter) else {
            return;
        };
        assert_eq!(get(&envoy, "/", "ann").status, status);
    }
}

/// 64 clients at once, ten at first and ten a second: the clock of the gateway is moved by three seconds.
#[test]
fn envoy_admits_exactly_the_burst_and_the_rate_of_64_clients() {
    let (gateway, upstream) = (
        Gateway::start(&config(anywhere(), "10/second", 10)),
        Upstream::hello(),
    );
    let filter = Filter {
        failure_mode_deny: true,
        timeout: "30s",
        ..FILTER
    };
    let Some(envoy) = envoy(&[gateway.deciding()], &upstream, filter) else {
        return;
    };
    let mut admitted = 0;
    for second in 0..4 {
        let clients: Vec<_> = (0..64).map(|_| Connection::open(envoy.address())).collect();
        admitted += std::thread::scope(|scope| {
            let ask = |mut client: Connection| {
                let statuses =
                    (0..3).map(|_| client.request("GET", "/", &[("x-user", "all")]).status);
                let statuses: Vec<u16> = statuses.collect();
                assert!(
                    statuses.iter().all(|status| [200, 429].contains(status)),
                    "{statuses:?}"
                );
                statuses.into_iter().filter(|status| *status == 200).count()
            };
            let running: Vec<_> = clients
                .into_iter()
                .map(|client| scope.spawn(move || ask(client)))
                .collect();
            let counts = running
                .into_iter()
                .map(|thread| thread.join().expect("it ends"));
            counts.sum::<usize>()
        });
        assert_eq!(admitted, 10 * (second + 1));
        gateway.advance(Duration::from_secs(1));
    }
}
