//! The files of the book's page about Envoy, run as they stand there.

use crate::harness::envoy::{Envoy, free_address};
use crate::harness::{Connection, Gateway, Upstream, shown};

const PAGE: &str = "do/envoy-rate-limit-service.md";

/// Envoy and Tollgate with the files of the page, on free ports; `gateway` is the file of Tollgate.
fn start(gateway: &str, upstream: &Upstream) -> Option<(Envoy, Gateway)> {
    let service = free_address().port().to_string();
    // A gateway that only decides has no other listener.
    let gateway = gateway.replace("127.0.0.1:8081", &format!("127.0.0.1:{service}"));
    let gateway = Gateway::start(&format!("[server]\nworkers = 2\n{gateway}"));
    let app = upstream.port().to_string();
    let envoy = Envoy::start(|port| {
        let ports = [
            ("10000", &*port.to_string()),
            ("3000", &*app),
            ("8081", &*service),
        ];
        ports
            .iter()
            .fold(shown(PAGE, "envoy.yaml"), |text, (written, real)| {
                let written = format!("port_value: {written}");
                assert!(text.contains(&written), "{written}");
                text.replace(&written, &format!("port_value: {real}"))
            })
    })?;
    Some((envoy, gateway))
}

fn get(envoy: &Envoy, path: &str, headers: &[(&str, &str)]) -> u16 {
    Connection::open(envoy.address())
        .request("GET", path, headers)
        .status
}

#[test]
fn envoy_page_limits_logins_of_an_address_however_they_are_spelt() {
    let upstream = Upstream::hello();
    let Some((envoy, _gateway)) = start(&shown(PAGE, "gateway.toml"), &upstream) else {
        return;
    };
    // The path is the client's to write, and so is X-Forwarded-For.
    let spellings = [
        "/login",
        "/login?a",
        "//login",
        "/x/../login",
        "/%6Cogin",
        "/login/b",
        "/login?c",
    ];
    let mut admitted = 0;
    for (turn, path) in spellings.iter().enumerate() {
        let client = format!("192.0.2.{turn}");
        admitted += u32::from(get(&envoy, path, &[("x-forwarded-for", &client)]) == 200);
    }
    assert_eq!(admitted, 5);
    assert_eq!(upstream.seen().len(), 5);
    for _ in 0..20 {
        assert_eq!(get(&envoy, "/", &[]), 200);
    }
}

#[test]
fn envoy_page_file_of_the_ratelimit_service_limits_as_well() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("edge.yaml"), shown(PAGE, "edge.yaml")).expect("written");
    let text = format!(
        "[decide]\nlisten = \"grpc://127.0.0.1:8081\"\nenvoy = '{}/*.yaml'\n",
        folder.path().display()
    );
    let Some((envoy, _gateway)) = start(&text, &upstream) else {
        return;
    };
    let statuses = [
        "/login?1", "/login?2", "/login?3", "/login?4", "/login?5", "/login?6",
    ];
    let statuses = statuses.map(|path| get(&envoy, path, &[]));
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(get(&envoy, "/", &[]), 200);
}
