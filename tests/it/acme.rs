//! Certificates that the gateway orders by itself, from a real authority: Pebble, by the authors of Let's Encrypt.
//!
//! Pebble asks a name server of its own, by which every host is 127.0.0.1, and checks hosts on the gateway's ports.

pub(crate) mod pebble;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Gateway, eventually};
use crate::servers::free_port;
use pebble::{Pebble, Ports, YEAR};

const HOST: &str = "api.example.com";
/// Past every wait between two orders.
const HOURS: Duration = Duration::from_secs(7_200);

/// A gateway on these ports that orders from `pebble`; `more` are keys of `[server.acme]`.
pub(crate) fn config(pebble: &Pebble, state: &Path, ports: Ports, more: &str) -> String {
    let hosts = if more.contains("hosts") {
        ""
    } else {
        "hosts = [\"api.example.com\"]\n"
    };
    let directory = if more.contains("directory") {
        String::new()
    } else {
        format!("directory = \"https://localhost:{}/dir\"\n", pebble.port())
    };
    format!(
        "[server]\nlisten = [\"http://127.0.0.1:{}\", \"https://127.0.0.1:{}\"]\nworkers = 1\n\
         [server.acme]\nstate = '{}'\nca_file = '{}'\nemail = \"ops@example.com\"\n{hosts}{directory}{more}\n\
         [[routes]]\nmatch = \"/**\"\nrespond = {{ body = \"served\" }}\n",
        ports.http,
        ports.https,
        state.display(),
        pebble.authority().display(),
    )
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// What a client that trusts `root` gets from `host`; empty: the handshake fails.
pub(crate) fn ask(host: &str, port: u16, root: &Path) -> String {
    let asked = Command::new("curl")
        .args(["-s", "--max-time", "10", "--cacert"])
        .arg(root)
        .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
        .arg(format!("https://{host}:{port}/"))
        .output()
        .expect("curl runs");
    String::from_utf8_lossy(&asked.stdout).into_owned()
}

/// The serial number of the certificate that is shown for `host`; empty: the handshake is refused.
fn serial(host: &str, port: u16) -> String {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{port} -servername {host} </dev/null 2>/dev/null \
         | openssl x509 -noout -serial 2>/dev/null"
    );
    let shown = Command::new("sh").args(["-c", &script]).output();
    String::from_utf8_lossy(&shown.expect("openssl runs").stdout)
        .trim()
        .to_owned()
}

fn metric(gateway: &Gateway, name: &str) -> f64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = metrics.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

const ISSUED: &str = "tollgate_acme_orders_total{result=\"issued\"}";
const FAILED: &str = "tollgate_acme_orders_total{result=\"failed\"}";

fn readiness(gateway: &Gateway) -> String {
    let answer = gateway.admin_get("/readyz?verbose");
    assert_eq!(answer.status, 200, "it stays ready: {}", answer.text());
    answer.text()
}

/// The folder of the authority in a state.
fn of_authority(state: &Path) -> PathBuf {
    let entries = fs::read_dir(state).expect("a folder").flatten();
    let mut folders = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    folders.next().expect("that of the authority")
}

const LOOK: &str = "look\nnone.example.com\nseen\n";

/// Waits until the gateway has looked into its state once more: `kept` has the text of [`LOOK`].
fn after_a_look(gateway: &Gateway, state: &Path, kept: &Path) {
    let file = of_authority(state).join("challenges/look");
    let is_seen = || gateway.get("/.well-known/acme-challenge/look").text() == "seen";
    fs::rename(kept, &file).expect("moved");
    eventually("a look", is_seen);
    fs::rename(&file, kept).expect("moved");
    eventually("a look", || !is_seen());
}

/// Moves the clock to a year before the certificate ends: less than a third of five years.
fn until_renewal(gateway: &Gateway) {
    let ends = metric(gateway, "tollgate_certificate_expiry_timestamp_seconds");
    let now = gateway.shared().clock.now().as_micros() / 1_000_000;
    let left = Duration::from_secs_f64(ends) - Duration::from_secs(now);
    gateway.advance(left - YEAR);
}

