//! A process hands over to another: sockets, buckets, callers. Nothing is lost, no bucket is refilled, and a new
//! process that does not come to serve changes nothing. And: sockets that a service manager holds.

mod certificates;
mod shares;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::{Connection, Reply, Upstream, change_request, eventually};
use crate::servers::free_port;

/// A `tollgate` of its own directory, and whatever processes follow it; all are killed when this is dropped.
struct Service {
    first: Child,
    /// The process that serves now.
    pid: u32,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    folder: tempfile::TempDir,
}

impl Service {
    fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("tollgate");
        // A program of its own: a test may put another in its place.
        copy(Path::new(env!("CARGO_BIN_EXE_tollgate")), &program);
        std::fs::write(folder.path().join("gateway.toml"), config).expect("written");
        let mut command = Command::new(program);
        command.arg("run");
        Self::run(command, folder)
    }

    fn run(mut command: Command, folder: tempfile::TempDir) -> Self {
        let mut first = command
            .current_dir(folder.path())
            .env("NO_COLOR", "1")
            .env_remove("TOLLGATE_CONFIG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let log = Arc::new(Mutex::new(String::new()));
        let (said, into) = (
            BufReader::new(first.stderr.take().expect("piped")),
            Arc::clone(&log),
        );
        // The processes that follow say what they say to the same pipe.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                *into.lock().expect("no panic") += &format!("{line}\n");
            }
        });
        let pid = first.id();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut service = Self {
            first,
            pid,
            address: unknown,
            log,
            folder,
        };
        service.await_line("listening", 1);
        let said = service.said();
        let first = said
            .split_once("listening address=")
            .and_then(|(_, rest)| rest.split_whitespace().next());
        service.address = first
            .and_then(|first| first.parse().ok())
            .unwrap_or_else(|| panic!("{said}"));
        service
    }

    fn said(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// The word behind the last of these, once they are said.
    fn after(&self, words: &str) -> String {
        self.await_line(words, 1);
        let said = self.said();
        let rest = said
            .rsplit_once(words)
            .unwrap_or_else(|| panic!("no {words:?} in:\n{said}"))
            .1;
        rest.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the deadline of a test is real time"
    )]
    fn await_line(&self, words: &str, times: usize) {
        let there = || {
            self.said()
                .lines()
                .filter(|line| line.contains(words))
                .count()
                >= times
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !there() {
            assert!(
                Instant::now() < deadline,
                "it does not say {words:?}:\n{}",
                self.said()
            );
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn count(&self, words: &str) -> usize {
        self.said()
            .lines()
            .filter(|line| line.contains(words))
            .count()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid.to_string()])
            .status();
        assert!(sent.expect("kill(1) is there").success());
    }

    /// Has the next process take over; the old one drains from then on.
    fn upgrade(&mut self) {
        let before = self.count(TAKEN);
        self.signal("USR2");
        self.await_line(TAKEN, before + 1);
        self.pid = self
            .after("a new process has taken over pid=")
            .parse()
            .expect("a number");
    }

    /// Stops it, and starts it again in its directory.
    fn restart(mut self) -> Self {
        self.signal("TERM");
        self.first.wait().expect("it ends");
        let nothing = tempfile::tempdir().expect("a directory");
        let folder = std::mem::replace(&mut self.folder, nothing);
        let mut command = Command::new(folder.path().join("tollgate"));
        command.arg("run");
        Self::run(command, folder)
    }

    fn await_end_of_old(&self, times: usize) {
        self.await_line("the gateway before this one has ended", times);
    }

    fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    fn get(&self, path: &str) -> u16 {
        self.connect().request("GET", path, &[]).status
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
        for pid in self
            .said()
            .split("pid=")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next())
        {
            let _ = Command::new("kill")
                .args(["-KILL", pid])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// By another process: a file that this one holds open for writing may be held by a child of another test as well, and
/// cannot be run then.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp")
        .arg(from)
        .arg(to)
        .status()
        .expect("cp(1) is there");
    assert!(done.success());
}

const TAKEN: &str = "a new process has taken over";

fn config(workers: usize, routes: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = {workers}\ntimeouts.drain = \"2s\"\nstate_file = \"state\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n{routes}"
    )
}

