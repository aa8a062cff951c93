//! How nginx reads what is written here: requests as a server, responses as a proxy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::BytesMut;
use tollgate_http1::request::Limits;
use tollgate_http1::{Event, Requests};

use crate::ours;
use crate::streams::Written;

/// A running nginx; it ends when dropped.
struct Nginx {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one whose `http` block has `http`, and a server with `server` in it.
fn start(http: &str, server: &str) -> Option<Nginx> {
    let known = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"].map(Path::new);
    let Some(program) = known.into_iter().find(|path| path.exists()) else {
        assert!(std::env::var_os("CI").is_none(), "nginx is not installed");
        eprintln!("!!! SKIPPED: nginx is not installed");
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("its address").port()
    };
    let root = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind}; "))
        .concat();
    let config = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; {temporary}\n{http}\nserver {{ listen 127.0.0.1:{port}; {server} }} }}\n"
    );
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, config).expect("written");
    let child = Command::new(program)
        .args(["-e", "stderr", "-p"])
        .arg(folder.path())
        .arg("-c")
        .arg(file)
        .stdin(Stdio::null())
        .spawn()
        .expect("nginx starts");
    let nginx = Nginx {
        child,
        port,
        _folder: folder,
    };
    for _ in 0..600 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(nginx);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("nginx does not listen");
}

/// Sends `bytes`, and gives all that is said until the connection ends.
fn exchange(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let timeout = Some(Duration::from_secs(60));
    socket.set_read_timeout(timeout).expect("set");
    socket.write_all(bytes).expect("sent");
    let mut said = Vec::new();
    socket.read_to_end(&mut said).expect("answered in time");
    said
}

/// Each stream, with one more request behind it: nginx must see every target, the last one too.
pub fn compare_requests(written: &[Written]) {
    let server = "location / { return 200 \"$request_uri\"; }";
    let Some(nginx) = start("", server) else {
        return;
    };
    for stream in written {
        let mut bytes = stream.bytes.clone();
        bytes.extend_from_slice(b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let said = exchange(nginx.port, &bytes);
        let read = ours::responses(&said, &[false; 16]);
        let read = read
            .iter()
            .map(|response| response.body.escape_ascii().to_string());
        let targets = stream.messages.iter().map(|request| request.what.as_str());
        let targets: Vec<&str> = targets.chain(["/last"]).collect();
        assert_eq!(
            read.collect::<Vec<_>>(),
            targets,
            "{}",
            bytes.escape_ascii()
        );
    }
}

/// Each response by its number: what nginx passes on is what was meant. It keeps its connections, so that a response of which
/// it reads less or more spoils the next one.
pub fn compare_responses(written: &[Written]) {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = origin.local_addr().expect("its address").port();
    let http = format!("upstream origin {{ server 127.0.0.1:{port}; keepalive 1; }}");
    let server = "location / { proxy_pass http://origin; proxy_http_version 1.1; \
                  proxy_set_header Connection \"\"; proxy_next_upstream off; }";
    let Some(nginx) = start(&http, server) else {
        return;
    };
    let responses: Vec<(Vec<u8>, bool, ours::Message)> = written
        .iter()
        .flat_map(|stream| {
            let read = ours::responses(&stream.bytes, &stream.heads);
            let alone = read.into_iter().zip(&stream.heads);
            alone.map(|(message, head)| {
                (
                    stream.bytes[message.from..message.to].to_vec(),
                    *head,
                    message,
                )
            })
        })
        .collect();
    let count = responses.len();
    let said: Vec<Vec<u8>> = responses.iter().map(|(bytes, ..)| bytes.clone()).collect();
    std::thread::spawn(move || {
        for socket in origin.incoming() {
            serve(socket.expect("a connection"), &said);
        }
    });
    for (index, (bytes, head, meant)) in responses.iter().enumerate() {
        let method = if *head { "HEAD" } else { "GET" };
        let request = format!("{method} /{index} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let said = exchange(nginx.port, request.as_bytes());
        let read = ours::responses(&said, &[*head]);
        let code = |what: &str| what.split(' ').next().unwrap_or_default().to_owned();
        let read: Vec<_> = read
            .iter()
            .map(|one| (code(&one.what), &one.body))
            .collect();
        assert_eq!(
            read,
            [(code(&meant.what), &meant.body)],
            "{index} of {count}: {}",
            bytes.escape_ascii()
        );
    }
}

/// Answers each request with the response of the number that it asks for, until one ends with its connection.
fn serve(mut socket: TcpStream, responses: &[Vec<u8>]) {
    let limits = Limits {
        bytes: 4096,
        fields: 50,
        target: 100,
    };
    let (mut requests, mut input) = (Requests::new(), BytesMut::new());
    loop {
        match requests.read(&mut input, limits) {
            Ok(Some(Event::Head(head))) => {
                let index: usize = head.parts.uri.path()[1..].parse().expect("a number");
                let response = &responses[index];
                socket.write_all(response).expect("sent");
                let end = response.windows(4).position(|part| part == b"\r\n\r\n");
                let head = &response[..end.expect("a head")];
                let close = b"connection: close";
                if head.windows(close.len()).any(|part| part == close) {
                    return;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let mut piece = [0; 4096];
                match socket.read(&mut piece) {
                    Ok(0) | Err(_) => return,
                    Ok(read) => input.extend_from_slice(&piece[..read]),
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}
