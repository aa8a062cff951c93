//! Lines are whole, valid and complete; what is lost is counted.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_record_is_one_line_of_valid_json_whatever_strangers_send() {
    let charges = [Charge {
        limit: "per\"caller",
        key: b"\x04acme",
        cost: 3,
        remaining: 7,
        outcome: "deny",
        ..Charge::default()
    }];
    let record = Record {
        at_micros: 1_700_000_000_000_042,
        id: "0a1b",
        method: "GET",
        path: "/a\"b\\c\u{1}\u{2028}é",
        status: 429,
        refused: true,
        reason: "denied",
        client: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 17))),
        charges: &charges,
        retry_after_micros: Some(600_001),
        user_agent: b"evil\r\n{\"forged\":1}\xff\x7f",
        ..Record::default()
    };
    let mut line = Vec::new();
    record.json(&mut line, &Stamp::default(), &Keys::Plain);
    assert_eq!(
        line.iter().filter(|byte| **byte == b'\n').count(),
        1,
        "one line"
    );
    let value: serde_json::Value = serde_json::from_slice(&line).expect("valid JSON");
    assert_eq!(value["time"], "2023-11-14T22:13:20.000042Z");
    assert_eq!(value["path"], "/a\"b\\c\u{1}\u{2028}é");
    assert_eq!(value["user_agent"], "evil\r\n{\"forged\":1}\u{fffd}\u{7f}");
    assert_eq!(value["client"], "192.0.2.17");
    assert_eq!(
        value["retry_after_ms"], 601,
        "rounded up: it keeps its word"
    );
    assert_eq!(value["limits"][0]["key"], "\u{4}acme");
    assert_eq!(value["limits"][0]["name"], "per\"caller");
    assert_eq!(value["limits"][0]["outcome"], "deny");
    assert_eq!(value.get("upstream"), None, "what there is not is left out");
}

#[test]
fn access_log_record_of_a_trace_has_its_ids() {
    let value = b"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    let record = Record {
        id: "0a1b",
        trace: crate::TraceParent::parse(value),
        ..Record::default()
    };
    let line = record.line(Format::Json, &Keys::Plain);
    let line: serde_json::Value = serde_json::from_slice(&line).expect("valid JSON");
    assert_eq!(line["id"], "0a1b");
    assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(line["span_id"], "00f067aa0ba902b7");
    let line = Record::default().line(Format::Json, &Keys::Plain);
    let line: serde_json::Value = serde_json::from_slice(&line).expect("valid JSON");
    assert_eq!(line.get("trace_id"), None);
}

#[test]
fn access_log_every_byte_is_escaped_in_any_position() {
    for byte in 0..=u8::MAX {
        for place in 0..20 {
            let mut bytes = [b'a'; 20];
            bytes[place] = byte;
            let mut line = vec![b'"'];
            escape::json(&mut line, &bytes);
            line.push(b'"');
            let value: String = serde_json::from_slice(&line).expect("valid JSON");
            assert_eq!(
                value,
                String::from_utf8_lossy(&bytes),
                "byte {byte:#x} at {place}"
            );
            assert!(
                line.iter().all(|byte| *byte >= 0x20),
                "no control character survives"
            );
        }
    }
}

#[test]
fn access_log_field_with_controls_of_terminals_or_of_direction_is_escaped() {
    let deceptive =
        "\u{80}\u{9b}\u{9f}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
    let mut line = Vec::new();
    escape::json(&mut line, format!("a{deceptive}ü\u{a0}").as_bytes());
    let text = String::from_utf8(line).expect("text");
    let expected = "a\\u0080\\u009b\\u009f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a\\u202e\\u2066\\u2069ü\u{a0}";
    assert_eq!(text, expected);
    let mut line = Vec::new();
    escape::combined(&mut line, deceptive.as_bytes());
    assert!(line.is_ascii());
}

