//! What an upstream's settings promise: retries, health, bounds, which of them get the client's
//! address, TLS, Unix sockets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::origin::{OK, Origin};
use super::relay::{defaults, gateway, gateway_of, in_turn, route, server, upstream};
use super::wire::{read_head, read_response, wait_until};
use crate::forward::{ServerHealth, UpstreamHealth};
use tollgate_limit::Micros;
use tollgate_policy::upstream::{Balance, Health, PemFile, ProxyProtocol, ServerAddress, TlsFiles};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

#[test]
fn retry_on_status_goes_to_another_server_for_repeatable_requests() {
    let (ill, well) = (Origin::responding(UNAVAILABLE), Origin::responding(OK));
    let mut two = upstream(ill.address);
    two.servers.push(server(well.address));
    two.balance = Balance::RoundRobin;
    two.attempts = 2;
    two.retry.statuses = vec![503];
    two.eject.failures = 1000;
    let gateway = gateway(two);
    for _ in 0..4 {
        assert_eq!(gateway.ask(GET).status, 200);
    }
    let statuses: Vec<u16> = (0..4).map(|_| gateway.ask(POST).status).collect();
    assert!(
        statuses.contains(&503) && statuses.contains(&200),
        "a POST has one attempt: {statuses:?}"
    );
}

#[test]
fn a_server_that_keeps_failing_is_left_out() {
    let (ill, well) = (Origin::responding(UNAVAILABLE), Origin::responding(OK));
    let mut two = upstream(ill.address);
    two.servers.push(server(well.address));
    two.balance = Balance::RoundRobin;
    two.eject.failures = 2;
    two.eject.wait = Micros::from_secs(60);
    let gateway = gateway(two);
    let statuses: Vec<u16> = (0..20).map(|_| gateway.ask(GET).status).collect();
    assert_eq!(
        statuses.iter().filter(|status| **status == 503).count(),
        2,
        "{statuses:?}"
    );
}

#[test]
fn a_callers_own_deadline_speaks_against_no_server() {
    let slow = Origin::start(|conn| {
        loop {
            if conn.request()?.starts_with("GET ") {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")?;
            }
        }
    });
    let well = Origin::responding(OK);
    let gateway = gateway(in_turn(upstream(slow.address), well.address));
    let hasty = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\ngrpc-timeout: 200m\r\n\
                 Content-Length: 0\r\n\r\n";
    let received: Vec<_> = (0..4)
        .map(|_| gateway.ask(hasty).header("grpc-status").map(str::to_owned))
        .collect();
    assert_eq!(
        received
            .iter()
            .filter(|received| received.as_deref() == Some("4"))
            .count(),
        2,
        "{received:?}"
    );
    let bodies: Vec<String> = (0..4).map(|_| gateway.ask(GET).body).collect();
    assert_eq!(
        bodies.iter().filter(|body| *body == "slow").count(),
        2,
        "{bodies:?}"
    );
}

#[test]
fn a_server_that_fails_its_health_checks_gets_no_requests() {
    let checks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&checks);
    let ill = Origin::start(move |conn| {
        loop {
            if conn.request()?.starts_with("GET /healthz ") {
                counted.fetch_add(1, Ordering::Relaxed);
                conn.send("HTTP/1.1 500 Ill\r\nContent-Length: 0\r\n\r\n")?;
            } else {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nill")?;
            }
        }
    });
    let well = Origin::responding(OK);
    let mut two = upstream(ill.address);
    two.servers.push(server(well.address));
    two.balance = Balance::RoundRobin;
    two.health = Some(Health {
        path: "/healthz".into(),
        every: Micros(20_000),
        timeout: Micros::from_secs(1),
        healthy_after: 1,
        unhealthy_after: 2,
    });
    let gateway = gateway(two);
    gateway.ask(GET);
    wait_until("it is checked", || checks.load(Ordering::Relaxed) >= 4);
    for _ in 0..6 {
        assert_eq!(gateway.ask(GET).body, "ok");
    }
}

