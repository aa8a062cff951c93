//! On the way out: plain HTTP from the application, TLS to a partner whose quota must not be exceeded.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;

use crate::harness::{Gateway, PATIENCE, Reply, Upstream, eventually};
use crate::process::Process;
use crate::servers::{Redis, available};

/// A service behind TLS as `localhost`, that answers each request with the bytes that a test wants.
struct Partner {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Heard>>>,
    ended: Arc<AtomicBool>,
}

/// A request as the partner got it.
#[derive(Clone, Debug)]
struct Heard {
    /// The name that the TLS handshake asked for.
    name: Option<String>,
    head: String,
    at: Instant,
}

impl Heard {
    fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        fields
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }
}

impl Partner {
    /// Writes its authority's certificate to `ca.pem` in `folder`, and answers as `answer` says, given what it heard so far.
    fn start(folder: &Path, answer: impl Fn(&[Heard]) -> String + Send + Sync + 'static) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        fs::write(
            folder.join("ca.pem"),
            params.self_signed(&key).expect("signed").pem(),
        )
        .expect("written");
        let authority = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let site = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let site = site.signed_by(&key, &authority).expect("signed");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(
                vec![site.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .expect("the key fits");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (seen, ended) = (
            Arc::<Mutex<Vec<Heard>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (all, end, answer) = (Arc::clone(&seen), Arc::clone(&ended), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (config, all, answer) =
                    (Arc::clone(&config), Arc::clone(&all), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // The gateway closing a connection is an end like any other.
                    let _ = serve(stream, config, &all, &*answer);
                });
            }
        });
        Self {
            address,
            seen,
            ended,
        }
    }

    fn seen(&self) -> Vec<Heard> {
        self.seen.lock().expect("not poisoned").clone()
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what arrives when is what this partner is asked about"
)]
fn serve(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    all: &Mutex<Vec<Heard>>,
    answer: &dyn Fn(&[Heard]) -> String,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let session = rustls::ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut tls = rustls::StreamOwned::new(session, stream);
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            tls.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let name = tls.conn.server_name().map(str::to_owned);
        let heard = Heard {
            name,
            head: String::from_utf8_lossy(&head).into_owned(),
            at: Instant::now(),
        };
        let said = {
            let mut all = all.lock().expect("not poisoned");
            all.push(heard);
            answer(&all)
        };
        tls.write_all(said.as_bytes())?;
        tls.flush()?;
        if said.contains("connection: close") {
            return tls.sock.shutdown(Shutdown::Both);
        }
    }
}

fn ok(fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\nok")
}

fn out(partner: &Partner, folder: &Path, limit: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\negress = true\n\
         [limits.partner]\nper = \"everyone\"\n{limit}\n\
         [upstreams.partner]\nservers = [\"{}\"]\nca_file = '{}'\n\
         [[routes]]\nmatch = \"api.partner.example/v1/**\"\nupstream = \"partner\"\nlimits = [\"partner\"]\n",
        partner.url(),
        folder.join("ca.pem").display(),
    )
}

const HOST: [(&str, &str); 1] = [("Host", "api.partner.example")];
const PLENTY: &str = "rate = \"1000/second\"\n";

#[test]
fn egress_upstream_gets_its_own_host_and_no_client_headers() {
    let folder = tempfile::tempdir().expect("a folder");
    let partner = Partner::start(folder.path(), |_| ok(""));
    let gateway = Gateway::start(&out(&partner, folder.path(), PLENTY));
    let secrets = [
        ("Proxy-Authorization", "Basic eDp5"),
        ("Host", "api.partner.example"),
        ("Proxy-Connection", "close"),
    ];
    for target in [
        "/v1/x?a=%20",
        "http://api.partner.example/v1/x?a=%20",
        "http://api.partner.example:80/v1/x?a=%20",
    ] {
        let host = if target.contains(":80/") {
            "api.partner.example:80"
        } else {
            "api.partner.example"
        };
        let mut headers = vec![secrets[0], ("Host", host), secrets[2]];
        headers.extend(KEPT_BACK.iter().map(|name| (*name, "192.0.2.1")));
        let answer = gateway.request("GET", target, &headers);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "ok"),
            "{target}"
        );
        assert_eq!(answer.header("via"), Some("1.1 tollgate"));
    }
    let seen = partner.seen();
    assert_eq!(seen.len(), 3);
    for heard in seen {
        assert!(
            heard.head.starts_with("GET /v1/x?a=%20 HTTP/1.1\r\n"),
            "{}",
            heard.head
        );
        assert_eq!(heard.name.as_deref(), Some("localhost"));
        assert_eq!(
            heard.header("host"),
            Some(format!("localhost:{}", partner.address.port()).as_str())
        );
        assert!(
            heard
                .header("via")
                .is_some_and(|via| via.starts_with("1.1 tollgate (")),
            "{}",
            heard.head
        );
        for kept_back in ["proxy-authorization", "proxy-connection"]
            .iter()
            .chain(&KEPT_BACK)
        {
            assert_eq!(heard.header(kept_back), None, "{kept_back}");
        }
    }
}

