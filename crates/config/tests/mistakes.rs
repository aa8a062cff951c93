//! Golden tests of configuration mistakes: `tests/golden/mistakes/NAME.toml` must be refused with exactly
//! `NAME.txt`, and what is only a warning must be said in exactly these words. `BLESS=1` writes the texts anew; read
//! them before committing: each must say what is wrong, where, and what would do.

use std::path::{Path, PathBuf};

use tollgate_limit::Timestamp;

/// The environment of every golden file.
fn environment(name: &str) -> Option<String> {
    match name {
        "SECRET" => Some("0123456789abcdef0123456789abcdef".to_owned()),
        "SHORT" => Some("short".to_owned()),
        "REDIS_URL" => Some("redis://127.0.0.1:6379/0".to_owned()),
        "CLUSTER_URL" => Some("redis+cluster://10.0.0.1:6379,10.0.0.2:6379".to_owned()),
        _ => None,
    }
}

/// 2026-01-01T00:00:00Z: calendar windows are computed around it.
const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn golden() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mistakes");
    let entries =
        std::fs::read_dir(directory).expect("the golden files are part of the repository");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "toml")
    });
    files.sort();
    files
}

fn said(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("a readable file");
    let name = file.file_name().expect("a file").to_string_lossy();
    // Relative paths start beside the golden files, and no message shows where the repository lies.
    let home = file.parent().expect("a directory");
    let read = tollgate_config::parse(
        &text,
        &home.join(&*name).display().to_string(),
        &environment,
        NOW,
    );
    let said = match read {
        Err(error) => error.to_string(),
        Ok(config) => config.warnings.join("\n\n"),
    };
    said.replace(&format!("{}/", home.display()), "") + "\n"
}

#[test]
fn config_mistakes_print_their_golden_messages() {
    let mut wrong = Vec::new();
    for file in golden() {
        let said = said(&file);
        let expected = file.with_extension("txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&expected, &said).expect("a writable directory");
        } else if std::fs::read_to_string(&expected).ok().as_deref() != Some(&said) {
            wrong.push(format!("--- {}\n{said}", file.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ (BLESS=1 rewrites them):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn there_are_enough_of_them_and_each_says_something() {
    let files = golden();
    assert!(files.len() >= 40, "{}", files.len());
    for file in files {
        assert!(
            said(&file).contains("-->") || said(&file).contains("error"),
            "{}",
            file.display()
        );
    }
}

#[test]
fn decisions_on_the_loopback_and_routes_without_limits_on_purpose_are_not_warned_of() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quiet.toml");
    assert_eq!(said(&file), "\n");
}
