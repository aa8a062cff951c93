//! An upgrade that the upstream accepts is never cheaper than the response in whose place it stands.

use crate::harness::{Gateway, Reply, Upstream, eventually};
use crate::spending::{admitted, three};

/// A request for a tunnel, which [`tunnelling`] offers.
const UPGRADE: [(&str, &str); 3] = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
];

fn tunnelling() -> Upstream {
    Upstream::start(|seen| {
        match seen.header("upgrade") {
        Some(_) => Reply::Close(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n".to_vec(),
        ),
        None => Reply::ok("y"),
    }
    })
}

#[test]
fn upgrade_counts_as_the_success_in_whose_place_it_stands() {
    for (numbers, most) in [
        ("count = [\"2xx\"]", 3),
        ("refund_on = [\"1xx\"]", 3),
        ("count = [\"101\"]", 3),
        ("count = \"failures\"", 10),
        ("refund_on = [\"2xx\", \"101\"]", 10),
    ] {
        let upstream = tunnelling();
        let gateway = Gateway::start(&three(numbers, &upstream.url(), ""));
        let count = admitted(&gateway, |connection| {
            let status = connection.request("GET", "/", &UPGRADE).status;
            assert!(matches!(status, 101 | 429), "{status}");
        });
        assert_eq!(count, most, "{numbers}");
    }
}

#[test]
fn settle_by_a_header_of_an_upgrade_without_it_costs_what_a_success_without_it_costs() {
    for (untold, cost) in [("estimate", 10), ("max", 300)] {
        let upstream = tunnelling();
        let gateway = Gateway::start(&format!(
            "[limits.it]\nrate = \"1000/day\"\nburst = 1000\nper = \"everyone\"\n\
             settle = {{ from = \"header:x-cost\", estimate = 10, max = 300, untold = \"{untold}\" }}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        ));
        let mut connection = gateway.connect();
        assert_eq!(connection.request("GET", "/", &UPGRADE).status, 101);
        drop(connection);
        eventually("the tunnel is settled", || {
            gateway
                .admin_get("/metrics")
                .text()
                .contains("tollgate_requests_total{")
        });
        let left = gateway.get("/").left();
        assert_eq!(left, Some(1000 - cost - 10), "{untold}");
    }
}
