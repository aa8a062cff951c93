//! A PostgreSQL that refuses what databases that span machines refuse, and disturbs as they do.
//!
//! A proxy stands before the server and reads what the client sends. It changes a statement, or sends
//! another one in its place, so that the server itself gives the error.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The proxy. It stays until the process ends.
#[derive(Debug)]
pub struct Spanning {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    /// What is added to the server's clock: an interval of SQL.
    ahead: String,
    /// The share of statements that are disturbed, in percent.
    share: AtomicU64,
    /// How many statements, and COMMITs that were made and not made, have met a conflict.
    disturbed: [AtomicU64; 3],
}

/// What is refused, wherever a statement has it, and in which words.
const REFUSED: [(&str, &str); 12] = [
    ("LISTEN ", "LISTEN is not supported"),
    ("pg_notify", "NOTIFY is not supported"),
    ("UNLOGGED", "UNLOGGED database object not supported yet"),
    ("pg_advisory", "advisory locks are not yet implemented"),
    (".xmin", "System column \"xmin\" is not supported yet"),
    (
        ".tableoid",
        "System column \"tableoid\" is not supported yet",
    ),
    ("SAVEPOINT", "unsupported statement: Savepoint"),
    ("TRUNCATE", "unsupported statement: Truncate"),
    ("SKIP LOCKED", "locking clause SKIP LOCKED is not supported"),
    ("MATERIALIZED", "MATERIALIZED is not supported"),
    ("plpgsql", "language \"plpgsql\" not supported"),
    ("ISOLATION LEVEL", "the isolation level cannot be changed"),
];

/// The conflicts of statements, with their codes. YugabyteDB's last one has a code of its own.
const CONFLICTS: [(&str, &str); 5] = [
    ("40001", "Restart read required at: read_time"),
    (
        "40001",
        "could not serialize access due to concurrent update, All transparent retries exhausted",
    ),
    ("40P01", "deadlock detected"),
    ("23505", "duplicate key value violates unique constraint"),
    (
        "XX000",
        "Transaction expired or aborted by a conflict: 40001",
    ),
];

impl Spanning {
    /// The way to the PostgreSQL at this port.
    pub fn to(server: u16) -> Self {
        Self::ahead(server, "0 ms")
    }

    /// The same to a node whose clock is ahead by an interval of SQL.
    ///
    /// # Panics
    /// When there is no port to listen at.
    pub fn ahead(server: u16, ahead: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            server,
            ahead: ahead.to_owned(),
            share: AtomicU64::new(0),
            disturbed: Default::default(),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", own.server)) {
                    let shared = Arc::clone(&own);
                    thread::spawn(move || carry(&client, &server, &shared));
                }
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        let port = self.port;
        format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    /// Has this share of the statements of transactions, of COMMITs and of writes meet a conflict.
    pub fn disturb(&self, percent: u64) {
        self.shared.share.store(percent, Ordering::Relaxed);
    }

    /// How many statements, and COMMITs that were made and not made, have met a conflict.
    pub fn disturbed(&self) -> [u64; 3] {
        let counts = &self.shared.disturbed;
        [0, 1, 2].map(|place| counts[place].load(Ordering::Relaxed))
    }
}

fn carry(client: &TcpStream, server: &TcpStream, shared: &Shared) {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (server, client);
            let _ = io::copy(&mut from, &mut to);
            let _ = client.shutdown(Shutdown::Both);
        });
        let _ = statements(client, server, shared);
        let _ = server.shutdown(Shutdown::Both);
    });
}

/// Passes on what the client sends, statement by statement.
fn statements(client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut from = BufReader::new(client);
    let start = body(&mut from)?;
    server.write_all(&framed(None, &start))?;
    let (mut messages, mut text, mut in_transaction) = (Vec::new(), String::new(), false);
    loop {
        let mut kind = [0];
        from.read_exact(&mut kind)?;
        let mut body = body(&mut from)?;
        if matches!(kind[0], b'P' | b'Q') {
            // A Parse begins with the name of the statement, which is empty.
            let start = usize::from(kind[0] == b'P');
            let end = start
                + body[start..]
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(0);
            text = shared.changed(&String::from_utf8_lossy(&body[start..end]));
            body = [&body[..start], text.as_bytes(), &body[end..]].concat();
        }
        messages.extend(framed(Some(kind[0]), &body));
        if !matches!(kind[0], b'Q' | b'S' | b'X' | b'p') {
            continue;
        }
        match shared.instead_of(&text, in_transaction) {
            Some(other) => {
                let query = [other.as_bytes(), &[0]].concat();
                server.write_all(&framed(Some(b'Q'), &query))?;
            }
            None => server.write_all(&messages)?,
        }
        if text.starts_with("BEGIN") {
            in_transaction = !text.contains("COMMIT");
        } else if text.starts_with("COMMIT") || text.starts_with("ROLLBACK") {
            in_transaction = false;
        }
        messages.clear();
        text.clear();
    }
}

impl Shared {
    fn changed(&self, text: &str) -> String {
        let version = "SELECT 'PostgreSQL 15.2-YB-2.25.1.0-b0 on x86_64-pc-linux-gnu'::text,";
        let clock = format!("(clock_timestamp() + interval '{}')", self.ahead);
        text.replace("SELECT version(),", version)
            .replace("clock_timestamp()", &clock)
    }

    /// What the server gets in place of a statement that is refused or disturbed.
    fn instead_of(&self, text: &str, in_transaction: bool) -> Option<String> {
        if let Some(words) = refused(text) {
            return Some(raise("0A000", words));
        }
        let is_commit = text == "COMMIT";
        let is_write = ["INSERT", "UPDATE", "DELETE", "WITH"]
            .iter()
            .any(|word| text.starts_with(word));
        let ends = text.is_empty() || text.starts_with("BEGIN") || text.starts_with("ROLLBACK");
        let may_be = is_commit || is_write || (in_transaction && !ends);
        if !may_be || fastrand::u64(..100) >= self.share.load(Ordering::Relaxed) {
            return None;
        }
        let (place, other) = if is_commit {
            let conflict = raise(
                "40001",
                "change conflicts with another transaction, please retry",
            );
            match fastrand::bool() {
                true => (1, format!("COMMIT; {conflict}")),
                false => (2, format!("ROLLBACK; {conflict}")),
            }
        } else {
            let (code, words) = CONFLICTS[fastrand::usize(..CONFLICTS.len())];
            (0, raise(code, words))
        };
        self.disturbed[place].fetch_add(1, Ordering::Relaxed);
        Some(other)
    }
}

fn refused(text: &str) -> Option<&'static str> {
    let has_array = text.contains("CREATE TABLE") && text.contains("[]");
    let writes = text.matches("INSERT INTO").count() + text.matches("DELETE FROM").count();
    if has_array {
        Some("array types are not supported as column types")
    } else if text.matches("CREATE ").count() > 1 {
        Some("multiple ddl statements are not supported in a transaction")
    } else if writes > 1 {
        Some("multiple mutations of the same table are not supported")
    } else {
        let found = REFUSED.iter().find(|(part, _)| text.contains(part));
        found.map(|(_, words)| *words)
    }
}

fn raise(code: &str, words: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = '{code}'; END $$")
}

/// What follows a message's length, which counts itself.
fn body(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut body = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
    from.read_exact(&mut body)?;
    Ok(body)
}

fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a message of a test is short");
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend(length.to_be_bytes());
    message.extend(body);
    message
}
