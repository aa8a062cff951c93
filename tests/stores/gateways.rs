//! Whole gateways, as processes, on one store: what they grant together, and what becomes of the leases of one that ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_testkit::change_request;

use crate::servers::{Process, Server, free_port, wait_until};

/// How many clients ask all gateways together.
const CLIENTS: usize = 64;

pub struct Gateway {
    pub port: u16,
    pub admin: u16,
    pub process: Process,
    home: tempfile::TempDir,
}

fn file_with(port: u16, admin: u16, settings: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n{settings}"
    )
}

/// The table of the store on this server, for the gateway of this number. (Its deadline is not what these tests are
/// about, and the machine may be busy.)
pub fn store(server: &Server, place: usize) -> String {
    let (kind, url) = (server.name(), server.url_at(place));
    format!(
        "[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"10s\"\n\
         key_secret_file = \"secret\"\n"
    )
}

impl Gateway {
    fn leasing(server: &Server, place: usize, name: &str, limit: &str) -> Self {
        let store = store(server, place);
        Self::start_on(&format!(
            "{store}[limits.{name}]\nper = \"everyone\"\nlease = true\n{limit}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"{name}\"]\n"
        ))
    }

    /// A gateway with these settings beside its listeners, ready.
    pub fn start_on(settings: &str) -> Self {
        Self::start_at(free_port(), settings)
    }

    /// The same, on this port.
    pub fn start_at(port: u16, settings: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), port, settings)
    }

    /// Kills it and starts it again in its directory, where its state is.
    pub fn killed_and_started(self, settings: &str) -> Self {
        let Self {
            port,
            process,
            home,
            ..
        } = self;
        drop(process);
        Self::start_in(home, port, settings)
    }

    fn start_in(home: tempfile::TempDir, port: u16, settings: &str) -> Self {
        let admin = free_port();
        let file = home.path().join("gateway.toml");
        std::fs::write(&file, file_with(port, admin, settings)).unwrap();
        std::fs::write(home.path().join("secret"), "a secret that gateways share").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command
            .arg("run")
            .arg("--config")
            .arg(&file)
            .env("STATE_DIRECTORY", home.path());
        let process = Process::spawn(&mut command);
        let gateway = Self {
            port,
            admin,
            process,
            home,
        };
        wait_until("ready gateway", || {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", admin)) else {
                return false;
            };
            status(&mut stream, "/readyz").is_some_and(|status| status == 200)
        });
        gateway
    }

    /// Writes other settings into its file; it has to be told to reload.
    pub fn rewrite(&self, settings: &str) {
        let file = self.home.path().join("gateway.toml");
        std::fs::write(file, file_with(self.port, self.admin, settings)).unwrap();
    }

    pub fn metric(&self, name: &str) -> u64 {
        let text = response(self.admin, "GET /metrics HTTP/1.1\r\n");
        let line = text.lines().find(|line| {
            line.strip_prefix("tollgate_")
                .unwrap_or(line)
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(' ') || rest.starts_with("_total "))
        });
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.rsplit(' ')
            .next()
            .and_then(|number| number.split('.').next()?.parse().ok())
            .unwrap()
    }
}

/// The whole response to a request without a body, on a connection of its own.
pub fn response(port: u16, head: &str) -> String {
    exchange(port, &format!("{head}host: 127.0.0.1\r\n\r\n"))
}

/// Asks the gateway with this admin listener for a change of the bucket of everyone; its whole response.
pub fn change(admin: u16, method: &str, action: &str, body: &serde_json::Value) -> String {
    exchange(
        admin,
        &change_request(method, &format!("everyone/{action}"), body),
    )
}

/// What comes in response to this request until the connection ends.
fn exchange(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The status of one request on a connection that goes on; `None`: it ended.
pub fn status(stream: &mut TcpStream, path: &str) -> Option<u16> {
    status_with(stream, path, "")
}

/// The same with more headers, each with its line end.
pub fn status_with(stream: &mut TcpStream, path: &str, headers: &str) -> Option<u16> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(status)
}