fn limited(path: &str, rate: &str, burst: u64, upstream: &str) -> String {
    let name = path.trim_matches('/');
    format!(
        "[limits.{name}]\nrate = \"{rate}\"\nburst = {burst}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"{path}\"\nupstream = \"{upstream}\"\nlimits = [\"{name}\"]\n"
    )
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "what a bucket refills in a process is real time"
)]
fn upgrades_under_load_lose_no_request_and_grant_at_most_twice() {
    const BURST: u64 = 150;
    const RATE: u64 = 10;
    let routes = limited("/tight", &format!("{RATE}/second"), BURST, "builtin:echo")
        + &limited("/open", "1000000/second", 1_000_000, "builtin:echo");
    let mut service = Service::start(&config(2, &routes));
    let begin = Instant::now();
    let (stop, admitted, answered) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let address = service.address;
    let count = |path: &str, status: u16| {
        answered.fetch_add(1, Ordering::Relaxed);
        match (path, status) {
            ("/tight", 200) => _ = admitted.fetch_add(1, Ordering::Relaxed),
            ("/tight", 429) | ("/open", 200) => {}
            (path, status) => panic!("{path}: {status}"),
        }
    };
    std::thread::scope(|scope| {
        let (stop, count) = (&stop, &count);
        let mut loads = Vec::new();
        for _ in 0..4 {
            loads.push(scope.spawn(move || {
                let mut connection = Connection::open(address);
                let mut asked = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    asked += 1;
                    let path = if asked.is_multiple_of(2) {
                        "/tight"
                    } else {
                        "/open"
                    };
                    if asked.is_multiple_of(7) {
                        count(
                            path,
                            Connection::open(address)
                                .request("GET", path, &[("connection", "close")])
                                .status,
                        );
                        continue;
                    }
                    let answer = connection.request("GET", path, &[]);
                    count(path, answer.status);
                    if answer.header("connection") == Some("close") {
                        connection = Connection::open(address);
                    }
                }
            }));
        }
        // Connections that rest between two requests.
        loads.push(scope.spawn(move || {
            let mut connection = Connection::open(address);
            while !stop.load(Ordering::Relaxed) {
                let answer = connection.request("GET", "/tight", &[]);
                count("/tight", answer.status);
                if answer.header("connection") == Some("close") {
                    connection = Connection::open(address);
                }
                std::thread::park_timeout(Duration::from_millis(300));
            }
        }));
        loads.push(scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(ask_over_http2(address, stop, count));
        }));
        for round in 1..=3 {
            let before = answered.load(Ordering::Relaxed);
            eventually("requests go on", || {
                answered.load(Ordering::Relaxed) > before + 50
            });
            service.upgrade();
            service.await_end_of_old(round);
        }
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().expect("no request was lost");
        }
    });
    // While the old process of an upgrade drains, it may grant as much as the new one.
    let most = 2 * (BURST + RATE * (begin.elapsed().as_secs() + 1));
    let admitted = admitted.into_inner();
    assert!(
        (BURST..=most).contains(&admitted),
        "{admitted} admitted, at most {most}"
    );
    assert_eq!(service.count("cut off"), 0, "{}", service.said());
}

#[test]
fn upgrade_hands_over_the_listener_for_decisions() {
    // A port that is written, since the sockets of a listener are found by their address.
    let port = free_port();
    let decide = format!("[decide]\nlisten = \"127.0.0.1:{port}\"\n");
    let routes = decide + &limited("/tight", "1/hour", 1, "builtin:echo");
    let mut service = Service::start(&config(2, &routes));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let ask = || {
        Connection::open(address)
            .request("GET", "/none", &[])
            .status
    };
    assert_eq!(ask(), 404);
    let mut waiting = Connection::open(address);
    service.upgrade();
    assert_eq!(ask(), 404);
    assert_eq!(waiting.request("GET", "/none", &[]).status, 404);
    service.await_end_of_old(1);
    assert_eq!(ask(), 404);
    // It was handed over with its queue, not bound anew.
    assert_eq!(service.count("cannot listen"), 0, "{}", service.said());
}

