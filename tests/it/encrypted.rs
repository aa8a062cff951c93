//! HTTPS with a real client: both versions of HTTP on one port, callers known by their certificates, certificates that
//! are read again when they change.

use std::fs;
use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::harness::{Gateway, eventually};

/// Writes `NAME.pem`, an authority's certificate.
pub(crate) fn authority(folder: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("signed");
    fs::write(folder.join(format!("{name}.pem")), root.pem()).expect("written");
    Issuer::new(params, key)
}

/// Writes `NAME.pem` and `NAME.key`.
pub(crate) fn issue(folder: &Path, name: &str, authority: &Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("signed");
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
    fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
}

#[test]
fn callers_are_known_by_their_certificates_on_both_versions_of_http() {
    if Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is not installed");
        eprintln!("skipped: curl is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (
        authority(folder.path(), "one"),
        authority(folder.path(), "two"),
    );
    issue(folder.path(), "site", &one);
    for (name, signer) in [("ann", &one), ("bob", &one), ("eve", &two)] {
        issue(folder.path(), name, signer);
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 1\nclient_ca = '{}'\nclient_certificates = \"optional\"\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\n\
         [identities.who]\nkey = \"client_certificate\"\nwhen_missing = \"refuse\"\n\
         [limits.it]\nrate = \"2/hour\"\nburst = 2\nper = \"who\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        at("one.pem"),
        at("site.pem"),
        at("site.key"),
    ));
    let url = format!("https://localhost:{}/", gateway.address().port());
    let ask = |version: &str, root: &str, who: Option<&str>| {
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code}",
            version,
            "--cacert",
            &at(root),
        ]);
        curl.args([
            "--resolve",
            &format!("localhost:{}:127.0.0.1", gateway.address().port()),
        ]);
        if let Some(who) = who {
            curl.args([
                "--cert",
                &at(&format!("{who}.pem")),
                "--key",
                &at(&format!("{who}.key")),
            ]);
        }
        String::from_utf8_lossy(&curl.arg(&url).output().expect("curl runs").stdout).into_owned()
    };
    assert_eq!(ask("--http2", "one.pem", Some("ann")), "2 200");
    assert_eq!(ask("--http1.1", "one.pem", Some("ann")), "1.1 200");
    assert_eq!(
        ask("--http2", "one.pem", Some("ann")),
        "2 429",
        "one bucket, whatever the version"
    );
    assert_eq!(
        ask("--http2", "one.pem", Some("bob")),
        "2 200",
        "another caller"
    );
    assert_eq!(ask("--http2", "one.pem", None), "2 401", "no certificate");
    assert!(
        ask("--http1.1", "one.pem", Some("eve")).ends_with(" 000"),
        "certified by another authority"
    );

    assert!(
        ask("--http2", "two.pem", Some("bob")).ends_with(" 000"),
        "the site is not certified by this one yet"
    );
    issue(folder.path(), "site", &two);
    eventually("the new certificate is shown", || {
        ask("--http2", "two.pem", Some("bob")).starts_with('2')
    });
    assert_eq!(
        ask("--http2", "two.pem", Some("ann")),
        "2 429",
        "and no bucket is refilled"
    );
}

#[test]
fn tls_certificate_near_its_end_is_logged_and_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |year: i32, month: u8, day: u8| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        fs::write(
            folder.path().join("site.pem"),
            params.self_signed(&key).expect("signed").pem(),
        )
        .expect("written");
        fs::write(folder.path().join("site.key"), key.serialize_pem()).expect("written");
    };
    let at = |name: &str| folder.path().join(name).display().to_string();
    let config = format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 1\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        at("site.pem"),
        at("site.key")
    );
    // 2027-01-15T08:00:00Z, the moment that a gateway of the tests starts at.
    let now = tollgate_limit::Timestamp::from_micros(1_800_000_000_000_000);
    let warnings = || {
        tollgate_config::parse(&config, "x.toml", &|_| None, now)
            .expect("a good file")
            .warnings
            .concat()
    };
    for (year, month, day, words) in [
        (2027, 1, 15, "has expired"),
        (2027, 1, 16, "expires within a day"),
        (2027, 1, 20, "expires in 4 days"),
        (2027, 1, 29, "expires in 13 days"),
    ] {
        write(year, month, day);
        let said = warnings();
        assert!(
            said.contains(words) && said.contains("site.pem"),
            "{words}: {said}"
        );
    }
    write(2027, 1, 30);
    assert_eq!(warnings(), "", "two weeks are enough");

    let gateway = crate::harness::Gateway::start(&config);
    let measured = || {
        let metrics = gateway.admin_get("/metrics").text();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("tollgate_certificate_expiry_timestamp_seconds{"));
        let (labels, value) = line
            .and_then(|line| line.rsplit_once(' '))
            .expect("a gauge");
        assert!(labels.contains("site.pem"), "{labels}");
        value.parse::<f64>().expect("a number")
    };
    assert!((measured() - 1_801_267_200.0).abs() < 1.0, "{}", measured());
    write(2030, 1, 1);
    gateway.reload(&config).expect("a good file");
    assert!(
        (measured() - 1_893_456_000.0).abs() < 1.0,
        "the new file is in use: {}",
        measured()
    );
}

#[test]
fn tls_port_spoken_to_in_plain_http_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    issue(folder.path(), "site", &authority(folder.path(), "one"));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 1\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\n[log]\naccess = '{}'\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        at("site.pem"),
        at("site.key"),
        at("access.log"),
    ));
    for head in [
        "GET /x?y HTTP/1.1\r\nHost: a\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "x-y / HTTP/1.0\r\n\r\n",
    ] {
        let mut connection = gateway.connect();
        connection.send(head);
        let answer = connection.answer("GET");
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (400, Some("application/problem+json")),
            "{head}"
        );
        assert!(
            answer.json()["detail"]
                .as_str()
                .is_some_and(|text| text.contains("https://")),
            "{}",
            answer.text()
        );
        assert!(connection.is_closed());
    }
    // What is neither is a failed handshake.
    let mut connection = gateway.connect();
    connection.send([0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(!connection.rest().contains("HTTP"));
    let log = || fs::read_to_string(at("access.log")).unwrap_or_default();
    eventually("they are logged", || log().lines().count() == 3);
    assert!(
        log()
            .lines()
            .all(|line| line.contains("\"reason\":\"plain_http\"")),
        "{}",
        log()
    );
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_bad_requests_total{reason=\"plain_http\"} 3"),
        "{metrics}"
    );
}

#[test]
fn plain_port_spoken_to_in_tls_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        log.display()
    ));
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .expect("versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let mut client =
        rustls::ClientConnection::new(std::sync::Arc::new(config), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("written");
    let mut connection = gateway.connect();
    connection.send(&hello);
    let answer = connection.answer("GET");
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["detail"]
            .as_str()
            .is_some_and(|text| text.contains("http://")),
        "{}",
        answer.text()
    );
    eventually("it is logged", || {
        fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n'))
    });
    let text = fs::read_to_string(&log).expect("written");
    assert!(
        text.contains("\"reason\":\"tls_on_plain_port\"") && text.contains("\"status\":400"),
        "{text}"
    );
}