#[test]
fn acme_first_certificate_comes_by_both_challenges_and_is_private() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let ports = Ports::free();
        // One of five good nonces is refused, with another one; three refusals in a row end an order.
        let Some(pebble) = Pebble::start(ports, &[("PEBBLE_WFE_NONCEREJECT", "20")]) else {
            return;
        };
        let folder = folder();
        let more = format!("challenge = \"{challenge}\"");
        let config = config(&pebble, folder.path(), ports, &more);
        let gateway = Gateway::start(&config);
        // Before the first certificate handshakes are refused, and http is served.
        assert_eq!(gateway.get("/").text(), "served");
        let mut failed = 0.0;
        eventually("a certificate", || {
            let failures = metric(&gateway, FAILED);
            if failures > failed {
                failed = failures;
                gateway.advance(HOURS);
            }
            !serial(HOST, ports.https).is_empty()
        });
        assert_eq!(ask(HOST, ports.https, &pebble.root()), "served");
        eventually("it is counted", || metric(&gateway, ISSUED) == 1.0);
        assert_eq!(metric(&gateway, "tollgate_acme_last_order_good"), 1.0);
        assert!(readiness(&gateway).contains("[+] certificate: expires at 20"));
        // Nobody else can read what is there, and the challenges are gone.
        let authority = of_authority(folder.path());
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&authority), 0o700);
        let mut files = Vec::new();
        for entry in fs::read_dir(&authority).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            assert_eq!(
                mode(&path),
                if path.is_dir() { 0o700 } else { 0o600 },
                "{name}"
            );
            files.push(name);
        }
        assert!(files.iter().any(|name| name == "account.json"), "{files:?}");
        assert!(!files.iter().any(|name| name == "reserve"), "{files:?}");
        let left = fs::read_dir(authority.join("challenges"))
            .expect("a folder")
            .count();
        assert_eq!(left, 0);
        // A start shows it at once, without an authority.
        let before = serial(HOST, ports.https);
        gateway.shutdown();
        let _pebble = pebble.stopped();
        let _gateway = Gateway::start(&config);
        assert_eq!(serial(HOST, ports.https), before);
    }
}

#[test]
fn acme_renewal_serves_the_old_certificate_until_the_new_one_is_there() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[]) else {
        return;
    };
    let folder = folder();
    let gateway = Gateway::start(&config(&pebble, folder.path(), ports, ""));
    eventually("a certificate", || !serial(HOST, ports.https).is_empty());
    eventually("it is counted", || metric(&gateway, ISSUED) == 1.0);
    let old = serial(HOST, ports.https);
    // The authority is down.
    let pebble = pebble.stopped();
    until_renewal(&gateway);
    eventually("a try", || metric(&gateway, FAILED) == 1.0);
    assert_eq!(serial(HOST, ports.https), old);
    assert!(readiness(&gateway).contains("[!] certificate: expires at"));
    // The authority is back without its accounts, which the first try finds out. It now issues for fifty years.
    let pebble = pebble.again(YEAR * 50);
    gateway.advance(HOURS);
    eventually("a try", || metric(&gateway, FAILED) == 2.0);
    assert!(
        readiness(&gateway).contains("accountDoesNotExist"),
        "{}",
        readiness(&gateway)
    );
    assert_eq!(
        ask(HOST, ports.https, &pebble.root()),
        "",
        "the old one is of before"
    );
    gateway.advance(HOURS);
    eventually("a renewal", || {
        let shown = serial(HOST, ports.https);
        assert!(!shown.is_empty(), "a handshake is refused meanwhile");
        shown != old
    });
    assert_eq!(ask(HOST, ports.https, &pebble.root()), "served");
    eventually("it is counted", || metric(&gateway, ISSUED) == 2.0);
    assert!(readiness(&gateway).contains("[+] certificate: expires at"));
}

