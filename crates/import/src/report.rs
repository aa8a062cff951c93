//! Says what an import made of each setting, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::Imported;
use crate::draft::{Finding, Outcome};

pub(crate) fn text(imported: &Imported) -> String {
    let mut text = String::new();
    let count = |word: &str| {
        let outcomes = imported.findings.iter().map(|finding| &finding.outcome);
        outcomes.filter(|outcome| outcome.word() == word).count()
    };
    let _ = writeln!(
        text,
        "{}: {} equal, {} that differ, {} not imported",
        imported.peer.name(),
        count("equal"),
        count("differs"),
        count("not imported"),
    );
    for finding in &imported.findings {
        let _ = write!(text, "\n{}: {}\n  ", finding.place, finding.what);
        if let Some(limit) = &finding.limit {
            let _ = write!(text, "limits.{limit}: ");
        }
        text.push_str(finding.outcome.word());
        match &finding.outcome {
            Outcome::Equal => text.push('\n'),
            Outcome::NotImported(why) | Outcome::Nothing(why) => {
                let _ = writeln!(text, ": {why}");
            }
            Outcome::Differs(differences) => {
                text.push('\n');
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
        "outcome": finding.outcome.word(),
    });
    match &finding.outcome {
        Outcome::Equal => {}
        Outcome::NotImported(why) | Outcome::Nothing(why) => value["why"] = json!(why),
        Outcome::Differs(differences) => {
            let all = differences.iter().map(|difference| {
                json!({ "what": difference.what, "favour": difference.favour.words() })
            });
            value["differences"] = all.collect();
        }
    }
    value
}