#[test]
fn keys_are_hashed_unless_asked_for() {
    let charges = [Charge {
        key: b"secret-key",
        ..Charge::default()
    }];
    let record = Record {
        charges: &charges,
        ..Record::default()
    };
    let line = |secret: u8| {
        let mut line = Vec::new();
        record.json(
            &mut line,
            &Stamp::default(),
            &Keys::Hashed(KeyNames::new([secret; 16])),
        );
        String::from_utf8(line).expect("valid UTF-8")
    };
    assert!(!line(1).contains("secret-key"));
    assert_eq!(line(1), line(1), "the same caller looks the same");
    assert_ne!(line(1), line(2), "but not under another secret");
}

#[test]
fn access_log_combined_format_is_the_common_one() {
    let record = Record {
        at_micros: 1_700_000_000_000_042,
        method: "GET",
        path: "/a\"b",
        protocol: "HTTP/1.1",
        status: 200,
        sent_bytes: 12,
        client: Some("2001:db8::1".parse().expect("an address")),
        caller: "a b",
        user_agent: b"x\ny",
        ..Record::default()
    };
    let mut line = Vec::new();
    record.combined(&mut line, &Stamp::default());
    assert_eq!(
        String::from_utf8_lossy(&line),
        "2001:db8::1 - a_b [14/Nov/2023:22:13:20 +0000] \"GET /a\\x22b HTTP/1.1\" 200 12 \"-\" \"x\\x0Ay\"\n"
    );
}

#[test]
fn everything_recorded_is_written_from_all_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("access.log");
    let log = open(&path, SAMPLE_ALL);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let writer = log.writer();
                for _ in 0..500 {
                    writer.record(&Record {
                        path: "/x",
                        ..Record::default()
                    });
                }
            });
        }
    });
    drop(log);
    assert_eq!(lines(&path).len(), 2_000);
}

#[test]
fn sampling_never_drops_a_refused_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(&folder.path().join("access.log"), SAMPLE_ALL / 100);
    let writer = log.writer();
    assert_eq!((0..1_000).filter(|_| writer.enabled(false)).count(), 10);
    assert!((0..1_000).all(|_| writer.enabled(true)));
}

#[test]
fn a_full_buffer_drops_and_counts_but_keeps_room_for_refusals() {
    // A pipe without a reader: the writer blocks in it, and the buffer behind it fills.
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(&folder.path().join("access.log"), SAMPLE_ALL);
    let writer = log.writer();
    let filled = "x".repeat(8 << 10);
    // Held, so that the writer cannot take the buffer away.
    let buffers = log.inner.buffers.lock();
    let mut sent = 0;
    while log.dropped() == 0 && sent < 1_000 {
        writer.record(&Record {
            path: &filled,
            ..Record::default()
        });
        sent += 1;
    }
    assert_eq!(log.dropped(), 1);
    writer.record(&Record {
        path: &filled,
        refused: true,
        ..Record::default()
    });
    assert_eq!(log.dropped(), 1, "there is room for a refused one");
    drop(buffers);
    assert!(log.flush(PATIENCE));
    let written = lines(&folder.path().join("access.log"));
    assert_eq!(written.len(), sent, "all but one, and the refused one");
    assert!(
        written
            .last()
            .is_some_and(|line| line.contains("\"refused\":true"))
    );
}

#[test]
fn a_rotated_file_is_opened_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, moved) = (
        folder.path().join("access.log"),
        folder.path().join("access.log.1"),
    );
    let log = open(&path, SAMPLE_ALL);
    let writer = log.writer();
    writer.record(&Record {
        path: "/before",
        ..Record::default()
    });
    assert!(log.flush(PATIENCE));
    std::fs::rename(&path, &moved).expect("moved away");
    log.reopen();
    assert!(log.flush(PATIENCE));
    writer.record(&Record {
        path: "/after",
        ..Record::default()
    });
    assert!(log.flush(PATIENCE));
    assert!(lines(&moved)[0].contains("/before"));
    assert!(lines(&path)[0].contains("/after"));
}

fn open(path: &Path, sample: u16) -> AccessLog {
    let to = Destination::File(path.to_owned());
    AccessLog::open(Options {
        to,
        format: Format::Json,
        keys: Keys::Plain,
        sample,
        query: false,
    })
    .expect("a log")
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path)
        .expect("the log")
        .lines()
        .map(str::to_owned)
        .collect()
}
