//! How llhttp, the parser of Node.js, reads what is written here.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::streams::Written;

/// Compares what was written with what llhttp reads, as requests or as responses (`role`).
pub fn compare(role: &str, written: &[Written]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/llhttp.js");
    let spawned = Command::new("node")
        .args(["--no-deprecation", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        assert!(std::env::var_os("CI").is_none(), "node is not installed");
        eprintln!("!!! SKIPPED: node is not installed (Debian: nodejs)");
        return;
    };
    let mut lines = String::new();
    for stream in written {
        let heads: String = stream
            .heads
            .iter()
            .map(|head| if *head { '1' } else { '0' })
            .collect();
        let _ = writeln!(lines, "{role} {} {heads}", hex(&stream.bytes));
    }
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("node ends");
    writer.join().expect("no panic").expect("written");
    let said = String::from_utf8(output.stdout).expect("JSON");
    assert_eq!(said.lines().count(), written.len());
    for (line, stream) in said.lines().zip(written) {
        let summary: Value = serde_json::from_str(line).expect("JSON");
        let bytes = stream.bytes.escape_ascii();
        assert_eq!(summary["error"], Value::Null, "{bytes}");
        let read: Vec<(String, String)> = summary["messages"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|message| {
                let what = match &message["url"] {
                    Value::String(url) if role == "request" => url.clone(),
                    _ => message["status"].to_string(),
                };
                (
                    what,
                    message["body"].as_str().unwrap_or("not whole").to_owned(),
                )
            })
            .collect();
        let meant = stream.messages.iter().map(|message| {
            let what = message.what.split(' ').next().unwrap_or_default();
            (what.to_owned(), hex(&message.body))
        });
        assert_eq!(read, meant.collect::<Vec<_>>(), "{bytes}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
