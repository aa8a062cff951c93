//! The arrows of CONTRIBUTING.md are the dependencies of the crates, and each crate keeps the rules of all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Arrows = BTreeMap<String, BTreeSet<String>>;

fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("crates").expect("the crates");
    let mut crates: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a crate").path())
        .collect();
    crates.sort();
    crates
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The crates of ours that each crate depends on outside of its tests.
fn declared() -> Arrows {
    let arrow = |path: PathBuf| {
        let manifest: toml::Table = text(&path.join("Cargo.toml")).parse().expect("a manifest");
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let ours = dependencies
            .into_iter()
            .flat_map(toml::Table::keys)
            .filter_map(|name| name.strip_prefix("tollgate-"))
            .map(str::to_owned);
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), ours.collect())
    };
    crates().into_iter().map(arrow).collect()
}

/// The lines `crate -> crate, crate` of the drawing.
fn drawn() -> Arrows {
    let page = text(Path::new("CONTRIBUTING.md"));
    let arrow = |line: &str| {
        let (from, to) = line.split_once(" -> ")?;
        let to = to.split(", ").map(|name| name.trim().to_owned());
        Some((from.trim().to_owned(), to.collect()))
    };
    let block = page.split("```").nth(1).expect("the drawing");
    block.lines().filter_map(arrow).collect()
}

#[test]
fn architecture_arrows_of_the_drawing_are_the_dependencies_of_the_crates() {
    let (declared, drawn) = (declared(), drawn());
    for (name, to) in &declared {
        let known = drawn.get(name).cloned().unwrap_or_default();
        assert_eq!(
            &known, to,
            "{name} in CONTRIBUTING.md and in its Cargo.toml"
        );
    }
    for name in drawn.keys() {
        assert!(declared.contains_key(name), "there is no crate {name}");
    }
}

#[test]
fn architecture_places_that_contributing_names_are_there() {
    let page = text(Path::new("CONTRIBUTING.md"));
    let words = page.split('`').skip(1).step_by(2);
    let is_place = |word: &&str| {
        ["crates/", "src/", "tests/"]
            .iter()
            .any(|start| word.starts_with(start))
    };
    let places: Vec<&str> = words.filter(is_place).collect();
    assert!(places.len() > 50, "{places:?}");
    for place in places {
        assert!(Path::new(place).exists(), "{place} is not there");
    }
}

/// An arrow back up would be a circle, which cargo refuses; a crate that lists itself above its users
/// in the drawing reads as one.
#[test]
fn architecture_crates_use_only_what_the_drawing_has_above_them() {
    let page = text(Path::new("CONTRIBUTING.md"));
    let block = page.split("```").nth(1).expect("the drawing");
    let mut above: BTreeSet<&str> = ["limit", "http1"].into();
    for line in block.lines() {
        let Some((from, to)) = line.split_once(" -> ") else {
            continue;
        };
        for name in to.split(", ") {
            assert!(above.contains(name.trim()), "{line}: {name} comes later");
        }
        above.insert(from.trim());
    }
}

#[test]
fn architecture_each_crate_forbids_unsafe_code_and_runs_the_example_of_its_readme() {
    for path in crates() {
        let library = text(&path.join("src/lib.rs"));
        let readme = text(&path.join("README.md"));
        let name = path.display();
        assert!(library.contains("#![forbid(unsafe_code)]"), "{name}");
        if !path.ends_with("testkit") {
            assert!(readme.contains("```rust\n"), "{name}: no example");
            assert!(library.contains("include_str!(\"../README.md\")"), "{name}");
        }
    }
}

/// `cargo test -p tollgate-limit` takes seconds: it needs no runtime, no TLS and no client of a server.
#[test]
fn architecture_core_and_its_tests_need_no_runtime_and_no_tls() {
    let lock: toml::Table = text(Path::new("Cargo.lock")).parse().expect("a lock file");
    let packages = lock["package"].as_array().expect("packages");
    let needs = |name: &str| -> Vec<String> {
        let of = |package: &&toml::Value| package["name"].as_str() == Some(name);
        packages
            .iter()
            .filter(of)
            .filter_map(|package| package.get("dependencies")?.as_array())
            .flatten()
            .filter_map(|one| one.as_str()?.split(' ').next())
            .map(str::to_owned)
            .collect()
    };
    let (mut known, mut next) = (BTreeSet::new(), vec!["tollgate-limit".to_owned()]);
    while let Some(name) = next.pop() {
        if known.insert(name.clone()) {
            next.extend(needs(&name));
        }
    }
    assert!(known.contains("smallvec"), "{known:?}");
    for heavy in [
        "tokio",
        "rustls",
        "redis",
        "tokio-postgres",
        "mysql_async",
        "hyper",
        "http",
        "serde",
    ] {
        assert!(
            !known.contains(heavy),
            "tollgate-limit needs {heavy}: {known:?}"
        );
    }
}