/// What an application may say of its own callers.
const KEPT_BACK: [&str; 8] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-real-ip",
    "forwarded",
    "x_forwarded_for",
    "content_length",
];

#[test]
fn only_listed_hosts_are_forwarded_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let partner = Partner::start(folder.path(), |_| ok(""));
    let plain = Upstream::hello();
    let config = format!(
        "{}[[routes]]\nmatch = \"plain.example/**\"\nupstream = \"{}\"\n",
        out(&partner, folder.path(), PLENTY),
        plain.url()
    );
    let gateway = Gateway::start(&config);
    for (target, host, status) in [
        ("http://evil.example/v1/x", "evil.example", 421),
        ("/v1/x", "evil.example", 421),
        (
            "http://api.partner.example:8443/v1/x",
            "api.partner.example:8443",
            421,
        ),
        ("https://plain.example/", "plain.example", 421),
        ("/v1/x", "api.partner.example:8443", 421),
        ("/v1/x", "API.partner.example:22", 421),
        ("/", "plain.example:9999", 421),
        ("/v1/x", "api.partner.example:443", 200),
        ("/v1/x", "api.partner.example:", 200),
        (
            "/v1/x",
            &*format!("api.partner.example:{}", partner.address.port()),
            200,
        ),
        (
            "/",
            &*format!(
                "plain.example:{}",
                plain.url().rsplit(':').next().expect("a port")
            ),
            200,
        ),
        (
            "http://api.partner.example/other",
            "api.partner.example",
            404,
        ),
        ("http://plain.example/", "plain.example", 200),
        (
            "https://api.partner.example/v1/x",
            "api.partner.example",
            200,
        ),
    ] {
        let answer = gateway.request("GET", target, &[("Host", host)]);
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        if status == 421 {
            assert_eq!(
                answer.header("content-type"),
                Some("application/problem+json")
            );
            assert_eq!(
                answer.json()["type"],
                "urn:problem-type:tollgate:host-not-listed"
            );
        }
    }
    let refused = gateway.request(
        "CONNECT",
        "api.partner.example:443",
        &[("Host", "api.partner.example:443")],
    );
    assert_eq!(refused.status, 501);
    assert!(
        refused.json()["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("http://")),
        "{}",
        refused.text()
    );
    let metrics = gateway.admin_get("/metrics").text();
    for (reason, count) in [("host_not_listed", 7), ("no_route", 1), ("connect", 1)] {
        let line = format!("reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&line), "{reason}: {metrics}");
    }
    // A route without a host stands for the one service that the gateway is called by.
    let any = out(&partner, folder.path(), PLENTY).replace("api.partner.example/v1", "/v1");
    gateway.reload(&any).expect("a good file");
    assert_eq!(gateway.get("/v1/x").status, 200);
    assert_eq!(
        gateway
            .request(
                "GET",
                "http://evil.example/v1/x",
                &[("Host", "evil.example")]
            )
            .status,
        421
    );
}

#[test]
fn curl_goes_through_it_as_through_any_proxy() {
    if Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is not installed");
        eprintln!("skipped: curl is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let partner = Partner::start(folder.path(), |_| ok(""));
    let gateway = Gateway::start(&out(&partner, folder.path(), PLENTY));
    let ask = |url: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "-", "-w", " %{http_code} %{http_connect}"]);
        curl.args([
            "--proxy",
            &format!("http://{}", gateway.address()),
            "--noproxy",
            "",
            url,
        ]);
        String::from_utf8_lossy(&curl.output().expect("curl runs").stdout).into_owned()
    };
    assert_eq!(ask("http://api.partner.example/v1/x"), "ok 200 000");
    assert!(ask("http://elsewhere.example/v1/x").ends_with(" 421 000"));
    assert_eq!(
        ask("https://api.partner.example/v1/x"),
        " 000 501",
        "a tunnel is refused"
    );
}

