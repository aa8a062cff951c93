//! NGINX in other arrangements of the book: open without Tollgate, and as ingress-nginx configures it.

use std::net::TcpListener;

use super::{FORGED, Kind, NGINX, Ports, Proxy, free_port, shown, tollgate};
use crate::harness::{Gateway, Nginx, Upstream, eventually, load};
use crate::rls::stores::{Server, Shared, StoreKind};

/// NGINX with the lines of the page that let requests pass without Tollgate.
const NGINX_OPEN: Kind = Kind {
    start: |ports| {
        let mut text = shown("nginx", "nginx.conf");
        for (file, before) in [
            (
                "nginx-pass.conf",
                "        internal;\n        proxy_pass http://tollgate",
            ),
            ("nginx-pass-location.conf", "    location @refused"),
        ] {
            assert!(text.contains(before), "{before}");
            text = text.replacen(before, &format!("{}{before}", shown("nginx", file)), 1);
        }
        Nginx::start(|own| ports.into(&text, own)).map(Proxy::Nginx)
    },
    down: 200,
    slow: Some(200),
    ..NGINX
};

#[test]
fn nginx_with_the_lines_that_let_requests_pass_admits_them_only_without_tollgate() {
    let (kind, upstream) = (NGINX_OPEN, Upstream::hello());
    let ports = Ports {
        decide: free_port(),
        upstream: upstream.port(),
    };
    let Some(proxy) = (kind.start)(ports) else {
        return;
    };
    let twice = || [(); 2].map(|()| proxy.request("/", &[]).status);
    assert_eq!(twice(), [200; 2]);
    {
        let _slow = TcpListener::bind(("127.0.0.1", ports.decide)).expect("the port is free");
        assert_eq!(twice(), [200; 2]);
    }
    let gateway = tollgate(kind, ports, Some("rate = \"1/hour\""));
    eventually("Tollgate decides", || proxy.request("/", &[]).status == 429);
    assert_eq!(twice(), [429; 2]);
    gateway.shutdown();
    assert_eq!(twice(), [200; 2]);
}

/// The location that the annotation of ingress-nginx becomes.
const INGRESS: Kind = Kind {
    start: |ports| {
        let text = format!(
            "server {{ listen 127.0.0.1:8082;\n{}\
             location / {{ auth_request /_external-auth; proxy_pass http://127.0.0.1:3000; }} }}\n",
            shown("nginx", "ingress.conf")
        );
        Nginx::start(|own| ports.into(&text, own)).map(Proxy::Nginx)
    },
    ..NGINX
};

#[test]
fn nginx_ingress_annotation_limits_and_refuses_forged_headers() {
    let upstream = Upstream::hello();
    let ports = Ports {
        decide: free_port(),
        upstream: upstream.port(),
    };
    let Some(proxy) = (INGRESS.start)(ports) else {
        return;
    };
    let _gateway = tollgate(INGRESS, ports, Some("rate = \"2/hour\""));
    let statuses = [(); 3].map(|()| proxy.request("/limited?a=b", &[]).status);
    assert_eq!(statuses, [200, 200, 403]);
    for header in FORGED {
        let answer = proxy.request("/limited", &[header]);
        assert_eq!(answer.status, 403, "{header:?}");
    }
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(proxy.request("/free", &[]).status, 200);
}

/// NGINX asks two gateways in turn, which share their buckets.
fn admits_what_the_limit_says_on(server: Option<Server>) {
    let Some(server) = server else {
        return;
    };
    let shared = Shared::new(server);
    let file = shown("nginx", "gateway.toml")
        .replace(":8080", ":0")
        .replace(":9190", ":0");
    let file = file + &shared.table;
    let gateways = [(); 2].map(|()| Gateway::start_in_real_time(&file));
    let servers = gateways
        .each_ref()
        .map(|gateway| format!("server {};", gateway.deciding()));
    let upstream = Upstream::hello();
    let text = shown("nginx", "nginx.conf")
        .replace("server 127.0.0.1:9190;", &servers.join(" "))
        .replace(":3000", &format!(":{}", upstream.port()));
    let nginx = Nginx::start(|own| text.replace(":8082", &format!(":{own}")));
    let Some(nginx) = nginx else {
        return;
    };
    let address = ([127, 0, 0, 1], nginx.port()).into();
    let admitted = load::ten_a_second(address, &[], |refused| {
        assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
        let id = refused.header("x-tollgate-decision").unwrap_or_default();
        let is_digit = |byte: u8| byte.is_ascii_hexdigit();
        assert!(id.len() == 16 && id.bytes().all(is_digit), "{refused:?}");
    });
    assert_eq!(upstream.seen().len() as u64, admitted);
}

#[test]
fn nginx_before_gateways_on_one_mariadb_admits_what_the_limit_says() {
    admits_what_the_limit_says_on(StoreKind::Mysql.start());
}

#[test]
fn nginx_before_gateways_on_one_redis_admits_what_the_limit_says() {
    admits_what_the_limit_says_on(StoreKind::Redis.start());
}