/// A limit of `places` requests at once, for all; `/slow` waits for the upstream, `/quick` does not.
fn at_once(places: u64, upstream: &str) -> String {
    format!(
        "[limits.places]\nin_flight = {places}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/slow\"\nupstream = \"{upstream}\"\nlimits = [\"places\"]\n\
         [[routes]]\nmatch = \"/quick\"\nupstream = \"builtin:echo\"\nlimits = [\"places\"]\n"
    )
}

#[test]
fn upgrade_counts_the_places_of_requests_that_the_old_process_ends() {
    let (release, upstream) = Upstream::held();
    let config =
        config(2, &at_once(3, &upstream.url())).replace("drain = \"2s\"", "drain = \"60s\"");
    let mut service = Service::start(&config);
    let slow = |service: &Service| {
        let mut connection = service.connect();
        connection.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
        connection
    };
    let under_way = |count: usize| {
        eventually("they are under way", || upstream.seen().len() == count);
    };
    let _first = [(); 3].map(|()| slow(&service));
    under_way(3);
    assert_eq!(service.get("/quick"), 429);
    let old = service.pid;
    service.upgrade();
    assert_eq!(
        service.get("/quick"),
        429,
        "all three places are held by the old process"
    );
    release.send(()).expect("the upstream waits");
    eventually("one of the three ends", || service.get("/quick") == 200);
    // The new process takes the place; the old one holds two. (Any of the three may have ended, so the connection of none
    // is closed.)
    let _fourth = slow(&service);
    under_way(4);
    assert_eq!(service.get("/quick"), 429);
    // It cannot free its places when it is killed.
    let killed = Command::new("kill")
        .args(["-KILL", &old.to_string()])
        .status();
    assert!(killed.expect("kill(1) is there").success());
    service.await_end_of_old(1);
    assert_eq!(service.get("/quick"), 200);
    let _taken = [slow(&service), slow(&service)];
    under_way(6);
    assert_eq!(service.get("/quick"), 429, "the new process holds three");
    for _ in 0..5 {
        release.send(()).expect("the upstream waits");
    }
    eventually("all end", || service.get("/quick") == 200);
}

#[test]
fn upgrade_permit_that_was_opened_before_holds_its_place_until_the_old_process_ends() {
    let port = free_port();
    let decide = format!("[decide]\nlisten = \"127.0.0.1:{port}\"\n");
    let routes = decide + &at_once(2, "builtin:echo");
    let config = config(2, &routes).replace("drain = \"2s\"", "drain = \"60s\"");
    let mut service = Service::start(&config);
    let post = |path: &str, body: String| {
        let length = body.len().to_string();
        let headers = [
            ("content-type", "application/json"),
            ("content-length", &length),
        ];
        let mut program = Connection::open(SocketAddr::from(([127, 0, 0, 1], port)));
        program.send(crate::harness::client::head("POST", path, &headers) + &body);
        program.answer("POST")
    };
    let ask = || {
        let asked = r#"{"requests": [{"limit": "places"}]}"#;
        post("/v1/decide", asked.to_owned()).json()["decisions"][0].clone()
    };
    let report = |path: &str, permit: &serde_json::Value| {
        post(path, format!("{{\"permit\": {permit}}}")).status
    };
    let permits = [ask()["permit"].clone(), ask()["permit"].clone()];
    assert_eq!(ask()["status"], 429);
    let old = service.pid;
    service.upgrade();
    assert_eq!(report("/v1/give-back", &permits[0]), 404, "it is not known");
    assert_eq!(ask()["status"], 429, "both places are held");
    let killed = Command::new("kill")
        .args(["-KILL", &old.to_string()])
        .status();
    assert!(killed.expect("kill(1) is there").success());
    service.await_end_of_old(1);
    let new = ask()["permit"].clone();
    assert_eq!(report("/v1/give-back", &new), 204);
    assert_eq!(report("/v1/give-back", &new), 404);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the deadline of a test is real time"
)]
fn a_third_gateway_does_not_take_the_state_file_of_one_that_took_over() {
    let mut service = Service::start(&config(1, &limited("/tight", "1/hour", 1, "builtin:echo")));
    service.upgrade();
    service.await_end_of_old(1);
    let mut third = Command::new(service.folder.path().join("tollgate"))
        .arg("run")
        .current_dir(service.folder.path())
        .env_remove("TOLLGATE_CONFIG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let deadline = Instant::now() + Duration::from_secs(30);
    let ended = loop {
        match third.try_wait().expect("waited for") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::park_timeout(Duration::from_millis(5)),
        }
    };
    third.kill().expect("still ours");
    let mut said = String::new();
    third
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut said)
        .expect("text");
    assert!(
        ended.is_some_and(|status| status.code() == Some(1)),
        "it runs beside the other: {said}"
    );
    assert!(said.contains("another gateway keeps its buckets"), "{said}");
}