#[test]
fn acme_clock_far_ahead_orders_once_and_says_so() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[]) else {
        return;
    };
    let folder = folder();
    let gateway = Gateway::start(&config(&pebble, folder.path(), ports, ""));
    eventually("a certificate", || !serial(HOST, ports.https).is_empty());
    eventually("it is counted", || metric(&gateway, ISSUED) == 1.0);
    let old = serial(HOST, ports.https);
    until_renewal(&gateway);
    // What comes is as old as what it replaces, by this clock.
    eventually("a new one", || serial(HOST, ports.https) != old);
    eventually("words", || {
        readiness(&gateway).contains("is this machine's clock wrong?")
    });
    let new = serial(HOST, ports.https);
    let look = folder.path().join("look");
    fs::write(&look, LOOK).expect("written");
    after_a_look(&gateway, folder.path(), &look);
    assert_eq!(
        (metric(&gateway, ISSUED), metric(&gateway, FAILED)),
        (1.0, 1.0)
    );
    assert_eq!(serial(HOST, ports.https), new, "there was no further order");
}

#[test]
fn acme_host_that_the_authority_refuses_is_named_and_tried_again_later() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[]) else {
        return;
    };
    let folder = folder();
    // The check of the second host reaches a machine that is not this gateway.
    pebble.resolve("other.example.com", "127.0.0.2");
    let hosts = "hosts = [\"api.example.com\", \"other.example.com\"]";
    let gateway = Gateway::start(&config(&pebble, folder.path(), ports, hosts));
    eventually("a try", || metric(&gateway, FAILED) == 1.0);
    let said = readiness(&gateway);
    assert!(said.contains("[!] certificate: none yet; the last order failed: the authority checked: other.example.com: "), "{said}");
    assert!(!said.contains("api.example.com: "), "{said}");
    assert_eq!(metric(&gateway, "tollgate_acme_last_order_good"), 0.0);
    assert_eq!(serial(HOST, ports.https), "");
    // Not before its time, whoever looks.
    let look = folder.path().join("look");
    fs::write(&look, LOOK).expect("written");
    after_a_look(&gateway, folder.path(), &look);
    assert_eq!(metric(&gateway, FAILED), 1.0);
    pebble.resolve("other.example.com", "127.0.0.1");
    gateway.advance(HOURS);
    eventually("a certificate", || {
        ask("other.example.com", ports.https, &pebble.root()) == "served"
    });
    let old = serial(HOST, ports.https);
    // A host for which this authority gives none: the old certificate stays, and is shown for it too.
    let blocked = "hosts = [\"api.example.com\", \"blocked.example.com\"]";
    gateway
        .reload(&config(&pebble, folder.path(), ports, blocked))
        .expect("a good file");
    eventually("a try", || {
        readiness(&gateway).contains("rejectedIdentifier")
    });
    assert_eq!(serial(HOST, ports.https), old);
    // Another host is ordered by a reload.
    let fewer = "hosts = [\"third.example.com\", \"api.example.com\"]";
    gateway
        .reload(&config(&pebble, folder.path(), ports, fewer))
        .expect("a good file");
    eventually("a certificate", || {
        ask("third.example.com", ports.https, &pebble.root()) == "served"
    });
    // What was there before this table needs a restart.
    let without = "[server]\nlisten = \"127.0.0.1:0\"\n[[routes]]\nmatch = \"/**\"\nrespond = { body = \"new\" }\n";
    let words = gateway.reload(without).expect("a good file");
    assert!(words.contains("server.acme"), "{words}");
    assert_eq!(ask(HOST, ports.https, &pebble.root()), "new");
}

#[test]
fn acme_response_that_is_lost_at_any_step_costs_one_try() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[("PEBBLE_WFE_NONCEREJECT", "0")]) else {
        return;
    };
    let cutting = Cutting::start(pebble.port());
    let folder = folder();
    let directory = format!("directory = \"https://localhost:{}/dir\"", cutting.port);
    let gateway = Gateway::start(&config(&pebble, folder.path(), ports, &directory));
    // The n-th try loses the response to its n-th request, until one is over before.
    let mut lost = 0;
    loop {
        assert!(lost < 30, "{}", readiness(&gateway));
        eventually("the end of a try", || {
            metric(&gateway, ISSUED) + metric(&gateway, FAILED) > f64::from(lost)
        });
        if metric(&gateway, ISSUED) == 1.0 {
            break;
        }
        lost += 1;
        cutting.next();
        gateway.advance(HOURS);
    }
    assert!(lost >= 6, "an order has more steps than {lost}");
    assert_eq!(metric(&gateway, FAILED), f64::from(lost));
    eventually("a certificate", || {
        ask(HOST, ports.https, &pebble.root()) == "served"
    });
}

