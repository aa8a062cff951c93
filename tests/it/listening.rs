//! Where a gateway listens, and who its connections say they come from before a request.

use std::sync::Barrier;

use crate::harness::{Connection, Gateway, Upstream};
use crate::servers::free_port;

fn on_port(port: u16) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nworkers = 3\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n"
    )
}

#[test]
fn port_that_another_gateway_listens_on_is_an_error_at_the_start() {
    let first = Gateway::start(&on_port(0));
    let port = first.address().port();
    let error = Gateway::try_start(&on_port(port))
        .err()
        .expect("the port is taken");
    assert!(
        error.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{error}"
    );
    let error = Gateway::try_start(&on_port(port).replace("127.0.0.1", "0.0.0.0"))
        .err()
        .expect("the port is taken");
    assert!(
        error.contains(&format!("cannot listen on 0.0.0.0:{port}")),
        "{error}"
    );
    assert_eq!(first.get("/").status, 200);
    first.shutdown();
    Gateway::start(&on_port(port)).shutdown();
}

#[test]
fn port_that_gateways_begin_on_at_once_is_given_to_one_of_them() {
    for _ in 0..5 {
        let port = free_port();
        let barrier = Barrier::new(4);
        let begun = std::thread::scope(|scope| {
            let begin = || {
                barrier.wait();
                Gateway::try_start(&on_port(port)).ok()
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            all.into_iter()
                .filter_map(|one| one.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        assert!(
            begun.len() <= 1,
            "{} gateways listen on {port}",
            begun.len()
        );
    }
}

#[test]
fn proxy_header_without_an_address_lets_no_header_name_one() {
    let upstream = Upstream::hello();
    let gateway = || {
        Gateway::start(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nproxy_protocol = true\n\
             [address]\ntrusted_proxies = [\"127.0.0.1\"]\n\
             [limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"address\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        ))
    };
    let ask = |gateway: &Gateway, header: &[u8], field: &str| {
        let mut connection = Connection::open(gateway.address());
        connection.send(header);
        connection.send(format!("GET / HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n"));
        connection.answer("GET").status
    };
    let version2 = |command: u8, family: u8, rest: &[u8]| {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [
            b"\r\n\r\n\0\r\nQUIT\n",
            &[command, family][..],
            &length,
            rest,
        ]
        .concat()
    };
    let unix = [b'a'; 216];
    for untrusted in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(),
        version2(0x20, 0x00, b""),
        version2(0x20, 0x11, &[192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2]),
        version2(0x21, 0x00, b""),
        version2(0x21, 0x31, &unix),
    ] {
        let gateway = gateway();
        let claims = [
            "X-Forwarded-For: 192.0.2.7",
            "X-Forwarded-For: 192.0.2.8",
            "Forwarded: for=192.0.2.9",
        ];
        assert_eq!(
            claims.map(|claim| ask(&gateway, &untrusted, claim)),
            [200, 429, 429],
            "{untrusted:?}"
        );
        let seen = upstream.last();
        assert_eq!(
            seen.header("x-forwarded-for"),
            Some("127.0.0.1"),
            "{untrusted:?}"
        );
        // A connection whose origin is told, and trusted, may speak for others.
        let told = b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n";
        assert_eq!(ask(&gateway, told, claims[0]), 200);
        assert_eq!(
            upstream.last().header("x-forwarded-for"),
            Some("192.0.2.7, 127.0.0.1")
        );
    }
}
