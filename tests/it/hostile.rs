//! Hostile clients: slow ones, floods of connections and of frames, bombs. Memory and descriptors stay bounded, and a
//! bystander on the same worker is served all the while.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::harness::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, request,
};
use crate::harness::{PATIENCE, Reply, Upstream, eventually};
use crate::process::Process;

/// One worker, so that all connections meet; short bounds.
fn gateway(upstream: &Upstream, more: &str) -> Process {
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [server.timeouts]\nheader_read = \"1s\"\nbody_idle = \"1s\"\nkeep_alive = \"2s\"\n\
         [server.bounds]\n{more}\n\
         [admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n\
         [[routes]]\nmatch = \"/up/**\"\nupstream = \"{}\"\n",
        upstream.url()
    );
    Process::with(&config, 1024)
}

/// Megabytes of memory that stand for this process.
fn resident(process: &Process) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a figure");
    line.split_whitespace()
        .next()
        .expect("a number")
        .parse::<u64>()
        .expect("a number")
        / 1024
}

fn descriptors(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.child.id()))
        .expect("Linux")
        .count()
}

/// Who wants nothing but to be served: asks again and again on one connection and on new ones.
pub(crate) struct Bystander {
    stop: AtomicBool,
    asked: AtomicU64,
    longest_micros: AtomicU64,
}

