//! TLS to PostgreSQL: the server's certificate is checked, ours is shown, and what is wrong is said.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tollgate_limit::Micros;
use tollgate_store::RemoteStore;
use tollgate_store::tls::Tls;

use crate::faults::{PATIENCE, drain};
use crate::gateways::Gateway;
use crate::limits::bucket;
use crate::servers::StoreKind;
use crate::servers::{Postgres, wait_until};

pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for `name` and its key.
    pub fn issue(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &self.issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    }
}

/// A server that takes none but encrypted connections of callers whom `clients` certifies.
fn start(site: &Authority, clients: &Authority) -> Postgres {
    let (chain, key) = site.issue("localhost");
    let write = |data: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(data.join("site.pem"), chain).unwrap();
        std::fs::write(data.join("site.key"), key).unwrap();
        std::fs::set_permissions(
            data.join("site.key"),
            std::fs::Permissions::from_mode(0o600),
        )
        .unwrap();
        std::fs::write(data.join("clients.pem"), &clients.pem).unwrap();
        std::fs::write(
            data.join("pg_hba.conf"),
            "hostssl all all all trust clientcert=verify-ca\n",
        )
        .unwrap();
    };
    let settings = [
        "fsync=off",
        "ssl=on",
        "ssl_cert_file=site.pem",
        "ssl_key_file=site.key",
        "ssl_ca_file=clients.pem",
    ];
    Postgres::start_prepared(&settings, write)
}

fn open(url: String, tls: Tls) -> RemoteStore {
    StoreKind::Postgres.open_encrypted(&url, &tls, |_| ())
}

#[tokio::test]
async fn both_sides_show_certificates_and_a_wrong_one_is_said() {
    if !Postgres::available() {
        return;
    }
    let (site, clients, other) = (
        Authority::new("site"),
        Authority::new("clients"),
        Authority::new("other"),
    );
    let server = start(&site, &clients);
    let bytes = |(chain, key): (String, String)| Some((chain.into_bytes(), key.into_bytes()));
    let tls = |ca: &Authority, client| Tls {
        ca: Some(ca.pem.clone().into_bytes()),
        client,
    };
    let url = |host: &str| format!("postgres://postgres@{host}:{}/postgres", server.port);

    let store = open(url("localhost"), tls(&site, bytes(clients.issue("gate"))));
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    assert_eq!(
        drain(
            &store,
            &bucket("five", 0, 5, Micros::from_secs(3600), 5),
            b"k"
        )
        .await,
        5
    );
    // The words people know from libpq.
    let full = format!("{}?sslmode=verify-full", url("localhost"));
    let store = open(full, tls(&site, bytes(clients.issue("gate"))));
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());

    for (host, ca, client, words) in [
        (
            "localhost",
            &other,
            bytes(clients.issue("gate")),
            "UnknownIssuer",
        ),
        (
            "127.0.0.1",
            &site,
            bytes(clients.issue("gate")),
            "not valid for name",
        ),
        ("localhost", &site, None, "certificate"),
        ("localhost", &site, bytes(other.issue("gate")), "alert"),
    ] {
        let store = open(url(host), tls(ca, client));
        wait_until("word of why not", || !store.health().last_error.is_empty());
        let told = store.health().last_error;
        assert!(
            !store.health().up && told.to_lowercase().contains(&words.to_lowercase()),
            "{words}: {told}"
        );
    }
}

#[test]
fn a_gateway_is_given_its_certificates_by_its_file() {
    if !Postgres::available() {
        return;
    }
    let (site, clients) = (Authority::new("site"), Authority::new("clients"));
    let server = start(&site, &clients);
    let home = tempfile::tempdir().unwrap();
    let (chain, key) = clients.issue("gate");
    for (name, text) in [
        ("ca.pem", &site.pem),
        ("gate.pem", &chain),
        ("gate.key", &key),
    ] {
        std::fs::write(home.path().join(name), text).unwrap();
    }
    let at = |name: &str| home.path().join(name).display().to_string();
    let gateway = Gateway::start_on(&format!(
        "[store]\nkind = \"postgres\"\nurl = \"postgres://postgres@localhost:{}/postgres\"\nwhen_down = \"refuse\"\n\
         answer_within = \"900ms\"\nkey_secret_file = \"secret\"\nca_file = '{}'\nclient_certificate = '{}'\nclient_key = '{}'\n\
         [limits.it]\nrate = \"2/hour\"\nburst = 2\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        server.port,
        at("ca.pem"),
        at("gate.pem"),
        at("gate.key"),
    ));
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    let answers: Vec<_> = (0..3)
        .map(|_| crate::gateways::status(&mut stream, "/").unwrap())
        .collect();
    assert_eq!(answers, [200, 200, 429]);
}