async fn ask_over_http2(
    address: SocketAddr,
    stop: &AtomicBool,
    count: &(dyn Fn(&str, u16) + Sync),
) {
    let mut sender = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(requests) = &mut sender else {
            let stream = tokio::net::TcpStream::connect(address)
                .await
                .expect("it listens");
            let handshake =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (requests, connection) = handshake.await.expect("HTTP/2");
            tokio::spawn(connection);
            sender = Some(requests);
            continue;
        };
        // It was told to go (GOAWAY).
        if requests.ready().await.is_err() {
            sender = None;
            continue;
        }
        let request = http::Request::get("http://a/tight")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let answer = match requests.try_send_request(request).await {
            Ok(answer) => answer,
            Err(mut failed) => {
                // hyper gives a request back that it never sent: the connection ended after `ready` was asked.
                assert!(
                    failed.take_message().is_some(),
                    "a request was lost: {}",
                    failed.into_error()
                );
                sender = None;
                continue;
            }
        };
        count("/tight", answer.status().as_u16());
        answer.into_body().collect().await.expect("a whole body");
    }
}

/// The bound that the book gives: what the bucket held, once more, and over HTTP/1 one request for
/// each connection.
#[test]
fn upgrade_old_process_grants_once_more_what_a_bucket_held() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let upstream = Upstream::start(move |request| {
        if request.line().contains("/slow") {
            held.lock().expect("no panic").recv().expect("released");
        }
        Reply::ok("finished")
    });
    let routes = limited("/few", "3/day", 3, &upstream.url())
        + &limited("/slow", "5/day", 5, &upstream.url())
        + "[[routes]]\nmatch = \"/free\"\nupstream = \"builtin:echo\"\n";
    let mut service = Service::start(&config(2, &routes));
    let mut old = [(); 4].map(|()| service.connect());
    assert_eq!(
        old[0].request("GET", "/few", &[]).status,
        200,
        "one of three"
    );
    for connection in &mut old[1..] {
        assert_eq!(connection.request("GET", "/free", &[]).status, 200);
    }
    let mut slow = service.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("it is under way", || upstream.seen().len() == 2);
    service.upgrade();
    let new = [(); 4].map(|()| service.get("/few"));
    assert_eq!(new, [200, 200, 429, 429], "the new process had two");
    let mut granted = 0;
    for connection in &mut old {
        let answer = connection.request("GET", "/few", &[]);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(connection.is_closed());
        granted += u32::from(answer.status == 200);
    }
    assert_eq!(granted, 2, "and so had the old one");
    release.send(()).expect("the upstream waits");
    let answer = slow.answer("GET");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "finished"),
        "what was under way ends well"
    );
    service.await_end_of_old(1);
    assert_eq!(service.get("/few"), 429);
    service.signal("TERM");
    eventually("the state is saved by the one that has it", || {
        service.folder.path().join("state").exists()
    });
}