#[test]
fn egress_quota_of_the_upstream_is_obeyed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = [
        "HTTP/1.1 429 Too Many\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nratelimit: \"day\";r=0;t=30\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nx-ratelimit-remaining: 512\r\nx-ratelimit-reset: 10\r\ncontent-length: 2\r\n\r\nok",
    ];
    let partner = Partner::start(folder.path(), move |heard| {
        script
            .get(heard.len() - 1)
            .map_or_else(|| ok(""), |said| (*said).to_owned())
    });
    let limit =
        "rate = \"1024/10s\"\nstore = \"local\"\nfollow_upstream = { least = \"1/minute\" }\n";
    let gateway = Gateway::start(&out(&partner, folder.path(), limit));
    let ask = || gateway.request("GET", "/v1/x", &HOST);
    assert_eq!(ask().status, 429, "the partner's own");
    for (wait, asked) in [(5_000, 1), (30_000, 2)] {
        let refused = ask();
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["retry_after_ms"], wait, "{}", refused.text());
        gateway.advance(Duration::from_millis(wait - 1));
        assert_eq!(
            (ask().status, partner.seen().len()),
            (429, asked),
            "not a moment earlier"
        );
        gateway.advance(Duration::from_millis(1));
        assert_eq!(ask().status, 200);
    }
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_limit_held_seconds{limit=\"partner\"} 0"),
        "{metrics}"
    );
    let factor = metrics
        .lines()
        .find(|line| line.starts_with("tollgate_limit_rate_factor{"))
        .expect("a gauge");
    assert!(
        factor.ends_with(" 0.5"),
        "512 of 1024 are left for the time: {factor}"
    );
}

#[test]
fn a_caller_waits_for_the_partner_rather_than_being_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let partner = Partner::start(folder.path(), |heard| match heard.len() {
        1 => "HTTP/1.1 429 Too Many\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => ok(""),
    });
    let limit = "rate = \"1/second\"\nburst = 2\nmax_wait = \"4s\"\nstore = \"local\"\nfollow_upstream = { least = \"1/s\" }\n";
    let gateway = Gateway::start(&out(&partner, folder.path(), limit));
    let head = "GET /v1/x HTTP/1.1\r\nHost: api.partner.example\r\n\r\n";
    assert_eq!(gateway.request("GET", "/v1/x", &HOST).status, 429);
    let allowed = || {
        let metrics = gateway.admin_get("/metrics").text();
        metrics.contains("tollgate_limit_decisions_total{limit=\"partner\",outcome=\"allow\"} 2\n")
    };
    let mut waiting = gateway.connect();
    waiting.send(head);
    eventually("it is admitted, and held", allowed);
    gateway.advance(Duration::from_millis(1_999));
    assert_eq!(partner.seen().len(), 1);
    gateway.advance(Duration::from_millis(1));
    assert_eq!(waiting.answer("GET").status, 200);
}