/// Asks a gateway from a few connections until told to stop; what was granted is counted in `granted`.
pub fn ask_on<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    port: u16,
    connections: usize,
    stop: &'s AtomicBool,
    granted: &'s AtomicU64,
) {
    for _ in 0..connections {
        scope.spawn(move || {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                return;
            };
            while !stop.load(Ordering::Relaxed) {
                match status(&mut stream, "/") {
                    Some(200) => drop(granted.fetch_add(1, Ordering::Relaxed)),
                    Some(_) => std::thread::yield_now(),
                    None => return,
                }
            }
        });
    }
}

/// The shipped example of this store, on this server and with another limit, for the gateway of this number.
pub fn example(server: &Server, place: usize, limit: &str) -> String {
    let (kind, url) = (server.name(), server.url_at(place));
    let file = tollgate_testkit::repository().join(format!("examples/{kind}/gateway.toml"));
    let example = std::fs::read_to_string(file).unwrap();
    let line = |key: &str| {
        let mut lines = example.lines();
        let start = format!("{key} = ");
        lines.find(|line| line.starts_with(&start)).unwrap()
    };
    let replaced = [
        (line("url"), format!("url = \"{url}\"")),
        (line("when_down"), "when_down = \"refuse\"".to_owned()),
        // The deadline is not what this is about, and the machine may be busy.
        (
            line("answer_within"),
            "answer_within = \"900ms\"".to_owned(),
        ),
        (
            line("key_secret"),
            "key_secret_file = \"secret\"".to_owned(),
        ),
        (line("rate"), limit.to_owned()),
    ];
    replaced
        .into_iter()
        .fold(example.clone(), |text, (from, to)| {
            assert!(text.contains(from), "the example has {from}: {text}");
            text.replacen(from, &to, 1)
        })
}

/// So many gateways, of a limit of 10 a second with a burst of 10, grant what one would: never more, and nearly all.
pub fn share_exactly(server: &Server, count: usize) {
    let gateways: Vec<Gateway> = (0..count)
        .map(|place| {
            let settings = example(server, place, "rate = \"10/second\"\nburst = 10");
            // (Each time another bucket.)
            Gateway::start_on(&settings.replace("per_caller", &format!("per_caller_{count}")))
        })
        .collect();
    let (stop, granted, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for gateway in &gateways {
            ask_on(scope, gateway.port, CLIENTS / count, &stop, &granted);
        }
        let stops = Stops(&stop);
        while start.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(20));
            let (granted, most) = (granted.load(Ordering::Relaxed), at_most(10, 10, start));
            assert!(
                granted <= most,
                "{count} gateways granted {granted}, at most {most}"
            );
        }
        drop(stops);
    });
    let (granted, most) = (granted.load(Ordering::Relaxed), at_most(10, 10, start));
    assert!(
        (30..=most).contains(&granted),
        "{count} gateways granted {granted} of {most}: nearly all that the limit has"
    );
}

/// Stops the load when it is dropped: a test that fails does not wait for its load for ever.
pub struct Stops<'s>(pub &'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn at_most(burst: u64, rate: u64, start: Instant) -> u64 {
    burst + rate * u64::try_from(start.elapsed().as_micros()).unwrap() / 1_000_000 + 1
}

pub fn one_to_four_gateways_share_exactly(server: Server) {
    for count in 1..=4 {
        share_exactly(&server, count);
    }
}

/// Two gateways, asked in turn, give out a burst of 20 once.
pub fn two_gateways_give_out_a_burst_once(server: Server) {
    let gateways = [0, 1]
        .map(|place| Gateway::start_on(&example(&server, place, "rate = \"1/hour\"\nburst = 20")));
    let mut streams = gateways
        .each_ref()
        .map(|gateway| TcpStream::connect(("127.0.0.1", gateway.port)).unwrap());
    let answers: Vec<u16> = (0..24)
        .map(|turn| status(&mut streams[turn % 2], "/").unwrap())
        .collect();
    assert_eq!(answers, [[200; 20].as_slice(), &[429; 4]].concat());
}

