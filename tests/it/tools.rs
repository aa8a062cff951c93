//! Programs that others wrote to attack or to measure servers.

use std::process::{Command, Stdio};

use crate::harness::{Gateway, Upstream};
use crate::hostile::{Bystander, dial};

/// Whether `program` is installed. Where it is not the test is skipped, loudly; in CI that is a failure.
pub(crate) fn installed(program: &str) -> bool {
    let there = Command::new(program)
        .arg("--help")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !there {
        assert!(
            std::env::var_os("CI").is_none(),
            "{program} is not installed"
        );
        eprintln!("!!! SKIPPED: {program} is not installed");
    }
    there
}

#[test]
fn slowhttptest_cannot_disturb_a_bystander() {
    if !installed("slowhttptest") {
        return;
    }
    let large = Upstream::start(|_| crate::harness::Reply::new(200, &[], vec![b'x'; 4 << 20]));
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [server.timeouts]\nheader_read = \"2s\"\nbody_idle = \"2s\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n\
         [[routes]]\nmatch = \"/large\"\nupstream = \"{}\"\n",
        large.url()
    ));
    let address = gateway.address();
    let (echo, large) = (
        format!("http://{address}/"),
        format!("http://{address}/large"),
    );
    let modes: [(&str, &[&str], &str); 3] = [
        ("slow head", &["-H", "-i", "1"], &echo),
        ("slow body", &["-B", "-i", "1", "-s", "4096"], &echo),
        (
            "slow read",
            &[
                "-X", "-w", "10", "-y", "20", "-n", "2", "-z", "32", "-k", "3",
            ],
            &large,
        ),
    ];
    for (what, words, url) in modes {
        let bystander = Bystander::new();
        std::thread::scope(|scope| {
            bystander.ask(scope, || dial(address));
            let run = Command::new("slowhttptest")
                .args(["-c", "200", "-r", "100", "-l", "6", "-p", "2", "-u", url])
                .args(words)
                .stdin(Stdio::null())
                .output();
            let longest = bystander.dismiss();
            let output = run.expect("it runs");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                said.contains("service available"),
                "{what}: it attacked: {said}"
            );
            assert!(
                !said.contains("NO\n"),
                "{what}: the service was seen unavailable: {said}"
            );
            assert!(
                longest < std::time::Duration::from_secs(5),
                "{what}: the bystander waited for {longest:?}"
            );
        });
    }
}

#[test]
fn h2load_is_served_whole() {
    if !installed("h2load") {
        return;
    }
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&crate::forwarding::open(&upstream));
    let url = format!("http://{}/", gateway.address());
    for words in [
        &["-n", "2000", "-c", "10", "-m", "10"][..],
        &["-n", "2000", "-c", "10", "--h1"],
    ] {
        let output = Command::new("h2load")
            .args(words)
            .arg(&url)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"),
            "{said}"
        );
    }
}

#[test]
fn tls_openssl_connects_and_old_versions_are_refused() {
    if !installed("openssl") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
        .expect("a name")
        .self_signed(&key);
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (certificate, key) = (
        file("a.pem", certificate.expect("signed").pem()),
        file("a.key", key.serialize_pem()),
    );
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"https://127.0.0.1:0\"\nworkers = 1\n\
         certificates = [{{ certificate = '{certificate}', key = '{key}' }}]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n"
    ));
    let address = gateway.address().to_string();
    let talk = |words: &[&str], request: &str| {
        let mut openssl = Command::new("openssl");
        openssl
            .args([
                "s_client",
                "-connect",
                &address,
                "-servername",
                "localhost",
                "-ign_eof",
            ])
            .args(words);
        let mut child = openssl
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        // It may have ended already, where the handshake fails.
        let _ =
            std::io::Write::write_all(&mut child.stdin.take().expect("piped"), request.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let request = "GET /told HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for version in ["-tls1_3", "-tls1_2"] {
        let said = talk(&[version, "-alpn", "http/1.1"], request);
        assert!(
            said.contains("HTTP/1.1 200 OK") && said.contains("ALPN protocol: http/1.1"),
            "{said}"
        );
    }
    assert!(talk(&["-alpn", "h2"], "").contains("ALPN protocol: h2"));
    // An old version, a weak cipher, a protocol without support here: refused in the handshake.
    for words in [
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..],
        &["-tls1_2", "-cipher", "AES128-SHA"],
        &["-alpn", "smtp"],
    ] {
        let said = talk(words, request);
        assert!(!said.contains("HTTP/1.1 200"), "{words:?}: {said}");
    }
    let metrics = gateway.admin_get("/metrics").text();
    let refused = metrics
        .lines()
        .find(|line| line.contains("connections_refused_total{reason=\"handshake\"}"));
    assert!(
        refused.is_some_and(|line| !line.ends_with(" 0")),
        "{metrics}"
    );
}
