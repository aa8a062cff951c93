//! The list of functions that a plain build lays side by side names functions that are there.

use std::fs;
use std::path::{Path, PathBuf};

/// The parts of a name in the older spelling: each after its length, to the hash.
fn parts(name: &str) -> Vec<&str> {
    let (mut rest, mut parts) = (name.strip_prefix("_ZN").unwrap_or_default(), Vec::new());
    while !rest.starts_with("17h*") {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Some((length, after)) = rest[..digits].parse().ok().zip(rest.get(digits..)) else { break };
        let (part, more): (&str, &str) = after.split_at_checked(length).expect("a part as long as it says");
        parts.push(part);
        rest = more;
    }
    parts
}

/// The file of the deepest module that the parts lead to.
fn file_of(source: &Path, parts: &[&str]) -> PathBuf {
    let mut folder = source.to_owned();
    let mut file = source.join("lib.rs");
    for part in parts {
        let (beside, within) = (folder.join(part).with_extension("rs"), folder.join(part).join("mod.rs"));
        let Some(found) = [beside, within].into_iter().find(|file| file.exists()) else { break };
        (file, folder) = (found, folder.join(part));
    }
    file
}

#[test]
fn functions_that_are_laid_side_by_side_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("build/request-path.txt")).expect("the list");
    assert!(list.lines().any(|name| name.starts_with("_RNv")), "names as newer compilers spell them");
    let ours: Vec<Vec<&str>> = list.lines().map(parts).filter(|parts| parts.first() == Some(&"tollgate")).collect();
    assert!(ours.len() > 50, "{} functions of ours", ours.len());
    let gone: Vec<String> = ours
        .iter()
        .filter(|parts| {
            let function = parts.iter().rfind(|part| !part.contains("closure")).expect("a name");
            let text = fs::read_to_string(file_of(&root.join("src"), &parts[1..])).expect("a source file");
            ["(", "<"].iter().all(|open| !text.contains(&format!("fn {function}{open}")))
        })
        .map(|parts| parts.join("::"))
        .collect();
    // A few that were renamed cost nothing that shows.
    assert!(gone.len() * 10 <= ours.len(), "run benches/proxy/order again: {gone:#?}");
}
