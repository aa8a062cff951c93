//! The book: its links, its table of contents, and that mdBook builds it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::markdown::{Document, documents, root};
use crate::reference::current;
use crate::{BOOK, EXAMPLES, README};

/// Every document of the repository.
fn all() -> Vec<Document> {
    documents(&[
        README,
        BOOK,
        EXAMPLES,
        "crates",
        "tests/STORES.md",
        "tests/WIRE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ])
}

#[test]
fn documents_have_no_marks_of_a_merge() {
    for document in all() {
        let mut lines = document.text.lines();
        let mark = lines.find(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(mark, None, "{}", document.path.display());
    }
}

#[test]
fn documents_link_leads_somewhere() {
    let all = all();
    let known: BTreeMap<&Path, &Document> = all
        .iter()
        .map(|document| (document.path.as_path(), document))
        .collect();
    let mut wrong = Vec::new();
    for document in &all {
        for (line, target) in &document.links {
            if let Err(why) = follow(document, target, &known) {
                wrong.push(format!(
                    "{}:{line}: ({target}) {why}",
                    document.path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn follow(
    from: &Document,
    target: &str,
    known: &BTreeMap<&Path, &Document>,
) -> Result<(), &'static str> {
    // Other sites are not asked: a test needs no network.
    if target.starts_with("https://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = match path {
        "" => from.path.clone(),
        _ => joined(from.path.parent().unwrap_or(Path::new("")), path),
    };
    if from.path.starts_with(BOOK) && !to.starts_with(BOOK) {
        return Err("leads out of the book: the built pages do not have it");
    }
    if !root().join(&to).exists() {
        return Err("is not there");
    }
    match known.get(to.as_path()) {
        Some(document) if !anchor.is_empty() => document
            .anchors
            .iter()
            .any(|known| known == anchor)
            .then_some(())
            .ok_or("has no such heading"),
        _ => Ok(()),
    }
}

fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut to = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => _ = to.pop(),
            Component::Normal(name) => to.push(name),
            _ => {}
        }
    }
    to
}

#[test]
fn documents_book_lists_every_page() {
    let summary = Document::read(Path::new("docs/src/SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = summary
        .links
        .iter()
        .map(|(_, target)| joined(Path::new(BOOK), target))
        .collect();
    let there: BTreeSet<PathBuf> = documents(&[BOOK])
        .into_iter()
        .map(|document| document.path)
        .filter(|path| !path.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(listed, there);
}

/// A page is read on the repository's own pages, too, where mdBook's `{{#include}}` is not replaced.
#[test]
fn documents_pages_show_the_files_that_they_name() {
    let mut shown = 0;
    for document in documents(&[BOOK]) {
        let page = document.path.display();
        assert!(
            !document.text.contains("{{#include"),
            "{page} includes a file"
        );
        let (text, files) = with_files(&document.text);
        shown += files;
        current(&document.path, &text);
    }
    assert!(shown > 8, "pages show files of the repository: {shown}");
    let design = std::fs::read_to_string(root().join("DESIGN.md")).expect("a page");
    let note = "<!-- This is DESIGN.md, written here by `BLESS=1 cargo test --test documents`; do not edit. -->";
    current(
        Path::new("docs/src/understand/design.md"),
        &format!("{note}\n\n{design}"),
    );
}

/// A page whose blocks below `<!-- file NAME, from PATH -->` are these files, and how many they are.
fn with_files(page: &str) -> (String, usize) {
    let (mut text, mut files) = (String::new(), 0);
    let mut lines = page.split_inclusive('\n');
    while let Some(line) = lines.next() {
        text.push_str(line);
        let named = line
            .strip_prefix("<!-- file ")
            .and_then(|rest| rest.split_once(", from "));
        let Some(path) = named.and_then(|(_, path)| path.strip_suffix(" -->\n")) else {
            continue;
        };
        let file = std::fs::read_to_string(root().join(path));
        text.push_str(lines.next().expect("a block"));
        text.push_str(&file.unwrap_or_else(|error| panic!("{path}: {error}")));
        text.extend(lines.by_ref().find(|line| *line == "```\n"));
        files += 1;
    }
    (text, files)
}

#[test]
fn documents_readme_is_at_most_150_lines() {
    let readme = Document::read(Path::new(README));
    let lines = readme.text.lines().count();
    assert!(lines <= 150, "{lines} lines");
    for command in ["cargo run --release\n", "./check\n"] {
        assert!(readme.text.contains(command), "it shows {command}");
    }
}

#[test]
fn documents_pictures_are_those_that_the_script_draws() {
    if !tollgate_testkit::servers::available("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let drawn = Command::new("python3")
        .arg(root().join("docs/pictures.py"))
        .arg(folder.path())
        .status()
        .expect("python3 runs");
    assert!(drawn.success());
    for entry in std::fs::read_dir(folder.path()).expect("pictures") {
        let drawn = entry.expect("a readable entry").path();
        let name = drawn.file_name().expect("a name");
        let there = root().join("docs/src/pictures").join(name);
        assert!(
            std::fs::read(&drawn).ok() == std::fs::read(&there).ok(),
            "{} is not what docs/pictures.py draws: run it",
            there.display()
        );
    }
}

#[test]
fn documents_book_builds() {
    let own = root().join("target/tools/bin/mdbook");
    let program = if own.exists() { own } else { "mdbook".into() };
    let target = tempfile::tempdir().expect("a directory");
    let built = Command::new(&program)
        .args(["build", "docs", "--dest-dir"])
        .arg(target.path())
        .current_dir(root())
        .output();
    let output = match built {
        Ok(output) => output,
        Err(_) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "mdbook is not installed: ./check installs it"
            );
            eprintln!("!!! SKIPPED: mdbook is not installed; ./check installs it");
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        !said.contains("WARN") && !said.contains("ERROR"),
        "mdbook warns:\n{said}"
    );
    assert!(target.path().join("index.html").exists(), "{said}");
}