/// Two gateways with leases never grant more, and one that is killed takes nothing along for good.
pub fn one_that_leases_is_killed(server: Server) {
    let limit = "rate = \"1000/second\"\nburst = 400";
    let (mut dying, living) = (
        Gateway::leasing(&server, 0, "total", limit),
        Gateway::leasing(&server, 1, "total", limit),
    );
    let (stop, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let counted = |what: &str| {
        let granted = granted.load(Ordering::Relaxed);
        let most = at_most(400, 1000, start);
        assert!(granted <= most, "{what}: granted {granted}, at most {most}");
        granted
    };
    // A client asks both in turn, less often than the bucket fills: a bucket at its limit is not leased.
    let mut clients =
        [dying.port, living.port].map(|port| TcpStream::connect(("127.0.0.1", port)).unwrap());
    wait_until("leases of both gateways", || {
        for turn in 0..100 {
            if status(&mut clients[turn % 2], "/") == Some(200) {
                granted.fetch_add(1, Ordering::Relaxed);
            }
        }
        counted("both");
        dying.metric("store_leases") > 0 && living.metric("store_leases") > 0
    });
    std::thread::scope(|scope| {
        ask_on(scope, dying.port, 4, &stop, &granted);
        ask_on(scope, living.port, 4, &stop, &granted);
        let stops = Stops(&stop);
        wait_until("use of more than the burst by both", || {
            counted("both") >= 800
        });
        dying.process.kill();
        let (killed_at, before) = (Instant::now(), counted("killed"));
        while killed_at.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(20));
            counted("one left");
        }
        let after = counted("one left");
        // What the dead one held is forgotten after 1.3 s; from then on the survivor gets all of the rate, as far as
        // this machine lets it ask.
        assert!(
            after - before > 200,
            "the survivor goes on: {}",
            after - before
        );
        drop(stops);
    });
    assert!(
        living.metric("limit_lease_bound_units{limit=\"total\"}") == 40,
        "the bound is published"
    );
}

/// What a gateway returns that stops can be asked for by another one. A lease that ends before its rest is given back loses
/// it: on a busy machine that may happen to one, and then says nothing about the others.
pub fn one_that_leases_stops(server: Server) {
    for attempt in 0..10 {
        if returns_its_leases(&server, &format!("total{attempt}")) {
            return;
        }
    }
    panic!("no gateway that stopped has returned all of its leases");
}

/// Whether all units that a gateway held are returned when it stops; never more than that.
fn returns_its_leases(server: &Server, limit: &str) -> bool {
    // No refill to speak of.
    let numbers = "rate = \"1/hour\"\nburst = 2000";
    let start = |place| Gateway::leasing(server, place, limit, numbers);
    let (mut leaving, staying) = (start(0), start(1));
    let mut stream = TcpStream::connect(("127.0.0.1", leaving.port)).unwrap();
    let mut asked = 0_u64;
    while asked < 300 || leaving.metric("store_leases") == 0 {
        match status(&mut stream, "/") {
            Some(200) => asked += 1,
            // The store was late, and may have charged the request.
            Some(503) => return false,
            other => panic!("it leases before it is empty: {other:?}"),
        }
    }
    drop(stream);
    let lost_before = leaving.metric("store_lease_units_forfeited");
    leaving.process.signal("-TERM");
    leaving.process.wait();
    let mut stream = TcpStream::connect(("127.0.0.1", staying.port)).unwrap();
    let mut granted = 0_u64;
    // What lies in its own leases it gives out first.
    for _ in 0..2000 - asked + 20 {
        match status(&mut stream, "/") {
            Some(200) => granted += 1,
            Some(503) => return false,
            _ => {}
        }
    }
    let lost = lost_before + staying.metric("store_lease_units_forfeited");
    assert!(
        granted <= 2000 - asked,
        "{asked}, then {granted} of 2000, {lost} lost"
    );
    granted + lost >= 2000 - asked
}
