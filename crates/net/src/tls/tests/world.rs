//! An authority, and a server that answers with what the handshake answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::listener::{Address, Listen, bind};
use crate::server::{ConnInfo, Event, Handler, Inbound, Payload, ServerState, Settings, serve};
use crate::tls::{CertificateFiles, ServerTls, TlsSettings};
use crate::worker::Workers;

/// Answers with what the handshake answer, and counts the connections that it refused.
struct Tell(Arc<AtomicUsize>);

impl Payload for Full<Bytes> {}

impl Handler for Tell {
    type Body = Full<Bytes>;

    fn observe(&self, event: Event<'_>) {
        if event == Event::Refused("handshake") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        _: Request<Inbound>,
    ) -> Response<Full<Bytes>> {
        let tls = connection.tls.clone().expect("only TLS is listened for");
        let version = if connection.http2 { "h2" } else { "h1" };
        let answer = format!(
            "{version} {} {} {}",
            connection.scheme(),
            tls.server_name.as_deref().unwrap_or("-"),
            tls.client_subject.as_deref().unwrap_or("-")
        );
        Response::new(answer.into())
    }
}

/// An authority, a directory for PEM files, and a server that reads them.
pub(super) struct World {
    directory: tempfile::TempDir,
    authority: Issuer<'static, KeyPair>,
    pub(super) root: CertificateDer<'static>,
}

impl World {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("signed");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("ca.pem"), root.pem()).expect("written");
        let root = root.der().clone();
        Self {
            directory,
            authority: Issuer::new(params, key),
            root,
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn issue(&self, subject: &str, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !subject.is_empty() {
            params
                .distinguished_name
                .push(DnType::OrganizationName, "tests");
            params.distinguished_name.push(DnType::CommonName, subject);
        }
        let key = KeyPair::generate().expect("a key");
        (
            params.signed_by(&key, &self.authority).expect("signed"),
            key,
        )
    }

    /// A certificate in files called `name`.
    pub(super) fn files(&self, name: &str, names: &[&str]) -> CertificateFiles {
        let (certificate, key) = self.issue(name, names);
        let files = CertificateFiles {
            chain: self.path(name),
            key: self.path(&format!("{name}.key")),
            hosts: Vec::new(),
        };
        std::fs::write(&files.chain, certificate.pem()).expect("written");
        std::fs::write(&files.key, key.serialize_pem()).expect("written");
        files
    }

    pub(super) fn serve(&self, settings: &TlsSettings) -> Server {
        self.serve_with(settings, Settings::default())
    }

    pub(super) fn serve_with(&self, settings: &TlsSettings, server: Settings) -> Server {
        let tls = Arc::new(ServerTls::load(settings).expect("good files"));
        let listen = Listen {
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            tls: Some(Arc::clone(&tls)),
        };
        let bound = bind(&[listen], 1).expect("a free port");
        let Address::Tcp(address) = bound[0].address else {
            panic!("bound to TCP")
        };
        let shared = Arc::new(ServerState::new(server));
        let refused = Arc::<AtomicUsize>::default();
        let tell = Arc::clone(&refused);
        let make = move |_| Tell(Arc::clone(&tell));
        let workers = serve(bound, 1, Arc::clone(&shared), make).expect("started");
        Server {
            tls,
            address,
            shared,
            refused,
            _workers: workers,
        }
    }

    /// Asks as `name`, and returns the answer's body and the certificate that was shown.
    pub(super) async fn ask(
        &self,
        server: &Server,
        name: &str,
        client: Option<&(rcgen::Certificate, KeyPair)>,
    ) -> std::io::Result<(String, CertificateDer<'static>)> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a root");
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known versions")
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                config
                    .with_client_auth_cert(vec![certificate.der().clone()], key)
                    .expect("a fitting key")
            }
        };
        let stream = tokio::net::TcpStream::connect(server.address).await?;
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let shown = stream.get_ref().1.peer_certificates().expect("shown")[0]
            .clone()
            .into_owned();
        let body = answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned());
        body.map(|body| (body, shown))
            .ok_or_else(|| std::io::Error::other(answer))
    }
}

pub(super) struct Server {
    pub(super) tls: Arc<ServerTls>,
    pub(super) address: SocketAddr,
    pub(super) shared: Arc<ServerState>,
    /// How many handshakes failed.
    pub(super) refused: Arc<AtomicUsize>,
    _workers: Workers,
}
