//! Lists of the book that are written by hand are those of the code: problem types, reasons, log fields, placeholders, names of metrics.

use std::collections::BTreeSet;

use crate::markdown::{documents, root};
use crate::reference::tollgate;
use crate::{BOOK, EXAMPLES, README};

#[test]
fn documents_problem_types_are_those_of_the_code() {
    let page = read("docs/src/reference/problems.md");
    let code = problems();
    for start in [
        "urn:problem-type:tollgate:",
        "https://iana.org/assignments/http-problem-types#",
    ] {
        assert_eq!(words_after(&page, start), words_after(&code, start));
    }
}

#[test]
fn documents_reasons_are_those_of_the_code() {
    let page = read("docs/src/reference/problems.md");
    let tables = page.split("\n## Reasons\n").nth(1).expect("its tables");
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<&str> = rows
        .flat_map(|row| row.split('|').next().unwrap_or_default().split("`, `"))
        .map(|word| word.trim_end().trim_end_matches('`'))
        .collect();
    let known: BTreeSet<&str> = tollgate_gateway::reasons().collect();
    assert_eq!(documented, known);
}

#[test]
fn documents_rights_in_postgres_are_for_every_table_of_its_schema() {
    let page = read("docs/src/understand/store-failure.md");
    let rights = page.split("needs `GRANT ").nth(1).expect("the rights");
    let rights = rights.split('`').next().expect("their end");
    let schema = read("crates/store/src/postgres/schema.sql");
    let tables: Vec<&str> = schema
        .split("TABLE IF NOT EXISTS ")
        .skip(1)
        .filter_map(|table| table.split_whitespace().next())
        .collect();
    assert!(tables.len() >= 3, "{tables:?}");
    for table in tables {
        assert!(rights.contains(table), "{table}: {rights}");
    }
}

#[test]
fn documents_log_fields_are_those_of_the_code() {
    let page = read("docs/src/reference/logs.md");
    let table = page.split("## The operations log").next().expect("a table");
    let code = read("crates/telemetry/src/access/record.rs");
    let code = code
        .split("into.extend_from_slice(b\"{")
        .nth(1)
        .expect("a line of JSON");
    // A field is written as \"name\": in a byte string.
    let written: BTreeSet<&str> = code
        .split("\\\":")
        .filter_map(|before| before.rsplit_once("\\\"").map(|(_, name)| name))
        .filter(|name| {
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        })
        .filter(|name| !name.is_empty())
        .collect();
    assert!(written.len() > 20, "{written:?}");
    for name in &written {
        assert!(
            table.contains(&format!("`{name}`")),
            "the page lacks {name}"
        );
    }
    for row in table.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cell = row.split('|').next().unwrap_or_default();
        for name in format!("`{cell}").split('`').skip(1).step_by(2) {
            assert!(
                written.contains(name) || name == "time",
                "the page has {name}, which no line has"
            );
        }
    }
}

#[test]
fn documents_placeholders_are_those_of_the_code() {
    let page = read("docs/src/reference/placeholders.md");
    for name in tollgate_policy::REFUSAL_PLACEHOLDERS {
        assert!(
            page.contains(&format!("`{{{name}}}`")),
            "the page lacks {name}"
        );
    }
    let code = read("crates/policy/src/routes/template.rs");
    let known = code
        .split("let known = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("the list of an error message");
    for name in known.split(", ") {
        assert!(page.contains(&format!("`{name}`")), "the page lacks {name}");
    }
}

/// The ratios of the README are those of the page, without their ranges.
#[test]
fn documents_readme_has_the_figures_of_the_page() {
    let page = read("docs/src/measure/proxy.md");
    let rows = |text: &str, heading: &str| -> Vec<Vec<String>> {
        let section = text.split(heading).nth(1).expect("the section");
        let table = section.split("\n## ").next().unwrap_or_default();
        let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
        rows.map(|row| {
            let cells = row.split('|').skip(1).map(str::trim);
            cells
                .map(|cell| cell.split(" [").next().unwrap_or(cell).to_owned())
                .collect()
        })
        .collect()
    };
    let measured = rows(&page, "\n## Beside NGINX\n");
    let shown = rows(&read(README), "\n## How fast\n");
    assert!(shown.len() >= 5, "{shown:?}");
    for row in shown {
        assert!(
            measured.contains(&row),
            "the page has no {row:?}: {measured:?}"
        );
    }
}

#[test]
fn documents_metrics_that_are_named_exist() {
    let known = read("docs/src/reference/metrics.md");
    let sql = tollgate(&["schema", "--sql", "postgres"]) + &tollgate(&["schema", "--sql", "mysql"]);
    let mut named = 0;
    for document in documents(&[README, BOOK, EXAMPLES]) {
        // NGINX's variables of the headers X-Tollgate-… are no metrics, nor is the library's name.
        let text = document.text.replace("http_x_tollgate_", "");
        let text = text.replace("tollgate_tower", "");
        for name in words_after(&text, "tollgate_") {
            // Tables, functions and procedures of shared stores.
            if sql.contains(&format!("tollgate_{name}")) {
                continue;
            }
            named += 1;
            assert!(
                known.contains(&format!("`tollgate_{name}`")),
                "{}: there is no metric tollgate_{name}",
                document.path.display()
            );
        }
    }
    assert!(named > 30, "the book names metrics: {named}");
}

/// The files with the constants of all problems.
fn problems() -> String {
    let folder = root().join("crates/response/src/problem");
    let files = std::fs::read_dir(&folder).expect("the files of the constants");
    files
        .map(|file| file.expect("a file").path())
        .map(|path| std::fs::read_to_string(path).expect("readable"))
        .collect()
}

/// The words that follow `start` wherever it stands.
fn words_after(text: &str, start: &str) -> BTreeSet<String> {
    let part = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-' || *letter == '_';
    text.split(start)
        .skip(1)
        .map(|rest| rest.chars().take_while(part).collect::<String>())
        .filter(|word| !word.is_empty())
        .collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
