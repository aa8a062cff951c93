//! How encrypted connections end: with a closing alert, so that no peer takes their end for an attack.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::draining::whole;
use super::running::{DEADLINE, Server, start_with, wait_until};
use crate::server::Settings;
use crate::tls::{CertificateFiles, ServerTls, TlsSettings};

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A server that speaks TLS only, and how it is trusted.
fn encrypted(settings: Settings) -> (Server, Arc<ClientConfig>) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])
        .expect("a name")
        .self_signed(&key)
        .expect("signed");
    let (chain, key_file) = (folder.path().join("a.pem"), folder.path().join("a.key"));
    std::fs::write(&chain, certificate.pem()).expect("written");
    std::fs::write(&key_file, key.serialize_pem()).expect("written");
    let files = CertificateFiles {
        hosts: Vec::new(),
        chain,
        key: key_file,
    };
    let tls = TlsSettings {
        certificates: vec![files],
        ..TlsSettings::default()
    };
    let server = start_with(
        settings,
        Some(Arc::new(ServerTls::load(&tls).expect("good files"))),
    );
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    (
        server,
        Arc::new(client.with_root_certificates(roots).with_no_client_auth()),
    )
}

/// A connection after its handshake.
fn connect(server: &Server, config: &Arc<ClientConfig>) -> Client {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    let mut stream = server.connect();
    while client.is_handshaking() {
        client.complete_io(&mut stream).expect("a handshake");
    }
    StreamOwned::new(client, stream)
}

/// What comes until the connection ends as an encrypted one should: by a goodbye.
fn until_goodbye(client: &mut Client) -> String {
    let mut said = Vec::new();
    match client.read_to_end(&mut said) {
        Ok(_) => String::from_utf8_lossy(&said).into_owned(),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            panic!("cut off after {}", said.escape_ascii())
        }
        Err(error) => panic!("{error} after {}", said.escape_ascii()),
    }
}

fn answered(client: &mut Client) {
    client
        .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"GET /a") {
        client.read_exact(&mut byte).expect("an answer");
        said.push(byte[0]);
    }
}

#[test]
fn tls_drain_sends_close_notify_to_an_idle_client_and_408_to_one_that_began() {
    let (server, config) = encrypted(Settings {
        header_read: Duration::from_secs(1),
        ..Settings::default()
    });
    let (mut silent, mut begun, mut idle) = (
        connect(&server, &config),
        connect(&server, &config),
        connect(&server, &config),
    );
    begun
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n")
        .expect("sent");
    answered(&mut idle);
    server.workers.drain(whole(DEADLINE));
    assert_eq!(
        until_goodbye(&mut silent),
        "",
        "to who asked nothing it would look like an answer"
    );
    assert_eq!(until_goodbye(&mut idle), "");
    let said = until_goodbye(&mut begun);
    assert!(
        said.starts_with("HTTP/1.1 408 ") && said.contains("\r\nconnection: close\r\n"),
        "{said:?}"
    );
    server.workers.join();
}

#[test]
fn tls_idle_client_gets_close_notify_only() {
    let (server, config) = encrypted(Settings {
        header_read: Duration::from_millis(300),
        ..Settings::default()
    });
    assert_eq!(until_goodbye(&mut connect(&server, &config)), "");
    assert_eq!(server.observed("slow_head"), 1);
    // In a drain at once, however long it would have had.
    let (server, config) = encrypted(Settings {
        header_read: Duration::from_secs(600),
        ..Settings::default()
    });
    let mut silent = connect(&server, &config);
    server.workers.drain(whole(10 * DEADLINE));
    assert_eq!(until_goodbye(&mut silent), "");
    server.workers.join();
}

#[test]
fn an_encrypted_connection_that_rests_ends_with_a_goodbye() {
    let resting = Settings {
        awake: Duration::from_millis(20),
        ..Settings::default()
    };
    let (server, config) = encrypted(Settings {
        keep_alive: Duration::from_millis(300),
        ..resting.clone()
    });
    let mut client = connect(&server, &config);
    answered(&mut client);
    assert_eq!(until_goodbye(&mut client), "", "idle for too long");
    assert_eq!(
        (
            server.shared.stats.rested.value(),
            server.shared.stats.idle_closed.value()
        ),
        (1, 1)
    );

    let (server, config) = encrypted(resting);
    let mut client = connect(&server, &config);
    answered(&mut client);
    wait_until("it rests", || server.shared.stats.rested.value() == 1);
    server.workers.drain(whole(DEADLINE));
    assert_eq!(until_goodbye(&mut client), "", "a drain");
    server.workers.join();
}
