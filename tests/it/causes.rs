//! Why an upstream fails, as an operator reads it: in the log, in the status, in `/readyz?verbose`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};
use crate::process::Process;

/// A self-signed certificate for `name`, written as `site.pem` and `site.key`; its SHA-256 as `openssl` prints it.
fn certify(folder: &Path, name: &str, year_of_expiry: i32) -> String {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.not_after = rcgen::date_time_ymd(year_of_expiry, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signed");
    fs::write(folder.join("site.pem"), certificate.pem()).expect("written");
    fs::write(folder.join("site.key"), key.serialize_pem()).expect("written");
    let pairs: Vec<String> = Sha256::digest(certificate.der())
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    pairs.join(":")
}

/// A server that speaks TLS with the certificate in `folder`.
fn encrypted(folder: &Path) -> Gateway {
    Gateway::start(&format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 1\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        folder.join("site.pem").display(),
        folder.join("site.key").display(),
    ))
}

/// A gateway before `server`, whose upstream `app` has these settings besides.
fn before(server: &Gateway, settings: &str) -> Gateway {
    Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"https://localhost:{}\"]\n{settings}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        server.address().port(),
    ))
}

/// How the only server of `app` does, as the status tells it.
fn server(gateway: &Gateway) -> Value {
    gateway.admin_get("/api/v1/status").json()["upstreams"]["app"][0].clone()
}

fn last_error(gateway: &Gateway) -> String {
    server(gateway)["last_error"]["error"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// An address without a listener. No other test listens on its host, so the port stays free.
fn closed_address() -> String {
    let listener = TcpListener::bind("127.0.0.250:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn upstream_refusing_connections_is_logged_with_its_cause_and_each_change_of_state() {
    let address = closed_address();
    let mut process = Process::with(
        &format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n\
             [upstreams.app]\nservers = [\"http://{address}\"]\neject = {{ failures = 3, wait = \"100ms\" }}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n"
        ),
        1024,
    );
    let mut connection = Connection::open(process.address);
    for _ in 0..3 {
        assert_eq!(connection.request("GET", "/", &[]).status, 502);
    }
    let line = process.line("an upstream's server failed");
    for words in [
        "upstream=\"app\"",
        &address,
        "kind=\"connect\"",
        "onnection refused",
    ] {
        assert!(line.contains(words), "no {words} in {line}");
    }
    // The two that follow are of the same kind: the next line is the change of state.
    let next = process.line("");
    assert!(
        next.contains("is ejected") && next.contains("onnection refused"),
        "{next}"
    );
    let listener = TcpListener::bind(&address).expect("its port is free");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    eventually("it answers", || {
        connection.request("GET", "/", &[]).status == 200
    });
    // Its pause may not have been over then.
    let ends = Arc::new(AtomicBool::new(false));
    let (its, at) = (Arc::clone(&ends), process.address);
    let asks = std::thread::spawn(move || {
        while !its.load(Ordering::SeqCst) {
            assert_eq!(Connection::open(at).request("GET", "/", &[]).status, 200);
        }
    });
    let line = process.line("is no longer ejected");
    ends.store(true, Ordering::SeqCst);
    asks.join().expect("every request was answered");
    assert!(line.contains(&address), "{line}");
}

#[test]
fn upstream_state_and_last_error_are_in_status_and_readyz() {
    let address = closed_address();
    let well = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"http://{address}\"]\neject = {{ failures = 3, wait = \"1h\" }}\n\
         [upstreams.well]\nservers = [\"{}\"]\n[upstreams.spare]\nservers = [\"{}\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n[[routes]]\nmatch = \"/well\"\nupstream = \"well\"\n\
         [[routes]]\nmatch = \"/spare\"\nupstream = \"spare\"\n",
        well.url(),
        well.url(),
    ));
    assert_eq!(gateway.get("/well").status, 200);
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status, 502);
    }
    let status = gateway.admin_get("/api/v1/status").json();
    let told = &status["upstreams"]["app"][0];
    assert_eq!(
        (told["server"].as_str(), told["state"].as_str()),
        (Some(address.as_str()), Some("ejected"))
    );
    assert!(last_error(&gateway).contains("onnection refused"), "{told}");
    for moment in [&told["since"], &told["last_error"]["at"]] {
        assert!(
            moment
                .as_str()
                .is_some_and(|text| text.starts_with("2027-01-15T0")),
            "{told}"
        );
    }
    assert_eq!(status["upstreams"]["well"][0]["state"], "up");
    assert_eq!(status["upstreams"]["spare"][0]["state"], "unused");
    let ready = gateway.admin_get("/readyz?verbose");
    assert_eq!(ready.status, 200, "going away would mend nothing");
    let text = ready.text();
    assert!(
        text.contains(&format!(
            "[!] upstream app {address}: ejected since 2027-01-15T"
        )),
        "{text}"
    );
    assert!(
        text.contains("onnection refused") && text.contains("[+] upstream well "),
        "{text}"
    );
}

