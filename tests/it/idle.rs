//! Ten thousand idle connections: little memory each, and no effect on others.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::{PATIENCE, Upstream, eventually};
use crate::process::Process;
use crate::streaming::memory;

/// Bytes of memory that an idle connection may take.
const MOST_EACH: u64 = 4 << 10;
/// Not counted: what the first requests of a process take once.
const FIRST_REQUESTS: u64 = 2 << 20;

#[test]
fn ten_thousand_idle_connections_take_little_memory_and_are_usable_afterwards() {
    let upstream = Upstream::hello();
    let count = connections();
    let gateway = gateway(&upstream.url());
    let mut bystander = connect(&gateway);
    get(&mut bystander);
    let before = memory(&gateway, "VmRSS");

    let mut idle: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(&gateway);
            get(&mut stream);
            stream
        })
        .collect();
    get(&mut bystander);
    assert_small(&gateway, before, count);

    // All of them wake up, many at a time, and are answered.
    for some in idle.chunks_mut(100) {
        some.iter_mut()
            .for_each(|stream| stream.write_all(REQUEST).expect("sent"));
        some.iter_mut().for_each(answer);
    }
    get(&mut bystander);
}

#[test]
fn connections_that_never_said_a_word_take_little_memory() {
    let upstream = Upstream::hello();
    let count = connections() / 3;
    let gateway = gateway(&upstream.url());
    let mut bystander = connect(&gateway);
    get(&mut bystander);
    let before = memory(&gateway, "VmRSS");
    let mut silent: Vec<TcpStream> = (0..count).map(|_| connect(&gateway)).collect();
    // The last one to be accepted is served: so all of them were.
    let last = silent.len() - 1;
    get(&mut silent[last]);
    get(&mut bystander);
    assert_small(&gateway, before, count);
    silent.iter_mut().for_each(get);
}

fn assert_small(gateway: &Process, before: u64, count: usize) {
    let most = MOST_EACH * u64::try_from(count).expect("a number of connections") + FIRST_REQUESTS;
    let mut now = 0;
    eventually(
        &format!(
            "{count} connections take {} KiB or less each",
            MOST_EACH >> 10
        ),
        || {
            now = memory(gateway, "VmRSS").saturating_sub(before);
            now <= most
        },
    );
    println!(
        "{count} idle connections: {} bytes each",
        now / count as u64
    );
}

fn gateway(upstream: &str) -> Process {
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n[server.bounds]\nconnections = 12000\n\
         [server.timeouts]\nheader_read = \"1m\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n\
         [limits.ample]\nrate = \"1000000/second\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"ample\"]\n"
    );
    Process::with(
        &config,
        u32::try_from(DESCRIPTORS).expect("a number of descriptors"),
    )
}

/// As many as the system lets both sides have, ten thousand at most.
fn connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(DESCRIPTORS);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(most),
            maximum: limit.maximum,
        },
    )
    .expect("up to the hard limit");
    // Two tests of this kind may run in one process.
    usize::try_from((most / 2 + 500).min(10_000)).expect("a number of connections")
}

fn connect(gateway: &Process) -> TcpStream {
    let stream = TcpStream::connect_timeout(&gateway.address, PATIENCE).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_nodelay(true).expect("set");
    stream
}

fn get(stream: &mut TcpStream) {
    stream.write_all(REQUEST).expect("sent");
    answer(stream);
}

/// Reads one answer, whose body is `hello`.
fn answer(stream: &mut TcpStream) {
    let mut got = Vec::new();
    let mut piece = [0; 1024];
    while !got.ends_with(b"\r\n\r\nhello") {
        let length = stream
            .read(&mut piece)
            .unwrap_or_else(|error| panic!("{error} after {}", got.escape_ascii()));
        assert!(length > 0, "closed after {}", got.escape_ascii());
        got.extend_from_slice(&piece[..length]);
        assert!(got.starts_with(b"HTTP/1.1 200 "), "{}", got.escape_ascii());
    }
}

const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
const DESCRIPTORS: u64 = 12_000;
