//! Says what an import made of each setting, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::Imported;
use crate::draft::{Finding, Outcome};

/// The report for people.
pub(crate) fn text(imported: &Imported) -> String {
    let mut text = String::new();
    let count = |wanted: fn(&Outcome) -> bool| {
        imported
            .findings
            .iter()
            .filter(|finding| wanted(&finding.outcome))
            .count()
    };
    let _ = writeln!(
        text,
        "{}: {} equal, {} that differ, {} not imported",
        imported.peer.name(),
        count(|outcome| *outcome == Outcome::Equal),
        count(|outcome| matches!(outcome, Outcome::Differs(_))),
        count(|outcome| matches!(outcome, Outcome::NotImported(_))),
    );
    for finding in &imported.findings {
        let _ = write!(text, "\n{}: {}\n  ", finding.place, finding.what);
        if let Some(limit) = &finding.limit {
            let _ = write!(text, "limits.{limit}: ");
        }
        match &finding.outcome {
            Outcome::Equal => text.push_str("equal\n"),
            Outcome::NotImported(why) => {
                let _ = writeln!(text, "not imported: {why}");
            }
            Outcome::Nothing(why) => {
                let _ = writeln!(text, "nothing to import: {why}");
            }
            Outcome::Differs(differences) => {
                text.push_str("differs\n");
                for difference in differences {
                    let favour = difference.favour.words();
                    let _ = writeln!(text, "    - {}; {favour}", difference.what);
                }
            }
        }
    }
    if !imported.notes.is_empty() {
        text.push('\n');
    }
    for note in &imported.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// The report for programs.
pub(crate) fn document(imported: &Imported) -> Value {
    let findings: Vec<Value> = imported.findings.iter().map(finding).collect();
    json!({
        "from": imported.peer.name(),
        "whole": imported.is_whole(),
        "findings": findings,
        "notes": imported.notes,
        "toml": imported.toml,
    })
}

fn finding(finding: &Finding) -> Value {
    let mut value = json!({
        "file": finding.place.file,
        "line": finding.place.line,
        "what": finding.what,
        "limit": finding.limit,
    });
    match &finding.outcome {
        Outcome::Equal => value["outcome"] = json!("equal"),
        Outcome::NotImported(why) => {
            value["outcome"] = json!("not imported");
            value["why"] = json!(why);
        }
        Outcome::Nothing(why) => {
            value["outcome"] = json!("nothing to import");
            value["why"] = json!(why);
        }
        Outcome::Differs(differences) => {
            value["outcome"] = json!("differs");
            let all = differences.iter().map(|difference| {
                json!({ "what": difference.what, "favour": difference.favour.words() })
            });
            value["differences"] = all.collect();
        }
    }
    value
}