#[test]
fn a_request_that_comes_back_is_refused() {
    let echo = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\negress = true\n\
                [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    let one = Gateway::start(echo);
    let two = Gateway::start(&echo.replace("builtin:echo", &format!("http://{}", one.address())));
    assert_eq!(
        two.get("/").status,
        200,
        "one behind the other is no circle"
    );
    one.reload(&echo.replace("builtin:echo", &format!("http://{}", two.address())))
        .expect("a good file");
    let refused = two.get("/");
    assert_eq!(
        (refused.status, refused.json()["type"].as_str()),
        (508, Some("urn:problem-type:tollgate:loop"))
    );
    assert!(
        two.admin_get("/metrics")
            .text()
            .contains("reason=\"loop\"} 1\n")
    );
    let itself = one.reload(
        &echo
            .replace("builtin:echo", "http://localhost:8099")
            .replace("127.0.0.1:0", "0.0.0.0:8099"),
    );
    assert!(
        itself
            .expect_err("a circle of one")
            .contains("is this gateway itself")
    );
}

/// The partner counts what comes in any second; two gateways share one bucket, and requests wait in turn.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a fleet of processes runs in real time"
)]
fn a_fleet_keeps_to_the_partners_quota() {
    if !available("redis-server") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("secret"),
        "0123456789abcdef0123456789abcdef",
    )
    .expect("written");
    // The limit lets 25 through in any second; a busy machine may bunch some of two seconds. Two
    // gateways that do not share it let 50 through.
    const QUOTA: usize = 40;
    let partner = Partner::start(folder.path(), |heard| {
        let now = heard.last().expect("this one").at;
        let lately = heard
            .iter()
            .filter(|other| now.duration_since(other.at) < Duration::from_secs(1))
            .count();
        if lately <= QUOTA {
            return ok("");
        }
        "HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n".to_owned()
    });
    let redis = Redis::start();
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"refuse\"\nanswer_within = \"5s\"\nkey_secret_file = '{}'\n{}",
        redis.url(),
        folder.path().join("secret").display(),
        out(
            &partner,
            folder.path(),
            "rate = \"20/second\"\nburst = 5\nmax_wait = \"20s\"\n"
        ),
    );
    let fleet = [Process::with(&config, 1024), Process::with(&config, 1024)];
    for one in &fleet {
        let first = || {
            crate::harness::Connection::open(one.address)
                .request("GET", "/v1/x", &HOST)
                .status
                == 200
        };
        eventually("its store answers", first);
    }
    let begun = Instant::now();
    let callers: Vec<_> = (0..12)
        .map(|caller| {
            let address = fleet[caller % 2].address;
            std::thread::spawn(move || {
                let mut connection = crate::harness::Connection::open(address);
                (0..6)
                    .map(|_| connection.request("GET", "/v1/x", &HOST))
                    .map(|answer| answer.text())
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    for caller in callers {
        assert_eq!(
            caller.join().expect("it ends"),
            ["ok"; 6],
            "no request is refused, here or there"
        );
    }
    assert_eq!(partner.seen().len(), 2 + 72);
    assert!(
        begun.elapsed() >= Duration::from_millis(3_300),
        "(72 - 5) / 20 s: {:?}",
        begun.elapsed()
    );
}

/// What an answer of a plain upstream that hides its quota says is seen before it is hidden.
#[test]
fn egress_route_may_hide_the_obeyed_quota() {
    let upstream = Upstream::start(|_| Reply::new(200, &[("ratelimit", "\"a\";r=0;t=7")], "ok"));
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"10/second\"\nper = \"everyone\"\nfollow_upstream = {{ least = \"1/s\", obey_quota = true }}\n\
         [responses]\nheaders = \"off\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\nresponse_headers = {{ remove = \"ratelimit\" }}\n",
        upstream.url()
    ));
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    assert_eq!(gateway.get("/").json()["retry_after_ms"], 7_000);
}

#[test]
fn egress_check_and_explain_name_hosts_that_are_not_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    let config = "[server]\negress = true\n[[routes]]\nmatch = \"api.partner.example/v1/**\"\nupstream = \"https://api.partner.example\"\n\
                  [[tests]]\nsend = \"GET evil.example/v1/x\"\nexpect = { status = 421 }\n\
                  [[tests]]\nsend = \"GET api.partner.example/x\"\nexpect = { status = 404 }\n";
    fs::write(&file, config).expect("written");
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(words)
            .arg("--config")
            .arg(&file)
            .output();
        let output = output.expect("the program runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, said) = run(&["check"]);
    assert!(code == Some(0) && said.contains(" 0 failed"), "{said}");
    let (code, said) = run(&["explain", "GET evil.example/v1/x"]);
    assert!(code == Some(1) && said.contains("answered 421"), "{said}");
}