/// The old process needs nothing from the new one to end its requests.
#[test]
fn upgrade_old_process_ends_its_requests_while_the_new_one_is_stopped() {
    let (release, upstream) = Upstream::held();
    let routes = limited("/few", "2/day", 2, "builtin:echo")
        + &limited("/slow", "1/day", 1, &upstream.url());
    let config = config(2, &routes).replace("drain = \"2s\"", "drain = \"60s\"");
    let mut service = Service::start(&config);
    let mut old = service.connect();
    assert_eq!(old.request("GET", "/few", &[]).status, 200, "one of two");
    let mut slow = service.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("it is under way", || upstream.seen().len() == 1);
    service.upgrade();
    service.signal("STOP");
    assert_eq!(old.request("GET", "/few", &[]).status, 200, "two of two");
    release.send(()).expect("the upstream waits");
    assert_eq!(slow.answer("GET").status, 200);
    service.signal("CONT");
    service.await_end_of_old(1);
    assert_eq!(service.get("/few"), 200, "the new process had one");
    assert_eq!(service.get("/few"), 429);
}

#[test]
fn upgrade_keeps_penalties() {
    let routes = "[limits.each]\nrate = \"1/minute\"\nper = \"address\"\n\
        penalty = { after = \"2 refusals in 1h\", block = \"1h\" }\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"each\"]\n";
    // Without a state file: the handover alone carries them.
    let settings = config(1, routes).replacen("state_file = \"state\"\n", "", 1);
    let mut service = Service::start(&settings);
    let statuses = [(); 3].map(|()| service.get("/"));
    assert_eq!(statuses, [200, 429, 429]);
    let wait = |service: &Service| {
        let refused = service.connect().request("GET", "/", &[]);
        let wait = refused.header("retry-after").expect("a wait").to_owned();
        wait.parse::<u64>().expect("seconds")
    };
    assert!(wait(&service) > 60);
    service.upgrade();
    assert!(
        wait(&service) > 60,
        "blocked, not only refused by the bucket"
    );
}

