//! Upstreams that play a script and record every byte they receive.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use super::wire::{DEADLINE, header, is_end_with_trailers};

/// A plain response.
pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An upstream that plays a script on each connection and records every byte it receives.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
    closed: mpsc::Receiver<usize>,
}

/// The script that sends the same bytes for every request on a connection.
pub(super) fn respond(response: &'static str) -> impl Fn(&mut Conn) -> io::Result<()> {
    move |conn| {
        loop {
            conn.request()?;
            conn.send(response)?;
        }
    }
}

/// One connection of an [`Origin`].
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    /// Which connection, from 0.
    pub(super) index: usize,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Origin {
    /// Runs `script` on each connection, on a thread of its own. Errors of its sockets end it.
    pub(super) fn start(
        script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::on((Ipv4Addr::LOCALHOST, 0).into(), script)
    }

    /// As [`Origin::start`], at an address of the test's choice.
    pub(super) fn on(
        address: SocketAddr,
        script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::of(TcpListener::bind(address).expect("a free port"), script)
    }

    /// The same on the connections that `listener` has not accepted yet.
    pub(super) fn of(
        listener: TcpListener,
        script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("bound");
        let records = Arc::new(Mutex::new(Vec::new()));
        let (tell, closed) = mpsc::channel();
        let (script, all) = (Arc::new(script), Arc::clone(&records));
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(DEADLINE)).expect("set");
                stream.set_write_timeout(Some(DEADLINE)).expect("set");
                all.lock().expect("not poisoned").push(Vec::new());
                let (script, tell) = (Arc::clone(&script), tell.clone());
                let mut conn = Conn {
                    stream,
                    index,
                    records: Arc::clone(&all),
                };
                std::thread::spawn(move || {
                    let _ = script(&mut conn);
                    drop(conn);
                    let _ = tell.send(index);
                });
            }
        });
        Self {
            address,
            records,
            closed,
        }
    }

    /// Takes one connection, listens no more, and runs `script` on it.
    pub(super) fn leaving(
        script: impl FnOnce(&mut Conn) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let records = Arc::new(Mutex::new(vec![Vec::new()]));
        let (tell, closed) = mpsc::channel();
        let all = Arc::clone(&records);
        std::thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else {
                return;
            };
            drop(listener);
            stream.set_read_timeout(Some(DEADLINE)).expect("set");
            stream.set_write_timeout(Some(DEADLINE)).expect("set");
            let mut conn = Conn {
                stream,
                index: 0,
                records: all,
            };
            let _ = script(&mut conn);
            drop(conn);
            let _ = tell.send(0);
        });
        Self {
            address,
            records,
            closed,
        }
    }

    /// Sends the same bytes for every request, and keeps connections open.
    pub(super) fn responding(response: &'static str) -> Self {
        Self::start(respond(response))
    }

    /// What each connection has received.
    pub(super) fn records(&self) -> Vec<String> {
        let records = self.records.lock().expect("not poisoned");
        records
            .iter()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }

    /// Waits until a script has ended.
    pub(super) fn wait_closed(&self) -> usize {
        self.closed.recv_timeout(DEADLINE).expect("a script ends")
    }
}

impl Conn {
    /// Receives some bytes; an error at the end.
    pub(super) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        let read = loop {
            match self.stream.read(&mut buffer) {
                // A signal is no end: a socket with a timeout reports it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.truncate(read);
        self.records.lock().expect("not poisoned")[self.index].extend_from_slice(&buffer);
        Ok(buffer)
    }

    /// Receives until what came ends with `end`.
    pub(super) fn until(&mut self, end: &str) -> io::Result<String> {
        let mut all = Vec::new();
        while !all.ends_with(end.as_bytes()) {
            all.extend(self.receive()?);
        }
        Ok(String::from_utf8_lossy(&all).into_owned())
    }

    /// Receives one request, whatever its framing.
    pub(super) fn request(&mut self) -> io::Result<String> {
        let mut all = Vec::new();
        loop {
            all.extend(self.receive()?);
            let text = String::from_utf8_lossy(&all).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let whole = if header(head, "transfer-encoding").is_some() {
                body.ends_with("0\r\n\r\n") || is_end_with_trailers(body.as_bytes())
            } else {
                body.len()
                    >= header(head, "content-length")
                        .map_or(0, |length| length.parse().unwrap_or(0))
            };
            if whole {
                return Ok(text);
            }
        }
    }

    pub(super) fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())
    }
}
