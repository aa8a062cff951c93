//! Runs the commands of a page, in the page's own directory and on free ports, and compares what they print.
//!
//! A line that begins with `$ ` in a `console` block is a command, the lines below it are what it prints: `…` stands for
//! any text within a line, a line of `...` for any lines. In a `sh` block every line is a command that must succeed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::markdown::{Block, Directive, Document, root};
use tollgate_testkit::servers::{Maria, Postgres, Redis, available, free_port, wait_until};

/// The ports that documents name. A session uses free ones in their place.
const PORTS: [u16; 15] = [
    8080, 8081, 8082, 8443, 9180, 9181, 9182, 9190, 3000, 3001, 6379, 5432, 3306, 14000, 15000,
];

/// A page whose commands are being run. What it started ends with it.
pub(crate) struct Session {
    page: String,
    directory: tempfile::TempDir,
    /// What stands in the document, and what is used.
    ports: Vec<(u16, u16)>,
    environment: BTreeMap<String, String>,
    running: Vec<Child>,
    started: usize,
    _redis: Option<Redis>,
    _postgres: Option<Postgres>,
    _maria: Option<Maria>,
}

impl Session {
    /// Runs a page. The files beside an example are in its directory.
    pub(crate) fn run(document: &Document, files: Option<&Path>) {
        if let Some(session) = Self::new(document, files) {
            session.all(document);
        }
    }

    /// Runs a page and leaves its gateways running.
    pub(crate) fn finish(document: &Document) -> Option<Self> {
        Self::new(document, None).map(|session| session.all(document))
    }

