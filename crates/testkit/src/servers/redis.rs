//! A Redis server of a test's own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Process, directory, free_port, wait_until};

#[derive(Debug)]
pub struct Redis {
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        let directory = directory();
        let arguments = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let mut redis = Self {
            port: free_port(),
            directory,
            arguments,
            process: None,
        };
        redis.run();
        redis
    }

    pub fn run(&mut self) {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendfsync",
            "always",
        ]);
        command
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.arguments);
        self.process = Some(Process::spawn(&mut command));
        wait_until("answer of redis-server", || {
            ask(self.port, "PING").is_some_and(|answer| answer.contains("PONG"))
        });
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn ask(&self, command: &str) -> String {
        try_ask(self.port, command).expect("the server answers")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// One inline command behind a password; what comes at once of both answers.
pub fn ask_as(port: u16, password: &str, command: &str) -> String {
    ask(port, &format!("AUTH {password}\r\n{command}\r\nPING")).expect("the server answers")
}

/// Sends one inline command and reads what comes at once.
pub fn ask(port: u16, command: &str) -> Option<String> {
    try_ask(port, command).ok()
}

fn try_ask(port: u16, command: &str) -> io::Result<String> {
    let mut stream =
        TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = vec![0; 65_536];
    let mut length = read(&mut stream, &mut answer)?;
    // A bulk string says how long it is; the rest may come later.
    if answer[0] == b'$'
        && let Some(end) = answer[..length].iter().position(|byte| *byte == b'\n')
    {
        let said = std::str::from_utf8(&answer[1..end - 1]).map_err(io::Error::other)?;
        let expected: usize = said.parse().map_err(io::Error::other)?;
        while length < end + 1 + expected {
            length += read(&mut stream, &mut answer[length..])?;
        }
    }
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Reads what has come, at least one byte.
fn read(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A signal to this process interrupts a read that has a timeout.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
