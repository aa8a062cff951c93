use super::*;

impl AuditLine for &str {
    fn words(&self) -> String {
        String::new()
    }
}

/// A hostile operator cannot fill the disk: lines are written at once up to a bound, and then as
/// slowly as the bound says.
#[test]
fn audit_of_a_flood_of_changes_is_full_until_the_next_line_is_due() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let clock = Clock::manual(start);
    let audit = Audit::new(Some(path.clone()), clock.clone());
    let flood = || {
        let mut lines = 0;
        while audit.full_for("ann").is_none() {
            let mut prepared = audit.prepare("ann").expect("a file");
            prepared.record(&"a change").expect("written");
            lines += 1;
        }
        lines
    };
    assert_eq!(flood(), LINES_AT_ONCE);
    assert_eq!(audit.full_for("ann"), Some(EACH));
    assert_eq!(audit.full_for("bob"), None, "one operator locks nobody out");
    clock.advance(Micros(EACH.0 - 1));
    assert_eq!((flood(), audit.full_for("ann")), (0, Some(Micros(1))));
    clock.advance(Micros(1));
    assert_eq!(flood(), 1);
    clock.advance(Micros(60 * EACH.0));
    assert_eq!(flood(), 60);
    clock.advance(Micros(1_000_000 * EACH.0));
    assert_eq!(flood(), LINES_AT_ONCE, "time that passes saves no more");
    let text = std::fs::read_to_string(&path).expect("the audit");
    assert_eq!(text.lines().count() as u64, 2 * LINES_AT_ONCE + 61);
    assert_eq!(audit.entries(None).entries.len(), ENTRIES_MAX);
}

/// A reason may try to change how a terminal shows the file: it is escaped, and means the same.
#[test]
fn audit_with_deceptive_characters_is_escaped_and_reads_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let audit = Audit::new(Some(path.clone()), clock);
    let reason = "a \u{202e}b\u{2066}\u{9b}2J\u{200f} ü";
    let mut prepared = audit.prepare("ann").expect("a file");
    prepared.record(&reason).expect("written");
    let text = std::fs::read_to_string(&path).expect("the audit");
    assert_eq!(text, "\"a \\u202eb\\u2066\\u009b2J\\u200f ü\"\n");
    let read: String = serde_json::from_str(text.trim_end()).expect("JSON");
    assert_eq!(read, reason);
}

/// Callers cause penalties: these lines are bounded, and take nothing from the operators'.
#[test]
fn audit_of_a_flood_of_penalties_leaves_room_for_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let audit = Audit::new(Some(path.clone()), clock);
    for _ in 0..LINES_AT_ONCE + 5 {
        let mut prepared = audit.prepare(PENALTIES).expect("a file");
        prepared.record(&"a penalty").expect("written or left out");
    }
    assert_eq!(audit.full_for("ann"), None);
    let text = std::fs::read_to_string(&path).expect("the audit");
    assert_eq!(text.lines().count() as u64, LINES_AT_ONCE);
}
