//! An upstream that records what it was sent, byte for byte, and answers what the test wants.

use std::fmt;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use super::PATIENCE;

/// A request as the upstream saw it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its head, as sent.
    pub head: String,
    /// Its body, framing removed.
    pub body: Vec<u8>,
    /// Its trailers, a line each.
    pub trailers: Vec<String>,
}

impl Seen {
    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The values of a field, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        fields
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    /// The only value of a field.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(
            all.len() < 2,
            "`{name}` stands {} times in {}",
            all.len(),
            self.head
        );
        all.first().copied()
    }
}

/// What the upstream does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Sends these very bytes and keeps the connection.
    Bytes(Vec<u8>),
    /// Sends these very bytes and closes.
    Close(Vec<u8>),
    /// Says nothing and keeps the connection open.
    Silence,
    /// Writes a response in its own time and keeps the connection, or closes it after an error.
    Stream(Stream),
}

/// What writes a response to the connection.
#[derive(Clone)]
pub struct Stream(Arc<WriteResponse>);

type WriteResponse = dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync;

impl Stream {
    /// A response that `write` writes, head and body.
    pub fn new(write: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

impl Reply {
    /// An answer with a length.
    pub fn new(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status} Said\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        Self::Bytes(bytes)
    }

    /// 200 with this text.
    pub fn ok(text: &str) -> Self {
        Self::new(200, &[], text)
    }
}

/// The upstream; it ends when dropped.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    streams: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
    stop: AtomicBool,
    reply: Box<dyn Fn(&Seen) -> Reply + Send + Sync>,
}

impl Upstream {
    /// Starts one that answers by `reply`.
    pub fn start(reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            streams: Mutex::default(),
            connections: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            reply: Box::new(reply),
        });
        let its = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if its.stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                its.connections.fetch_add(1, Ordering::SeqCst);
                its.streams
                    .lock()
                    .expect("no panic")
                    .extend(stream.try_clone());
                let its = Arc::clone(&its);
                std::thread::spawn(move || {
                    // The gateway breaking off is part of many tests.
                    let _ = serve(stream, &its);
                });
            }
        });
        Self { address, shared }
    }

    /// Starts one that answers every request with 200.
    pub fn hello() -> Self {
        Self::start(|_| Reply::ok("hello"))
    }

    /// Starts one that answers a request with `finished` for each `()` that it is sent.
    pub fn held() -> (Sender<()>, Self) {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let upstream = Self::start(move |_| {
            held.lock().expect("no panic").recv().expect("released");
            Reply::ok("finished")
        });
        (release, upstream)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port of this machine.
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("no panic").clone()
    }

    /// The last request.
    #[track_caller]
    pub fn last(&self) -> Seen {
        self.seen().pop().expect("a request")
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the accept loop.
        let _ = TcpStream::connect_timeout(&self.address, PATIENCE);
        for stream in self.shared.streams.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        let Some(seen) = request(&mut stream, &mut read)? else {
            return Ok(());
        };
        shared.seen.lock().expect("no panic").push(seen.clone());
        match (shared.reply)(&seen) {
            Reply::Bytes(bytes) => stream.write_all(&bytes)?,
            Reply::Close(bytes) => {
                stream.write_all(&bytes)?;
                return stream.shutdown(Shutdown::Both);
            }
            Reply::Silence => {}
            Reply::Stream(write) => {
                if let Err(error) = (write.0)(&mut stream) {
                    let _ = stream.shutdown(Shutdown::Both);
                    return Err(error);
                }
            }
        }
    }
}

fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Option<Seen>> {
    let end = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if !more(stream, read)? {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&read.drain(..end).collect::<Vec<u8>>()).into_owned();
    let mut seen = Seen {
        head,
        ..Seen::default()
    };
    if seen.header("transfer-encoding").is_some() {
        loop {
            let line = until(stream, read, b"\r\n")?;
            let size = usize::from_str_radix(
                String::from_utf8_lossy(&line)
                    .split(';')
                    .next()
                    .unwrap_or_default(),
                16,
            );
            let size = size.map_err(|_| io::ErrorKind::InvalidData)?;
            if size == 0 {
                loop {
                    let line = until(stream, read, b"\r\n")?;
                    if line.is_empty() {
                        break;
                    }
                    seen.trailers
                        .push(String::from_utf8_lossy(&line).into_owned());
                }
                break;
            }
            take(stream, read, size, &mut seen.body)?;
            until(stream, read, b"\r\n")?;
        }
    } else if let Some(length) = seen.header("content-length").map(str::to_owned) {
        let length = length.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        take(stream, read, length, &mut seen.body)?;
    }
    Ok(Some(seen))
}

fn until(stream: &mut TcpStream, read: &mut Vec<u8>, mark: &[u8]) -> io::Result<Vec<u8>> {
    loop {
        if let Some(end) = read.windows(mark.len()).position(|window| window == mark) {
            let line: Vec<u8> = read.drain(..end + mark.len()).collect();
            return Ok(line[..end].to_vec());
        }
        if !more(stream, read)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn take(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
    length: usize,
    into: &mut Vec<u8>,
) -> io::Result<()> {
    let mut wanted = length;
    loop {
        let there = wanted.min(read.len());
        into.extend(read.drain(..there));
        wanted -= there;
        if wanted == 0 {
            return Ok(());
        }
        if !more(stream, read)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 16 << 10];
    let length = super::read(stream, &mut piece)?;
    read.extend_from_slice(&piece[..length]);
    Ok(length > 0)
}