#[test]
fn health_checks_count_a_redirection_as_good_and_silence_as_bad() {
    let moved = Origin::start(|conn| {
        loop {
            let check = conn.request()?.starts_with("GET /healthz ");
            let status = if check { "302 Found" } else { "200 OK" };
            conn.send(&format!(
                "HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\nmoved"
            ))?;
        }
    });
    // It listens and never responds.
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let mut two = upstream(moved.address);
    two.servers
        .push(server(silent.local_addr().expect("bound")));
    two.health = Some(Health {
        path: "/healthz".into(),
        every: Micros(20_000),
        timeout: Micros(200_000),
        healthy_after: 1,
        unhealthy_after: 1,
    });
    let health = UpstreamHealth::default();
    let gateway = gateway_of(two.clone(), route(), defaults(), health.clone());
    gateway.ask(GET);
    let state = |index: usize| health.status(&two)[index].state;
    wait_until("silence is bad", || {
        state(1) == Some(ServerHealth::Unhealthy)
    });
    // By then the other one has been checked several times.
    assert_eq!(state(0), Some(ServerHealth::Up));
    assert_eq!(gateway.ask(GET).body, "moved");
}

#[test]
fn total_timeout_cuts_off_a_slow_response() {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
        while !stopped.load(Ordering::Relaxed) {
            conn.send("x")?;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(())
    });
    let mut bounded = upstream(origin.address);
    bounded.timeouts.total = Some(Micros(200_000));
    let response = gateway(bounded).ask(GET);
    stop.store(true, Ordering::Relaxed);
    assert!(
        response.status == 200 && !response.whole && response.body.starts_with('x'),
        "{}",
        response.head
    );
}

#[test]
fn the_proxy_protocol_names_the_client_on_a_connection_of_its_own() {
    let origin = Origin::responding(OK);
    let mut received = upstream(origin.address);
    received.proxy_protocol = ProxyProtocol::V1;
    let gateway = gateway(received);
    for _ in 0..2 {
        let mut client = gateway.connect();
        let from = client.local_addr().expect("connected");
        client.write_all(GET.as_bytes()).expect("sent");
        assert_eq!(read_response(&mut client).status, 200);
        let seen = origin.records().pop().expect("a connection");
        let expected = format!(
            "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\nGET / ",
            from.port(),
            origin.address.port()
        );
        assert!(seen.starts_with(&expected), "{seen}");
    }
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn a_unix_socket_is_an_upstream_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("app.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        read_head(&mut stream).expect("a head");
        stream.write_all(OK.as_bytes()).expect("sent");
    });
    let mut local = upstream(([127, 0, 0, 1], 9).into());
    local.servers[0].address = ServerAddress::Unix(path);
    assert_eq!(gateway(local).ask(GET).body, "ok");
}

#[test]
fn tls_is_verified_against_the_files_authority_and_shows_the_clients_certificate() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("signed");
    let authority = Issuer::new(params, key);
    let leaf = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(vec![name.to_owned()])
            .expect("a name")
            .signed_by(&key, &authority);
        (certificate.expect("signed").pem(), key.serialize_pem())
    };
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| PemFile {
        path: directory.path().join(name),
        content: text.as_bytes().into(),
    };
    let (client, client_key) = leaf("client.example");
    let files = TlsFiles {
        ca: Some(file("ca.pem", &root.pem())),
        certificate: Some(file("client.pem", &client)),
        key: Some(file("client.key", &client_key)),
        pinned: Vec::new(),
    };

    let (certificate, key) = leaf("app.example");
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key"),
        )
        .expect("a pair");
    let config = Arc::new(config);
    let origin = Origin::start(move |conn| {
        let tls = ServerConnection::new(Arc::clone(&config)).expect("a session");
        let mut stream = StreamOwned::new(tls, conn.stream.try_clone()?);
        read_head(&mut stream)?;
        assert!(
            stream.conn.peer_certificates().is_some(),
            "the client shows its certificate"
        );
        stream.write_all(OK.as_bytes())?;
        stream.read(&mut [0]).map(|_| ())
    });
    let mut secure = upstream(origin.address);
    secure.servers[0].tls = Some("app.example".into());
    secure.tls = files.clone();
    assert_eq!(gateway(secure.clone()).ask(GET).body, "ok");

    secure.servers[0].tls = Some("other.example".into());
    let refused = gateway(secure.clone()).ask(GET);
    assert_eq!(refused.status, 502, "the certificate is for another name");
    secure.servers[0].tls = Some("app.example".into());
    secure.tls.certificate = None;
    secure.tls.key = None;
    assert_eq!(
        gateway(secure).ask(GET).status,
        502,
        "the upstream insists on a certificate"
    );
}