#[test]
fn acme_full_disk_leaves_the_old_certificate_and_orders_nothing() {
    let ports = Ports::free();
    let Some(pebble) = Pebble::start(ports, &[]) else {
        return;
    };
    let folder = folder();
    let Some(disk) = Disk::mount(folder.path()) else {
        return;
    };
    let gateway = Gateway::start(&config(&pebble, disk.0, ports, ""));
    eventually("a certificate", || !serial(HOST, ports.https).is_empty());
    eventually("it is counted", || metric(&gateway, ISSUED) == 1.0);
    let old = serial(HOST, ports.https);
    let kept = || {
        let mut files: Vec<_> = fs::read_dir(of_authority(disk.0))
            .expect("a folder")
            .flatten()
            .filter(|entry| entry.path().is_file())
            .filter(|entry| !entry.file_name().to_string_lossy().ends_with(".new"))
            .map(|entry| (entry.file_name(), fs::read(entry.path()).expect("readable")))
            .collect();
        files.sort();
        files
    };
    let before = kept();
    let look = disk.0.join("look");
    fs::write(&look, LOOK).expect("written");
    let mut filler = fs::File::create(disk.0.join("filler")).expect("created");
    while filler.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    until_renewal(&gateway);
    eventually("a try", || metric(&gateway, FAILED) == 1.0);
    let said = readiness(&gateway);
    assert!(said.contains("No space left on device"), "{said}");
    assert!(kept() == before, "nothing was replaced");
    assert_eq!(serial(HOST, ports.https), old);
    // It is not tried each second, although what became of it could not be kept.
    after_a_look(&gateway, disk.0, &look);
    assert_eq!(metric(&gateway, FAILED), 1.0);
    drop(filler);
    fs::remove_file(disk.0.join("filler")).expect("removed");
    gateway.advance(HOURS);
    eventually("a renewal", || serial(HOST, ports.https) != old);
}

#[test]
fn acme_gateways_with_one_state_make_one_order_and_answer_for_each_other() {
    let (one, two) = (Ports::free(), Ports::free());
    let Some(pebble) = Pebble::start(one, &[]) else {
        return;
    };
    let folder = folder();
    let first = Gateway::start(&config(&pebble, folder.path(), one, ""));
    let second = Gateway::start(&config(&pebble, folder.path(), two, ""));
    for ports in [one, two] {
        eventually("a certificate", || {
            ask(HOST, ports.https, &pebble.root()) == "served"
        });
    }
    assert_eq!(serial(HOST, one.https), serial(HOST, two.https));
    let all = |name: &str| metric(&first, name) + metric(&second, name);
    eventually("it is counted", || all(ISSUED) == 1.0);
    let look = folder.path().join("look");
    fs::write(&look, LOOK).expect("written");
    for gateway in [&first, &second] {
        after_a_look(gateway, folder.path(), &look);
        assert_eq!(metric(gateway, "tollgate_acme_last_order_good"), 1.0);
        assert!(readiness(gateway).contains("[+] certificate: expires at"));
    }
    assert_eq!((all(ISSUED), all(FAILED)), (1.0, 0.0));
    // The authority checks at the first gateway what the second one orders.
    let more = "hosts = [\"two.example.com\"]";
    second
        .reload(&config(&pebble, folder.path(), two, more))
        .expect("a good file");
    eventually("a certificate", || {
        ask("two.example.com", two.https, &pebble.root()) == "served"
    });
    assert_eq!(all(FAILED), 0.0);
    assert_eq!(
        ask(HOST, one.https, &pebble.root()),
        "served",
        "it keeps its own"
    );
}

