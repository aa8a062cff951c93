//! A client of HTTP/1.1 that hides nothing: what it sends is what the test wrote, what it read is there to look at.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{PATIENCE, read};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Its fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body, framing removed.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body.
    pub trailers: Vec<(String, String)>,
    /// Whether the body broke off before its end.
    pub truncated: bool,
}

impl Answer {
    /// The only field of this name.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self
            .headers
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str());
        let first = all.next();
        assert!(all.next().is_none(), "`{name}` stands twice in {self:?}");
        first
    }

    /// The units that `RateLimit` says are left of its first limit.
    #[track_caller]
    pub fn left(&self) -> Option<u64> {
        units_left(self.header("ratelimit")?)
    }

    /// The units that `RateLimit` says are left of `limit`.
    #[track_caller]
    pub fn left_of(&self, limit: &str) -> Option<u64> {
        let name = format!("\"{limit}\";");
        let mut limits = self.header("ratelimit")?.split(", ");
        units_left(limits.find(|one| one.starts_with(&name))?)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.text()))
    }
}

fn units_left(told: &str) -> Option<u64> {
    let (_, units) = told.split_once(";r=")?;
    units.split([';', ',']).next()?.parse().ok()
}

pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    /// Connects.
    #[track_caller]
    pub fn open(to: SocketAddr) -> Self {
        Self::try_open(to).expect("it listens")
    }

    /// Connects, if there is a listener.
    pub fn try_open(to: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self {
            stream,
            read: Vec::new(),
        })
    }

    /// Sends these very bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("sent");
    }

    /// Sends these very bytes, if the other side still takes them.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends a request without a body and reads the answer.
    #[track_caller]
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(head(method, path, headers));
        self.answer(method)
    }

    /// Reads until `mark` has come; what was read stays to be read again.
    #[track_caller]
    pub fn until(&mut self, mark: &str) {
        while !mark.is_empty()
            && !self
                .read
                .windows(mark.len())
                .any(|window| window == mark.as_bytes())
        {
            self.more().unwrap_or_else(|error| {
                panic!(
                    "{error} before {mark:?}: {}",
                    String::from_utf8_lossy(&self.read)
                )
            });
        }
    }

    /// Reads the answer to a request with this method; interim answers are passed over.
    #[track_caller]
    pub fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method).expect("an answer")
    }

    /// Reads the head that comes next, of an interim answer or another; its status.
    #[track_caller]
    pub fn interim(&mut self) -> u16 {
        self.head().expect("a head").0
    }

    /// Reads the answer to a request with this method, if one comes.
    pub fn try_answer(&mut self, method: &str) -> io::Result<Answer> {
        loop {
            let (status, headers) = self.head()?;
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let mut answer = Answer {
                status,
                headers,
                body: Vec::new(),
                trailers: Vec::new(),
                truncated: false,
            };
            let empty = method == "HEAD" || status == 204 || status == 304 || status == 101;
            if !empty && let Err(error) = self.body(&mut answer) {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                        answer.truncated = true
                    }
                    _ => return Err(error),
                }
            }
            return Ok(answer);
        }
    }

    /// The answer, if one comes within `span`.
    pub fn try_answer_within(&mut self, span: std::time::Duration) -> Option<Answer> {
        self.stream.set_read_timeout(Some(span)).expect("a timeout");
        let answer = self.try_answer("GET").ok();
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        answer
    }

    /// Whether the other side has closed; waits for it.
    pub fn is_closed(&mut self) -> bool {
        self.read.is_empty() && matches!(read(&mut self.stream, &mut [0; 1]), Ok(0) | Err(_))
    }

    /// Everything that comes until the other side closes.
    pub fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.read);
        // A reset after the answer is an end too.
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, line))?;
        Ok((status, self.fields()?))
    }

    fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn body(&mut self, answer: &mut Answer) -> io::Result<()> {
        let field = |name: &str| {
            answer
                .headers
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        if field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            loop {
                let line = self.line()?;
                let size =
                    usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
                let size = size.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, line))?;
                if size == 0 {
                    answer.trailers = self.fields()?;
                    return Ok(());
                }
                self.exactly(size, &mut answer.body)?;
                self.line()?;
            }
        }
        if let Some(length) = field("content-length") {
            let length = length
                .parse()
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, length))?;
            return self.exactly(length, &mut answer.body);
        }
        answer.body.append(&mut self.read);
        self.stream.read_to_end(&mut answer.body).map(|_| ())
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.read.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.more()?;
        }
    }

    fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let mut wanted = length;
        loop {
            let there = wanted.min(self.read.len());
            into.extend(self.read.drain(..there));
            wanted -= there;
            if wanted == 0 {
                return Ok(());
            }
            self.more()?;
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        match read(&mut self.stream, &mut piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.read.extend_from_slice(&piece[..length]);
                Ok(())
            }
        }
    }
}

/// A request's head. `Host: localhost` is added where the test names none.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        head.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}