impl Bystander {
    pub(crate) const fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            longest_micros: AtomicU64::new(0),
        }
    }

    /// Sends requests until the test stops it.
    ///
    /// # Panics
    /// When it is not answered.
    #[expect(
        clippy::disallowed_methods,
        reason = "how long an answer takes is real time"
    )]
    pub(crate) fn ask<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        dial: impl Fn() -> TcpStream + Send + 's,
    ) {
        scope.spawn(move || {
            let mut kept = dial();
            while !self.stop.load(Ordering::Relaxed) {
                let since = Instant::now();
                if ask(&mut kept).is_none() {
                    // An idle connection may have been closed in order.
                    kept = dial();
                    assert_eq!(ask(&mut kept), Some(200), "the bystander's connection");
                }
                assert_eq!(
                    ask(&mut dial()),
                    Some(200),
                    "the bystander's new connection"
                );
                let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.longest_micros.fetch_max(took, Ordering::Relaxed);
                self.asked.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
    }

    /// Tells it to stop, after it was served once more; how long its longest wait was.
    pub(crate) fn dismiss(&self) -> Duration {
        let asked = self.asked.load(Ordering::Relaxed);
        eventually("the bystander is served once more", || {
            self.asked.load(Ordering::Relaxed) > asked
        });
        self.stop.store(true, Ordering::Relaxed);
        Duration::from_micros(self.longest_micros.load(Ordering::Relaxed))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Stops the bystander when a test fails, too: its thread would be waited for.
struct Stop<'b>(&'b Bystander);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn dial(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// The status of one request; the connection lives on.
pub(crate) fn ask(stream: &mut TcpStream) -> Option<u16> {
    stream
        .write_all(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n")
        .ok()?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer)
        .split(' ')
        .nth(1)?
        .parse()
        .ok()
}

/// Runs `attack` while a bystander is served; afterwards no more than `megabytes` were added, and nothing is left open.
fn withstands(process: &Process, megabytes: u64, attack: impl FnOnce()) {
    let (before, open) = (resident(process), descriptors(process));
    let bystander = Bystander::new();
    std::thread::scope(|scope| {
        let stop = Stop(&bystander);
        bystander.ask(scope, || dial(process.address));
        attack();
        let longest = bystander.dismiss();
        assert!(
            longest < Duration::from_secs(5),
            "the bystander waited for {longest:?}"
        );
        drop(stop);
    });
    let after = resident(process);
    assert!(
        after <= before + megabytes,
        "{before} MiB have become {after} MiB"
    );
    eventually("what was opened is closed", || {
        descriptors(process) <= open + 2
    });
}

#[test]
fn floods_of_frames_are_bounded() {
    let upstream = Upstream::start(|_| Reply::Silence);
    let process = gateway(&upstream, "");
    let window = 1_u32.to_be_bytes();
    let streams = [0, 3, 0, 0, 0, 100];
    let rapid: Vec<u8> = (0..4000)
        .flat_map(|number| {
            let stream = number * 2 + 1;
            let head = frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                request("GET", "/up/x", &[]),
            );
            [head, frame(RST_STREAM, 0, stream, 8_u32.to_be_bytes())].concat()
        })
        .collect();
    let circle: Vec<u8> = (0..20_000_u32)
        .flat_map(|n| {
            frame(
                PRIORITY,
                0,
                n * 2 + 1,
                [&(n * 2 + 3).to_be_bytes()[..], &[1]].concat(),
            )
        })
        .collect();
    let open = frame(HEADERS, END_HEADERS, 1, request("POST", "/up/x", &[]));
    let unfinished = frame(HEADERS, END_STREAM, 1, request("GET", "/", &[]));
    let long = block(&[("x-a", &"a".repeat(8000))]);
    let floods: Vec<(&str, Vec<u8>)> = vec![
        ("PING", frame(PING, 0, 0, b"12345678").repeat(50_000)),
        (
            "acknowledged PING",
            frame(PING, 1, 0, b"12345678").repeat(50_000),
        ),
        ("SETTINGS", frame(SETTINGS, 0, 0, streams).repeat(50_000)),
        ("empty SETTINGS", frame(SETTINGS, 0, 0, b"").repeat(50_000)),
        (
            "WINDOW_UPDATE",
            frame(WINDOW_UPDATE, 0, 0, window).repeat(50_000),
        ),
        ("PRIORITY", circle),
        (
            "frames of no known kind",
            frame(0xfa, 0xff, 1, [0; 100]).repeat(20_000),
        ),
        ("GOAWAY", frame(GOAWAY, 0, 0, [0; 100]).repeat(5_000)),
        ("rapid reset", rapid),
        (
            "empty DATA",
            [open.clone(), frame(DATA, 0, 1, b"").repeat(50_000)].concat(),
        ),
        (
            "padded empty DATA",
            [open.clone(), frame(DATA, 8, 1, [3, 0, 0, 0]).repeat(50_000)].concat(),
        ),
        (
            "DATA of one byte",
            [open.clone(), frame(DATA, 0, 1, b"x").repeat(50_000)].concat(),
        ),
        (
            "CONTINUATION",
            [
                unfinished.clone(),
                frame(CONTINUATION, 0, 1, long).repeat(2_000),
            ]
            .concat(),
        ),
        (
            "empty CONTINUATION",
            [unfinished, frame(CONTINUATION, 0, 1, b"").repeat(50_000)].concat(),
        ),
        (
            "RST_STREAM",
            [
                open,
                frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()).repeat(50_000),
            ]
            .concat(),
        ),
    ];
    for (what, bytes) in floods {
        eprintln!("{what}");
        withstands(&process, 24, || {
            // Four at once; the responses are not read until all is sent, if they ever are.
            let mut attackers: Vec<Frames> =
                (0..4).map(|_| Frames::open(process.address, &[])).collect();
            std::thread::scope(|scope| {
                for attacker in &mut attackers {
                    scope.spawn(|| {
                        attacker
                            .stream
                            .set_write_timeout(Some(Duration::from_secs(1)))
                            .expect("set");
                        let _ = attacker.try_send(&bytes);
                    });
                }
            });
        });
    }
    let reached = upstream.seen().len();
    assert!(
        reached < 1000,
        "{reached} of 16000 requests that were taken back at once reached the upstream"
    );
}

#[test]
fn header_bombs_are_refused_over_both_versions() {
    let upstream = Upstream::hello();
    let process = gateway(&upstream, "");
    // 4000 bytes in the dynamic table, then a byte for each time they are meant again (RFC 7541 7.3).
    let mut bomb = request("GET", "/", &[]);
    bomb.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'x'; 4000]);
    bomb.extend([0xbe; 10_000]);
    withstands(&process, 24, || {
        for _ in 0..20 {
            let mut connection = Frames::open(process.address, &[]);
            connection.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb));
            let fate = connection.fate(1);
            assert!(fate.is_refused(), "{fate:?}");
        }
        let many: String = (0..200).map(|n| format!("x-{n}: v\r\n")).collect();
        for head in [
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nx-a: {}\r\n\r\n",
                "a".repeat(1 << 20)
            ),
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 20)),
            format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"),
            "\r\n".repeat(1 << 19),
            "A".repeat(1 << 20),
        ] {
            let mut stream = dial(process.address);
            // It may be closed in the middle of this.
            let _ = stream.write_all(head.as_bytes());
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
        }
        let fields: Vec<(String, &str)> = (0..200).map(|n| (format!("x-{n}"), "v")).collect();
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        let mut connection = Frames::open(process.address, &[]);
        connection.ask(1, "GET", "/", &fields);
        assert_eq!(connection.fate(1).status, Some(431));
    });
}

