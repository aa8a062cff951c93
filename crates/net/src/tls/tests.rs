//! TLS on real sockets, with certificates made on the spot.

mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::TlsSettings;
use crate::server::Settings;
use world::World;

#[tokio::test]
async fn the_certificate_shown_is_the_one_for_the_name_asked_for() {
    let world = World::new();
    let certificates = vec![
        world.files("first", &["first.test", "localhost"]),
        world.files("exact", &["a.example.test"]),
        world.files("wild", &["*.example.test"]),
    ];
    let server = world.serve(&TlsSettings {
        certificates: certificates.clone(),
        ..TlsSettings::default()
    });
    for (name, file) in [
        ("a.example.test", 1),
        ("B.example.test", 2),
        ("first.test", 0),
        ("localhost", 0),
    ] {
        let (answer, shown) = world.ask(&server, name, None).await.expect("answered");
        assert_eq!(
            answer.to_ascii_lowercase(),
            format!("h1 https {} -", name.to_ascii_lowercase())
        );
        assert_eq!(
            CertificateDer::from_pem_file(&certificates[file].chain).expect("a chain"),
            shown,
            "{name}"
        );
    }
    // A wildcard stands for one label: a name with two gets the first certificate, which does not fit it.
    assert!(world.ask(&server, "a.b.example.test", None).await.is_err());
}

#[tokio::test]
async fn http2_is_agreed_on_in_the_handshake() {
    let world = World::new();
    let settings = TlsSettings {
        certificates: vec![world.files("one", &["one.test"])],
        ..TlsSettings::default()
    };
    let server = world.serve(&settings);
    let mut roots = RootCertStore::empty();
    roots.add(world.root.clone()).expect("a root");
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .expect("connected");
    let name = ServerName::try_from("one.test").expect("a name");
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("a handshake");
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io)
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let answer = sender
        .send_request(Request::new(Full::<Bytes>::default()))
        .await
        .expect("answered");
    let body = http_body_util::BodyExt::collect(answer.into_body())
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(body, "h2 https one.test -");
}

#[tokio::test]
async fn idle_connection_is_closed_despite_bytes_of_no_request() {
    let world = World::new();
    let settings = TlsSettings {
        certificates: vec![world.files("one", &["one.test"])],
        ..TlsSettings::default()
    };
    let bounds = Settings {
        keep_alive: Duration::from_secs(1),
        awake: Duration::from_millis(40),
        ..Settings::default()
    };
    let server = world.serve_with(&settings, bounds);
    let mut roots = RootCertStore::empty();
    roots.add(world.root.clone()).expect("a root");
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .expect("connected");
    let name = ServerName::try_from("one.test").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("a handshake");
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = Vec::new();
    // Five seconds of new keys: fewer than the 32 in a row after which the TLS library itself ends a connection.
    for _ in 0..25 {
        let read =
            tokio::time::timeout(Duration::from_millis(200), stream.read_buf(&mut answer)).await;
        match read {
            Ok(Ok(0) | Err(_)) => {
                assert!(String::from_utf8_lossy(&answer).ends_with("one.test -"));
                assert!(server.shared.stats.rested.value() > 1, "new keys wake it");
                return;
            }
            Ok(Ok(_)) => {}
            Err(_) => {
                stream.get_mut().1.refresh_traffic_keys().expect("TLS 1.3");
                // When it has gone the next read tells.
                let _ = stream.flush().await;
            }
        }
    }
    panic!("never closed");
}

#[tokio::test]
async fn new_files_are_used_after_a_reload_and_bad_ones_are_not() {
    let world = World::new();
    let settings = TlsSettings {
        certificates: vec![world.files("one", &["one.test"])],
        ..TlsSettings::default()
    };
    let server = world.serve(&settings);
    let (_, before) = world
        .ask(&server, "one.test", None)
        .await
        .expect("answered");

    world.files("one", &["one.test"]);
    server.tls.reload(&settings).expect("good files");
    let (_, renewed) = world
        .ask(&server, "one.test", None)
        .await
        .expect("answered");
    assert_ne!(before, renewed);

    // A key that is not the certificate's: half a renewal, say.
    let other = world.files("other", &["one.test"]);
    std::fs::copy(&other.key, &settings.certificates[0].key).expect("copied");
    let error = server
        .tls
        .reload(&settings)
        .expect_err("the key does not fit");
    assert!(error.to_string().contains("one.key"), "{error}");
    std::fs::write(&settings.certificates[0].chain, "no PEM").expect("written");
    assert!(server.tls.reload(&settings).is_err());
    let (_, kept) = world
        .ask(&server, "one.test", None)
        .await
        .expect("answered");
    assert_eq!(renewed, kept);
}

#[tokio::test]
async fn a_verified_client_certificate_is_an_identity() {
    let world = World::new();
    let certificates = vec![world.files("one", &["one.test"])];
    let client_ca = Some(world.path("ca.pem"));
    let mut settings = TlsSettings {
        certificates,
        client_ca,
        client_required: false,
    };
    let alice = world.issue("alice", &[]);
    let nameless = world.issue("", &["service.test"]);
    let mallory = World::new().issue("alice", &[]);
    let spells_alice = world.issue("", &["CN=alice,O=tests"]);
    let spells_alice_too = world.issue("", &["O=tests,CN=alice"]);

    let server = world.serve(&settings);
    let answer = world
        .ask(&server, "one.test", Some(&alice))
        .await
        .expect("answered")
        .0;
    assert!(
        answer.contains("CN=alice") && answer.contains("O=tests"),
        "{answer}"
    );
    assert_eq!(
        world
            .ask(&server, "one.test", Some(&nameless))
            .await
            .expect("answered")
            .0,
        "h1 https one.test dns:service.test"
    );
    for other in [&spells_alice, &spells_alice_too] {
        assert_ne!(
            world
                .ask(&server, "one.test", Some(other))
                .await
                .expect("answered")
                .0,
            answer
        );
    }
    assert_eq!(
        world
            .ask(&server, "one.test", None)
            .await
            .expect("answered")
            .0,
        "h1 https one.test -"
    );
    assert!(
        world
            .ask(&server, "one.test", Some(&mallory))
            .await
            .is_err()
    );

    settings.client_required = true;
    let strict = world.serve(&settings);
    assert!(world.ask(&strict, "one.test", None).await.is_err());
    assert!(world.ask(&strict, "one.test", Some(&alice)).await.is_ok());
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_cut_off() {
    let world = World::new();
    let settings = TlsSettings {
        certificates: vec![world.files("one", &["one.test"])],
        ..TlsSettings::default()
    };
    let bounds = Settings {
        tls_handshake: Duration::from_millis(500),
        ..Settings::default()
    };
    let server = world.serve_with(&settings, bounds);
    for said in [&b"\x16\x03\x01"[..], b"", b"\0GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = tokio::net::TcpStream::connect(server.address)
            .await
            .expect("connected");
        stream.write_all(said).await.expect("sent");
        let mut answer = Vec::new();
        let end =
            tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        let _ = end.expect("closed in time");
    }
    // The caller sees the end a moment before the worker has counted it.
    let counted = async {
        while server.refused.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), counted)
        .await
        .expect("all three are counted");
    assert_eq!(server.refused.load(Ordering::Relaxed), 3);
}