    /// A file of the page's directory.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).expect("a text file")
    }

    fn all(mut self, document: &Document) -> Self {
        for block in &document.blocks {
            self.block(block);
        }
        self
    }

    /// `None`: a server that the page needs is not installed, which has been said.
    fn new(document: &Document, files: Option<&Path>) -> Option<Self> {
        let mut text = document.text.clone();
        let directory = tempfile::tempdir().expect("a directory");
        let mut copies = Vec::new();
        if let Some(files) = files {
            for entry in std::fs::read_dir(root().join(files)).expect("the example's files") {
                let path = entry.expect("a readable entry").path();
                if path.extension().is_none_or(|extension| extension != "md") {
                    let content = std::fs::read_to_string(&path).expect("a text file");
                    text.push_str(&content);
                    copies.push((path.file_name().expect("a name").to_owned(), content));
                }
            }
        }
        let (mut redis, mut postgres, mut maria) = (None, None, None);
        let runs = document
            .blocks
            .iter()
            .any(|block| commands_of(block).is_some() && block.directive != Directive::NotRun);
        if runs && text.contains("127.0.0.1:6379") {
            if !available("redis-server") {
                return None;
            }
            redis = Some(Redis::start());
        }
        if runs && text.contains("127.0.0.1:5432") {
            if !Postgres::available() {
                return None;
            }
            postgres = Some(Postgres::start_with(&[]));
        }
        if runs && text.contains("127.0.0.1:3306") {
            if !Maria::available() {
                return None;
            }
            maria = Some(Maria::start());
        }
        if runs && text.contains("pebble -config") && !available("pebble") {
            return None;
        }
        let mut ports: Vec<(u16, u16)> = Vec::new();
        for port in PORTS {
            let real = match port {
                6379 => redis.as_ref().map(|server: &Redis| server.port),
                5432 => postgres.as_ref().map(|server: &Postgres| server.port),
                3306 => maria.as_ref().map(|server: &Maria| server.port),
                _ => None,
            };
            let taken: Vec<u16> = ports.iter().map(|(_, real)| *real).collect();
            let free = std::iter::repeat_with(free_port).find(|port| !taken.contains(port));
            ports.push((port, real.or(free).expect("a free port")));
        }
        let mut session = Self {
            page: document.path.display().to_string(),
            directory,
            ports,
            environment: BTreeMap::new(),
            running: Vec::new(),
            started: 0,
            _redis: redis,
            _postgres: postgres,
            _maria: maria,
        };
        if text.contains("127.0.0.1:3000") && !text.contains("listen = \"127.0.0.1:3000\"") {
            let (_, port) = session.ports[PORTS.iter().position(|port| *port == 3000)?];
            start_api(port);
        }
        let admin = session.real("127.0.0.1:9180", true);
        session.set("TOLLGATE_ADMIN", &admin);
        session.set("NO_COLOR", "1");
        for (name, content) in copies {
            let content = session.real(&content, false);
            std::fs::write(session.directory.path().join(name), content).expect("written");
        }
        Some(session)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    fn block(&mut self, block: &Block) {
        let place = format!("{}:{}", self.page, block.line);
        if let Directive::File(name) = &block.directive {
            let text = self.real(&block.text, false);
            std::fs::write(self.directory.path().join(name), text).expect("written");
        }
        let Some(commands) = commands_of(block) else {
            return;
        };
        for (command, expected) in commands {
            if block.directive == Directive::NotRun {
                self.words_are_known(&command, &place);
            } else {
                self.command(&command, &expected, &place);
            }
        }
    }

    fn command(&mut self, command: &str, expected: &[String], place: &str) {
        if let Some((name, value)) = command
            .strip_prefix("export ")
            .and_then(|rest| rest.split_once('='))
        {
            let value = self
                .shell(&format!("printf %s {}", self.real(value, true)))
                .0;
            self.set(name, &value);
            return;
        }
        let (said, good) = if starts_gateway(command) {
            (self.start_gateway(command, place), true)
        } else if let Some(command) = command.strip_suffix(" &") {
            self.start_server(command);
            return;
        } else {
            self.shell(&self.real(command, true))
        };
        let said = self.shown(&said);
        if expected.is_empty() {
            assert!(good, "{place}: `{command}` failed:\n{said}");
            return;
        }
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
        assert!(
            lines_match(&expected, &lines),
            "{place}: `{command}` printed\n{said}\nand not\n{}",
            expected.join("\n")
        );
    }

    /// Runs a command to its end: what it printed, and whether it succeeded.
    fn shell(&self, command: &str) -> (String, bool) {
        let output = self
            .prepare("timeout")
            .args(["60", "bash", "-c", &format!("exec 2>&1; {command}")])
            .output()
            .expect("timeout(1) and bash run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text, output.status.success())
    }

    /// Starts a gateway and waits until it listens; its log so far.
    fn start_gateway(&mut self, command: &str, place: &str) -> String {
        let mut command = self.real(command.trim_end_matches(" &"), true);
        let file = command
            .split_once("--config ")
            .map_or("gateway.toml", |(_, rest)| {
                rest.split(' ').next().unwrap_or(rest)
            });
        let config = std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default();
        for (option, table, port) in [
            ("--listen", "listen = ", 8080),
            ("--admin", "[admin]", 9180),
        ] {
            if !command.contains(option) && !config.contains(table) {
                if !command.contains("tollgate run") {
                    command = command.replacen("tollgate", "tollgate run", 1);
                }
                let own = format!("{option} 127.0.0.1:{port}");
                command = format!("{command} {}", self.real(&own, true));
            }
        }
        self.started += 1;
        let log = self.directory.path().join(format!("log.{}", self.started));
        let child = self
            .prepare("bash")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("it starts");
        self.running.push(child);
        let child = self.running.last_mut().expect("it was pushed");
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let mut ended = false;
        wait_until("listening gateway", || {
            ended = child.try_wait().expect("a child").is_some();
            ended || read().contains("listening")
        });
        assert!(!ended, "{place}: `{command}` ended:\n{}", read());
        read()
    }

    /// Starts any other server and waits until each port of its command takes connections.
    fn start_server(&mut self, command: &str) {
        let real = self.real(command, true);
        let child = self
            .prepare("bash")
            .args(["-c", &format!("exec {real}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        self.running.push(child);
        for (_, port) in &self.ports {
            if real.contains(&port.to_string()) {
                wait_until("listening server", || {
                    std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok()
                });
            }
        }
    }

    fn prepare(&self, program: &str) -> Command {
        let tollgate = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
        let here = tollgate.parent().expect("a folder").display().to_string();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env("PATH", format!("{here}:{}", path.to_string_lossy()))
            .env_remove("TOLLGATE_CONFIG")
            .envs(&self.environment);
        command
    }

    /// A command that is not run: bash can read it, and what it asks of `tollgate` exists.
    fn words_are_known(&self, command: &str, place: &str) {
        let read = self
            .prepare("bash")
            .args(["-n", "-c", command])
            .output()
            .expect("bash runs");
        let error = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(read.status.success(), "{place}: `{command}`: {error}");
        if let Some(words) = command.strip_prefix("tollgate ") {
            let words = words.split(['|', '>', '<', '&']).next().unwrap_or(words);
            let (said, good) = self.shell(&format!("tollgate {words} --help"));
            assert!(good, "{place}: `{command}`: {said}");
        }
    }

    /// With the ports of this session. In a file only what stands behind a colon is a port.
    fn real(&self, text: &str, command: bool) -> String {
        // A busy machine may need longer than a gateway would wait for its store.
        let mut text = text.replace("answer_within = \"20ms\"", "answer_within = \"10s\"");
        for (shown, real) in &self.ports {
            text = with_number(&text, &shown.to_string(), &real.to_string(), command);
        }
        text
    }

    /// With the ports that the document shows.
    fn shown(&self, text: &str) -> String {
        let mut text = text.replace('\r', "");
        for (shown, real) in &self.ports {
            text = with_number(&text, &real.to_string(), &shown.to_string(), true);
        }
        text
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The API of a page that starts none: it answers every request with 200.
fn start_api(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || _ = answer(&stream));
        }
    });
}

fn answer(stream: &TcpStream) -> io::Result<()> {
    let mut head = BufReader::new(stream).lines();
    while !head.next().transpose()?.unwrap_or_default().is_empty() {}
    (&mut &*stream)
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n")
}

/// The commands of a block with what each prints; `None` where it holds none.
fn commands_of(block: &Block) -> Option<Vec<(String, Vec<String>)>> {
    let console = match block.language.as_str() {
        "console" => true,
        "sh" => false,
        _ => return None,
    };
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    let mut continues = false;
    for line in block.text.lines() {
        let command = line.strip_prefix("$ ").filter(|_| console);
        match (command, commands.last_mut()) {
            (_, Some((last, _))) if continues => {
                last.push(' ');
                last.push_str(line.trim().trim_end_matches('\\').trim_end());
            }
            (Some(command), _) => commands.push((start_of(command), Vec::new())),
            (None, Some((_, expected))) if console => expected.push(line.trim_end().to_owned()),
            (None, _) if !console && !line.trim().is_empty() => {
                commands.push((start_of(line), Vec::new()));
            }
            _ => {}
        }
        continues = line.ends_with('\\');
    }
    Some(commands)
}

/// A command without the comment at its end and the backslash of a line that goes on.
fn start_of(line: &str) -> String {
    let line = line.split("   # ").next().unwrap_or(line);
    line.trim().trim_end_matches('\\').trim_end().to_owned()
}

fn starts_gateway(command: &str) -> bool {
    let mut words = command.split(' ').skip_while(|word| word.contains('='));
    words.next() == Some("tollgate")
        && words.next().is_none_or(|verb| {
            verb == "run" || verb == "--config" || verb == "&" || verb.ends_with(".toml")
        })
}

/// Replaces a number that is no part of another word; behind a colon only, unless `anywhere`.
fn with_number(text: &str, number: &str, by: &str, anywhere: bool) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(number) {
        let (before, after) = (&rest[..at], &rest[at + number.len()..]);
        let ahead = before.chars().next_back().or(out.chars().next_back());
        let alone = !after.starts_with(|next: char| next.is_ascii_alphanumeric())
            && !ahead.is_some_and(|last| last.is_ascii_alphanumeric())
            && (anywhere || ahead == Some(':'));
        out.push_str(before);
        out.push_str(if alone { by } else { number });
        rest = after;
    }
    out + rest
}

fn lines_match(expected: &[&str], said: &[&str]) -> bool {
    match (expected.split_first(), said.split_first()) {
        (None, None) => true,
        (Some((&"...", rest)), _) => (0..=said.len()).any(|skip| lines_match(rest, &said[skip..])),
        (Some((line, expected)), Some((printed, said))) => {
            line_matches(line, printed) && lines_match(expected, said)
        }
        _ => false,
    }
}

fn line_matches(expected: &str, said: &str) -> bool {
    let mut pieces = expected.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = said.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for piece in pieces {
        if let Some(before) = last.replace(piece) {
            match rest.find(before) {
                Some(at) => rest = &rest[at + before.len()..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |last: &str| rest.ends_with(last))
}

#[test]
fn session_output_is_compared_line_by_line_with_wildcards() {
    assert!(lines_match(&["a…c", "...", "z"], &["abc", "x", "y", "z"]));
    assert!(lines_match(&["..."], &[]));
    assert!(!lines_match(&["a…c", "z"], &["abc", "x", "z"]));
    assert!(!lines_match(&["ab"], &["abc"]));
    assert!(!lines_match(&["a…b…d"], &["a c d"]));
    assert_eq!(with_number(":8080 80801", "8080", "1", false), ":1 80801");
    assert_eq!(with_number("b = 3000", "3000", "1", false), "b = 3000");
}
