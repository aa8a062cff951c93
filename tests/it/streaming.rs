//! Real upstreams, the real program: large files pass both ways in constant memory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::harness::{Nginx, PATIENCE};
use crate::process::Process;

/// What passes through each way.
const SIZE: u64 = 1 << 30;
/// What the gateway may grow by meanwhile: room for the buffers of a few connections, far from the size of a file.
const GROWTH: u64 = 24 << 20;

#[test]
fn a_gibibyte_from_nginx_passes_in_constant_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    // A sparse file: its zeros take no place on the disk, and as much time on the way as any other bytes.
    File::create(folder.path().join("large"))
        .and_then(|file| file.set_len(SIZE))
        .expect("a large file");
    fs::write(folder.path().join("small"), "a small file\n").expect("written");
    let root = folder.path().display();
    let nginx = Nginx::start(|port| format!("server {{ listen 127.0.0.1:{port}; root {root}; }}"));
    let Some(nginx) = nginx else { return };
    let port = SocketAddr::from((Ipv4Addr::LOCALHOST, nginx.port()));

    let gateway = Process::with(&in_front_of(port), 1024);
    let small = answer(&mut ask(&gateway, "GET /small HTTP/1.1\r\nhost: a\r\n\r\n"));
    assert!(
        small.starts_with("HTTP/1.1 200") && small.contains("etag:"),
        "{small}"
    );
    let before = memory(&gateway, "VmRSS");
    let mut stream = ask(&gateway, "GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = answer(&mut stream);
    assert!(
        head.contains(&format!("content-length: {SIZE}")) && head.contains("ratelimit: "),
        "{head}"
    );
    let mut buffer = vec![0; 256 << 10];
    let zeros = vec![0; buffer.len()];
    let mut read = 0;
    while read < SIZE {
        let length = crate::harness::read(&mut stream, &mut buffer).expect("more of it");
        assert!(length > 0, "it ended after {read} bytes");
        assert!(
            buffer[..length] == zeros[..length],
            "they are the bytes of the file"
        );
        read += length as u64;
    }
    assert_eq!(read, SIZE);
    assert_grown_little(&gateway, before);
    let part = answer(&mut ask(
        &gateway,
        "GET /large HTTP/1.1\r\nhost: a\r\nrange: bytes=5-9\r\n\r\n",
    ));
    assert!(
        part.starts_with("HTTP/1.1 206") && part.contains(&format!("bytes 5-9/{SIZE}")),
        "{part}"
    );
}

#[test]
fn a_gibibyte_to_a_python_server_passes_in_constant_memory() {
    let Some(mut python) = python() else { return };
    let mut line = String::new();
    BufReader::new(python.0.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a line");
    let address = SocketAddr::from(([127, 0, 0, 1], line.trim().parse().expect("a port")));
    let gateway = Process::with(&in_front_of(address), 1024);
    let mut stream = ask(
        &gateway,
        "POST /up HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
    );
    assert!(answer(&mut stream).starts_with("HTTP/1.1 200"));
    let before = memory(&gateway, "VmRSS");
    let mut stream = ask(
        &gateway,
        &format!("POST /up HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n"),
    );
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..SIZE / piece.len() as u64 {
        stream.write_all(&piece).expect("taken");
    }
    let head = answer(&mut stream);
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains(&format!("x-received: {SIZE}")),
        "{head}"
    );
    assert_grown_little(&gateway, before);
}

fn in_front_of(upstream: SocketAddr) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n\
         [limits.it]\nrate = \"1000/minute\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"http://{upstream}\"\nlimits = [\"it\"]\n"
    )
}

fn ask(gateway: &Process, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&gateway.address, PATIENCE).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

/// The head of the answer, in lower case but for its first line's start.
fn answer(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    head.replacen("http/", "HTTP/", 1)
}

/// A line of `/proc/PID/status`, bytes.
pub(crate) fn memory(gateway: &Process, name: &str) -> u64 {
    let status =
        fs::read_to_string(format!("/proc/{}/status", gateway.child.id())).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with(name))
        .expect("the kernel tells it");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("a number");
    kib << 10
}

fn assert_grown_little(gateway: &Process, before: u64) {
    let most = memory(gateway, "VmHWM");
    assert!(
        most < before + GROWTH,
        "from {} KiB to {} KiB",
        before >> 10,
        most >> 10
    );
}

/// A server of the test's, ended with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python server that counts what it is sent, and first says its port.
fn python() -> Option<Server> {
    const SCRIPT: &str = r#"
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Counter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        left = int(self.headers["content-length"])
        received = 0
        while left > received:
            piece = self.rfile.read(min(1 << 18, left - received))
            if not piece:
                return
            received += len(piece)
        self.send_response(200)
        self.send_header("x-received", str(received))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Counter)
print(server.server_port, flush=True)
server.serve_forever()
"#;
    let child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdout(Stdio::piped())
        .spawn();
    child.ok().map(Server).or_else(|| missing("python3"))
}

/// A test that misses its server is skipped, and says so; where everything must run, it fails.
fn missing<T>(what: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "{what} is not installed");
    eprintln!("skipped: {what} is not installed");
    None
}