#[test]
fn upstream_failing_health_checks_is_reported_with_the_cause() {
    let ill = Upstream::start(|_| Reply::new(500, &[], "no"));
    let gateway = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"{}\"]\n\
         health = {{ path = \"/healthz\", every = \"50ms\", unhealthy_after = 2 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        ill.url(),
    ));
    eventually("it is taken out", || {
        server(&gateway)["state"] == "unhealthy"
    });
    let error = last_error(&gateway);
    assert!(
        error.contains("/healthz") && error.contains("500"),
        "{error}"
    );
}

#[test]
fn upstream_certificate_untrusted_is_reported_with_the_reason() {
    for (name, year, words) in [
        ("elsewhere.example", 2100, "not valid for name"),
        ("localhost", 2001, "expired"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        certify(folder.path(), name, year);
        let origin = encrypted(folder.path());
        let gateway = before(
            &origin,
            &format!("ca_file = '{}'", folder.path().join("site.pem").display()),
        );
        assert_eq!(gateway.get("/").status, 502);
        let error = last_error(&gateway);
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn upstream_server_name_is_verified_in_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    certify(folder.path(), "app.internal", 2100);
    let origin = encrypted(folder.path());
    let authority = format!("ca_file = '{}'\n", folder.path().join("site.pem").display());
    assert_eq!(
        before(&origin, &authority).get("/").status,
        502,
        "localhost is not its name"
    );
    let named = before(&origin, &(authority + "server_name = \"app.internal\""));
    assert_eq!(named.get("/").status, 200);
}

#[test]
fn upstream_pinned_certificate_is_trusted_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    // It has no issuer, its name is another, and it is expired: the pin alone decides.
    let pin = certify(folder.path(), "elsewhere.example", 2001);
    let origin = encrypted(folder.path());
    let pinned =
        |pins: &str, more: &str| before(&origin, &format!("pinned_sha256 = [{pins}]\n{more}"));
    let other = "00".repeat(32);
    assert_eq!(pinned(&format!("\"{pin}\""), "").get("/").status, 200);
    let digits = pin.replace(':', "").to_ascii_lowercase();
    assert_eq!(
        pinned(&format!("\"{other}\", \"{digits}\""), "")
            .get("/")
            .status,
        200,
        "one of several"
    );
    let gateway = pinned(&format!("\"{other}\""), "");
    assert_eq!(gateway.get("/").status, 502);
    assert!(
        last_error(&gateway).contains(&digits),
        "{}",
        last_error(&gateway)
    );
    let authority = format!("ca_file = '{}'", folder.path().join("site.pem").display());
    assert_eq!(
        pinned(&format!("\"{pin}\""), &authority).get("/").status,
        502,
        "with an authority both must hold"
    );
}

/// The server may have too much to do, so limits that follow its load fall. But a request may have had
/// little time left, so that it ejects no server.
#[test]
fn upstream_not_reached_within_the_total_time_has_its_own_reason_and_counts_as_load_alone() {
    const ASKED: usize = 6;
    // It accepts connections, and ends no TLS handshake.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n\
         [upstreams.app]\nservers = [\"https://{address}\"]\n\
         timeouts = {{ connect = \"60s\", total = \"50ms\" }}\n\
         eject = {{ failures = 1, wait = \"1h\" }}\n\
         [limits.gentle]\nin_flight = {{ adaptive = true, least = 3, most = 12 }}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"gentle\"]\n",
        log.display()
    ));
    let has = |line: &str| {
        let metrics = gateway.admin_get("/metrics").text();
        assert!(
            metrics.contains(&format!("\n{line}\n")),
            "no {line} in {metrics}"
        );
    };
    has("tollgate_limit_adaptive_places{limit=\"gentle\"} 12.0");
    for _ in 0..ASKED {
        assert_eq!(gateway.get("/").status, 504);
        gateway.advance(Duration::from_millis(150));
    }
    has(&format!(
        "tollgate_upstream_failures_total{{upstream=\"app\",reason=\"total_timeout\"}} {ASKED}"
    ));
    let reasons = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.matches("\"reason\":\"total_timeout\"").count()
    };
    eventually("the log is written", || reasons() == ASKED);
    let metrics = gateway.admin_get("/metrics").text();
    let places = "tollgate_limit_adaptive_places{limit=\"gentle\"} ";
    let places = metrics.lines().find_map(|line| line.strip_prefix(places));
    let places: f64 = places.and_then(|text| text.parse().ok()).expect("a number");
    assert!(places < 12.0, "{places}");
    assert_eq!(server(&gateway)["state"], "up");
    assert_eq!(
        last_error(&gateway),
        "no connection within the request's total time"
    );
}