#[test]
fn slow_heads_bodies_and_readers_are_cut_off_over_both_versions() {
    let upstream = Upstream::start(|_| Reply::new(200, &[], vec![b'x'; 8 << 20]));
    let process = gateway(&upstream, "");
    let body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
    let forwarded = body.replace("POST /", "POST /up/x");
    withstands(&process, 32, || {
        let mut slow: Vec<TcpStream> = Vec::new();
        for start in [
            "",
            "G",
            "GET / HTTP/1.1\r\nHost: a\r\nx-a: ",
            "\r\n",
            body,
            &forwarded,
            "GET /up/x HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            for _ in 0..10 {
                let mut stream = dial(process.address);
                stream.write_all(start.as_bytes()).expect("sent");
                slow.push(stream);
            }
        }
        // HTTP/2: nothing at all, half a block, a body that does not come (echoed, forwarded), a window that stays shut
        // while pings come in.
        let mut frames: Vec<Frames> = Vec::new();
        let heads: [&[u8]; 5] = [
            b"",
            &frame(HEADERS, END_STREAM, 1, request("GET", "/", &[])),
            &frame(HEADERS, END_HEADERS, 1, request("POST", "/", &[])),
            &frame(HEADERS, END_HEADERS, 1, request("POST", "/up/x", &[])),
            &frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                1,
                request("GET", "/up/x", &[]),
            ),
        ];
        for head in heads {
            for _ in 0..10 {
                let mut connection = Frames::open(process.address, &[(4, 0)]);
                connection.send(head);
                frames.push(connection);
            }
        }
        // Each ends by the gateway's doing: what is read is an end. Slow readers have read nothing so far.
        for stream in &mut slow {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            std::thread::park_timeout(Duration::from_millis(30));
        }
        for connection in &mut frames {
            assert!(connection.is_ended());
        }
        eventually("slow HTTP/1 connections are cut off", || {
            descriptors(&process) < 40
        });
    });
}

#[test]
fn a_shut_window_holds_no_upstream_whatever_else_its_connection_does() {
    let upstream = Upstream::start(|seen| match seen.line() {
        line if line.contains("/up/held") => Reply::Silence,
        _ => Reply::new(200, &[], vec![b'x'; 1 << 20]),
    });
    let process = gateway(&upstream, "");
    let open = descriptors(&process);
    // No window for any stream; one of them waits for its upstream, and pings keep coming.
    let mut connection = Frames::open(process.address, &[(4, 0)]);
    connection.ask(1, "GET", "/up/held", &[]);
    for stream in 1..50 {
        connection.ask(stream * 2 + 1, "GET", "/up/large", &[]);
    }
    eventually("they arrive", || upstream.seen().len() == 50);
    // A piece of 64 KiB may be left for as many seconds beyond the bound; the first pieces of these are smaller.
    let mut pings = 0;
    eventually("their upstream connections are free again", || {
        let _ = connection.try_send(frame(PING, 0, 0, b"12345678"));
        pings += 1;
        descriptors(&process) <= open + 10
    });
    assert!(pings > 1);
}

#[test]
fn connections_are_bounded_in_all_and_per_address() {
    let upstream = Upstream::hello();
    let process = gateway(&upstream, "connections = 60\nconnections_per_address = 20");
    // The kernel holds back who says nothing.
    let begun = |mut stream: TcpStream| {
        stream.write_all(b"G").expect("sent");
        stream
    };
    let crowd: Vec<TcpStream> = (0..20).map(|_| begun(dial(process.address))).collect();
    let mut refused = dial(process.address);
    assert_eq!(
        ask(&mut refused),
        Some(503),
        "the twenty-first of one address"
    );
    let from = |last: u8| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        socket
            .bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())
            .expect("the loopback network");
        socket.connect(&process.address.into()).expect("it listens");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    assert_eq!(ask(&mut from(2)), Some(200), "another address is served");
    let more: Vec<TcpStream> = (3..5)
        .flat_map(|last| (0..20).map(move |_| last))
        .map(from)
        .map(begun)
        .collect();
    assert_eq!(ask(&mut from(5)), Some(503), "sixty are open");
    drop((crowd, more));
    eventually("places are given back", || {
        ask(&mut dial(process.address)) == Some(200)
    });
}

#[test]
fn a_flood_of_connections_beyond_the_descriptors_leaves_bystanders_alone() {
    let upstream = Upstream::hello();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[server.timeouts]\nheader_read = \"1s\"\n\
                  [admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n\
                  [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    drop(upstream);
    let process = Process::with(config, 64);
    let mut bystander = dial(process.address);
    assert_eq!(ask(&mut bystander), Some(200));
    // Taken away while it runs, as an operator could: a handful more than is open now.
    let limit = std::process::Command::new("prlimit")
        .args([
            "--pid",
            &process.child.id().to_string(),
            &format!("--nofile={}:64", descriptors(&process) + 4),
        ])
        .status()
        .expect("prlimit (util-linux) runs");
    assert!(limit.success());
    let flood: Vec<TcpStream> = (0..100).map(|_| dial(process.address)).collect();
    assert_eq!(ask(&mut bystander), Some(200), "who is there is served on");
    drop(flood);
    eventually("who comes later is let in again", || {
        let mut stream = dial(process.address);
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("set");
        ask(&mut stream) == Some(200)
    });
}