/// Without a state file: the handover alone carries what operators have set.
#[test]
fn upgrade_without_a_state_file_keeps_overrides_of_local_limits() {
    let settings = config(1, &limited("/few", "1/hour", 1, "builtin:echo"));
    let operators = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";
    let settings = settings
        .replacen("state_file = \"state\"\n", "", 1)
        .replacen("[admin]\n", &format!("[admin]\n{operators}"), 1);
    let mut service = Service::start(&settings);
    let admin = service.after("the admin listener address=http://");
    let mut admin = Connection::open(admin.parse().expect("an address"));
    let body = serde_json::json!({ "reason": "r", "block": true, "for": "1h" });
    let change = change_request("PUT", "everyone/override", &body);
    admin.send(change);
    assert_eq!(admin.answer("PUT").status, 200);
    service.upgrade();
    let refused = service.connect().request("GET", "/few", &[]);
    assert!(
        refused.text().contains("tollgate:blocked"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_new_process_that_does_not_come_to_serve_changes_nothing() {
    let mut service = Service::start(&config(2, &limited("/few", "2/day", 2, "builtin:echo")));
    let mut connection = service.connect();
    assert_eq!(
        connection.request("GET", "/few", &[]).status,
        200,
        "one of two"
    );
    let file = service.folder.path().join("gateway.toml");
    let good = std::fs::read_to_string(&file).expect("there");
    let mut failures = 0;
    let mut fails = |service: &Service| {
        service.signal("USR2");
        failures += 1;
        service.await_line("no new process has taken over", failures);
        service.get("/nowhere")
    };

    // A file it does not understand. (The running process sees the change too, and refuses it.)
    std::fs::write(&file, good.replace("burst", "brust")).expect("written");
    assert_eq!(fails(&service), 404);
    std::fs::write(&file, &good).expect("written");

    // A program that ends at once, one that ends when it has the sockets, one that ends when it has the buckets, one
    // that says what the new process does not understand.
    let program = service.folder.path().join("tollgate");
    let aside = service.folder.path().join("aside");
    std::fs::rename(&program, &aside).expect("moved");
    for (until, say) in [
        ("", ""),
        ("hello", ""),
        ("state", ""),
        ("hello", "nonsense"),
    ] {
        let script = service.folder.path().join("script");
        std::fs::write(&script, impostor(until, say)).expect("written");
        copy(&script, &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .expect("made executable");
        assert_eq!(fails(&service), 404, "{until} {say}");
    }
    std::fs::remove_file(&program).expect("removed");
    assert_eq!(fails(&service), 404, "no program at all");
    std::fs::rename(&aside, &program).expect("moved");

    assert_eq!(
        connection.request("GET", "/few", &[]).status,
        200,
        "two of two, on the same connection"
    );
    assert_eq!(
        connection.request("GET", "/few", &[]).status,
        429,
        "nothing was refilled"
    );
    // And after all that it can still be replaced.
    service.upgrade();
    assert_eq!(service.get("/few"), 429);
}

#[test]
fn sigterm_while_a_new_process_hangs_gives_it_up_and_drains() {
    let config = config(1, &limited("/few", "2/day", 2, "builtin:echo"));
    let config = config.replace(
        "timeouts.drain",
        "timeouts.drain_delay = \"0s\"\ntimeouts.drain",
    );
    let mut service = Service::start(&config);
    let program = service.folder.path().join("tollgate");
    let script = service.folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh\nexec sleep 600\n").expect("written");
    std::fs::rename(&program, service.folder.path().join("aside")).expect("moved");
    copy(&script, &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .expect("made executable");
    service.signal("USR2");
    service.await_line("a new process starts, to take over", 1);
    service.signal("TERM");
    eventually("it ends", || {
        service.first.try_wait().expect("a child").is_some()
    });
    service.await_line("this process was told to stop", 1);
    assert!(
        service.folder.path().join("state").exists(),
        "the buckets are saved"
    );
}

#[test]
fn upgrade_while_the_process_before_has_not_ended_is_refused() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let upstream = Upstream::start(move |_| {
        let _ = held.lock().expect("no panic").recv();
        Reply::ok("finished")
    });
    let config = config(1, &limited("/few", "2/day", 2, &upstream.url()));
    let mut service =
        Service::start(&config.replace("timeouts.drain = \"2s\"", "timeouts.drain = \"1h\""));
    let mut slow = service.connect();
    slow.send("GET /few HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it is under way", || upstream.seen().len() == 1);
    service.upgrade();
    service.signal("USR2");
    service.await_line("the gateway before this one has not ended yet", 1);
    assert_eq!(service.count(TAKEN), 1);
    release.send(()).expect("the upstream waits");
    assert_eq!(slow.answer("GET").text(), "finished");
    service.await_end_of_old(1);
    drop(release);
    service.upgrade();
}

/// A program that goes along until it has received `until`, says `say`, and ends.
fn impostor(until: &str, say: &str) -> String {
    format!(
        r#"#!/usr/bin/env python3
import json, socket, struct, sys
until, say = "{until}", "{say}"
line = socket.socket(fileno=0)
def send(kind):
    text = json.dumps(kind).encode()
    line.sendall(struct.pack("<I", len(text)) + text)
def receive():
    length, = struct.unpack("<I", line.recv(4, socket.MSG_WAITALL))
    message = json.loads(line.recv(length, socket.MSG_WAITALL))
    return message if isinstance(message, str) else list(message)[0]
if until:
    assert receive() == "hello"
    line.recvmsg(1, 4096)
    if until == "state":
        send("ready")
        assert receive() == "state"
if say:
    send(say)
sys.exit(3)
"#
    )
}

#[test]
fn the_next_process_has_its_own_workers_and_listeners() {
    let routes = limited("/few", "1/day", 1, "builtin:echo");
    let with = |workers: usize, listen: &str| {
        config(workers, &routes).replace(
            "listen = \"127.0.0.1:0\"\nworkers",
            &format!("listen = {listen}\nworkers"),
        )
    };
    let mut service = Service::start(&with(3, "[\"127.0.0.1:0\", \"unix:here.sock\"]"));
    let admin = service
        .after("the admin listener address=http://")
        .parse::<SocketAddr>()
        .expect("an address");
    let file = service.folder.path().join("gateway.toml");
    for (round, (workers, listen)) in [
        (1, "[\"127.0.0.1:0\", \"unix:here.sock\"]"),
        (
            2,
            "[\"127.0.0.1:0\", \"unix:new.sock\", \"unix:here.sock\"]",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&file, with(workers, listen)).expect("written");
        service.upgrade();
        let mut connections: Vec<Connection> = (0..40).map(|_| service.connect()).collect();
        for connection in &mut connections {
            assert_eq!(
                connection.request("GET", "/nowhere", &[]).status,
                404,
                "whichever socket it came to"
            );
        }
        assert_eq!(
            Connection::open(admin)
                .request("GET", "/readyz", &[])
                .status,
            200
        );
        assert_eq!(over_unix(&service.folder.path().join("here.sock")), 404);
        service.await_end_of_old(round + 1);
    }
    assert_eq!(over_unix(&service.folder.path().join("new.sock")), 404);
    assert_eq!(
        over_unix(&service.folder.path().join("here.sock")),
        404,
        "the old process left the file alone"
    );
}

fn over_unix(path: &Path) -> u16 {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(path).expect("it listens");
    stream
        .write_all(b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"))
}

/// Binds as a service manager would, and becomes the program.
const MANAGER: &str = r#"
import os, socket, sys
names = sys.argv[1].split()
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
text = open("template.toml").read()
for name, one in zip(names, sockets):
    text = text.replace(name, "127.0.0.1:%d" % one.getsockname()[1])
open("gateway.toml", "w").write(text)
held = [os.dup(one.fileno()) for one in sockets]
high = [os.dup2(fd, 50 + place) for place, fd in enumerate(held)]
for place, fd in enumerate(high):
    os.dup2(fd, 3 + place, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)))
os.execv(sys.argv[2], [sys.argv[2], "run"])
"#;

#[test]
fn sockets_of_a_service_manager_are_taken_and_handed_on() {
    let template = config(2, &limited("/few", "2/day", 2, "builtin:echo"))
        .replacen("127.0.0.1:0", "WEB", 1)
        .replacen("127.0.0.1:0", "ADMIN", 1);
    let command = |names: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", MANAGER, names, env!("CARGO_BIN_EXE_tollgate")]);
        command
    };
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join("template.toml"), &template).expect("written");
    let notified = UnixDatagram::bind(folder.path().join("notify")).expect("bound");
    notified
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("set");
    let heard = || {
        let mut text = [0; 256];
        let length = notified
            .recv(&mut text)
            .expect("a word to the service manager");
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    let mut manager = command("WEB ADMIN");
    manager.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let mut service = Service::run(manager, folder);
    assert_eq!(heard(), "READY=1");
    let file =
        std::fs::read_to_string(service.folder.path().join("gateway.toml")).expect("written");
    assert!(file.contains(&service.address.to_string()), "{file}");
    assert_eq!(service.get("/few"), 200);
    service.upgrade();
    assert_eq!(
        heard(),
        format!("MAINPID={}", service.pid),
        "before the new process speaks for itself"
    );
    assert_eq!(heard(), "READY=1");
    assert_eq!(service.get("/few"), 200);
    assert_eq!(service.get("/few"), 429);
    service.await_end_of_old(1);
    notified.set_nonblocking(true).expect("set");
    assert!(
        notified.recv(&mut [0; 256]).is_err(),
        "the old process does not say that the service ends"
    );
    drop(service);

    // A socket that the file does not name.
    let folder = tempfile::tempdir().expect("a directory");
    let strange = template
        .replace("ADMIN", "off")
        .replace("WEB", "127.0.0.1:0");
    std::fs::write(folder.path().join("template.toml"), strange).expect("written");
    let output = command("OTHER")
        .current_dir(folder.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("a socket on 127.0.0.1:") && said.contains("server.listen"),
        "{said}"
    );
}