#[test]
fn redirect_to_https_takes_requests_over_tcp_and_leaves_challenges_alone() {
    let folder = folder();
    let authority = crate::encrypted::authority(folder.path(), "one");
    crate::encrypted::issue(folder.path(), "site", &authority);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (http, https) = (free_port(), free_port());
    let log = at("access.log");
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = [\"http://127.0.0.1:{http}\", \"https://127.0.0.1:{https}\", 'unix:{}']\nworkers = 1\n\
         certificates = [{{ certificate = '{}', key = '{}' }}]\nredirect_to_https = true\n[log]\naccess = '{log}'\n\
         [[routes]]\nmatch = \"/**\"\nrespond = {{ body = \"served\" }}\n",
        at("socket"),
        at("site.pem"),
        at("site.key"),
    ));
    for (host, path, location) in [
        (
            "shop.example",
            "/a%20b?x=1&y=%2F",
            "https://shop.example/a%20b?x=1&y=%2F",
        ),
        ("Shop.Example.:8080", "/", "https://shop.example/"),
        ("[::1]:8080", "//x", "https://[::1]//x"),
    ] {
        let answer = gateway.request("GET", path, &[("host", host)]);
        assert_eq!(answer.status, 308, "{host}{path}");
        assert_eq!(answer.header("location"), Some(location));
    }
    let posted = gateway.request(
        "POST",
        "/",
        &[("host", "shop.example"), ("content-length", "0")],
    );
    assert_eq!(posted.status, 308);
    assert_eq!(gateway.request("GET", "/", &[("host", "a b")]).status, 400);
    // The router would take this for `/secret`.
    let other = "/.well-known/acme-challenge/../../secret";
    assert_eq!(gateway.get(other).status, 308);
    let nameless = raw(http, "GET /secret HTTP/1.0\r\n\r\n");
    assert!(nameless.starts_with("HTTP/1.0 400 "), "{nameless}");
    let challenge = "/.well-known/acme-challenge/x";
    assert_eq!(
        gateway.get(challenge).text(),
        "served",
        "a route may have it"
    );
    assert_eq!(
        ask("localhost", https, &folder.path().join("one.pem")),
        "served"
    );
    let local = Command::new("curl")
        .args(["-s", "--unix-socket", &at("socket"), "http://shop.example/"])
        .output()
        .expect("curl runs");
    assert_eq!(String::from_utf8_lossy(&local.stdout), "served");
    eventually("a line in the log", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("\"status\":308"))
    });
}

/// What comes back for these bytes until the end of the connection.
fn raw(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A tiny file system of a test's own.
struct Disk<'f>(&'f Path);

impl<'f> Disk<'f> {
    fn mount(at: &'f Path) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
            .arg(at)
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(at));
        }
        eprintln!("!!! SKIPPED: no file system can be mounted here, so no disk was full");
        None
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A proxy between a gateway and its authority that passes on a request, and drops the response to one.
struct Cutting {
    port: u16,
    /// The number of the try.
    attempt: Arc<AtomicUsize>,
    /// The requests of this try so far.
    requests: Arc<AtomicUsize>,
}

impl Cutting {
    fn start(authority: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let (attempt, requests) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
        let cutting = Self {
            port,
            attempt: Arc::clone(&attempt),
            requests: Arc::clone(&requests),
        };
        std::thread::spawn(move || {
            // Each request comes on a connection of its own.
            for client in listener.incoming().flatten() {
                let number = requests.fetch_add(1, Ordering::SeqCst) + 1;
                let cuts = number == attempt.load(Ordering::SeqCst);
                std::thread::spawn(move || carry(client, authority, cuts));
            }
        });
        cutting
    }

    fn next(&self) {
        self.requests.store(0, Ordering::SeqCst);
        self.attempt.fetch_add(1, Ordering::SeqCst);
    }
}

fn carry(client: TcpStream, authority: u16, cuts: bool) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", authority)) else {
        return;
    };
    let (mut up, mut to) = (
        client.try_clone().expect("cloned"),
        server.try_clone().expect("cloned"),
    );
    // In a handshake of TLS 1.3 the server speaks once: what the client sends after that has its request.
    let (spoken, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (has_spoken, has_asked) = (Arc::clone(&spoken), Arc::clone(&asked));
    let upwards = std::thread::spawn(move || {
        let mut piece = [0; 16 * 1024];
        while let Ok(length @ 1..) = up.read(&mut piece) {
            if has_spoken.load(Ordering::SeqCst) {
                has_asked.store(true, Ordering::SeqCst);
            }
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut down) = (server, client);
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if cuts && asked.load(Ordering::SeqCst) {
            continue;
        }
        spoken.store(true, Ordering::SeqCst);
        if down.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = down.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    let _ = upwards.join();
}
