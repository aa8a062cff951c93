//! The rules of the house that no compiler knows: which module may import which, what the pure core may not name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What each module may import, besides itself and `telemetry`, which is a leaf that everyone may call.
const ARROWS: &[(&str, &[&str])] = &[
    ("limit", &[]),
    ("policy", &["limit"]),
    ("clock", &["limit"]),
    ("telemetry", &[]),
    ("store", &["limit", "policy", "clock"]),
    ("limiter", &["limit", "policy", "clock", "store"]),
    ("proxy", &["limit", "policy", "clock", "store", "limiter"]),
    ("admin", &["limit", "policy", "clock", "store", "limiter"]),
    ("config", &["limit", "policy"]),
    ("app", &["limit", "policy", "clock", "store", "limiter", "proxy", "admin", "config"]),
    ("cli", &["limit", "policy", "clock", "store", "limiter", "proxy", "admin", "config", "app"]),
];

/// Modules that may call `telemetry`: the pure ones and the configuration may not.
const MAY_TELL: &[&str] = &["store", "limiter", "proxy", "admin", "app", "cli"];

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        let module = file.module();
        if module == "lib" || module == "main" {
            continue;
        }
        let (_, may) = ARROWS
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{}: the module `{module}` has no place among the layers", file.path.display()));
        for (line, imported) in file.imports() {
            let fine = imported == module
                || may.contains(&imported.as_str())
                || (imported == "telemetry" && MAY_TELL.contains(&module.as_str()));
            if !fine {
                wrong.push(format!("{}:{line}: `{module}` imports `{imported}`", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let banned = ["tokio", "hyper", "async ", "f64", "f32", "Instant", "SystemTime", "HashMap", "BTreeMap", "HashSet"];
    let pure = sources("src/limit").into_iter().filter(|file| !file.is_test());
    assert_none(pure, &banned);
}

#[test]
fn nothing_below_the_proxy_names_hyper() {
    let above = ["proxy", "admin", "app", "cli"];
    let below = sources("src").into_iter().filter(|file| !above.contains(&file.module().as_str()));
    assert_none(below, &["hyper::", "hyper_util"]);
}

#[test]
fn time_and_the_environment_enter_through_one_door() {
    let no_clock = || sources("src").into_iter().filter(|file| file.module() != "clock" && !file.is_test());
    assert_none(no_clock(), &["SystemTime::now", "Timestamp::now("]);
    // Timeouts of sockets are the runtime's own affair: they are no part of any decision, and no test moves them.
    let no_runtime = no_clock().filter(|file| !file.lines.iter().any(|(_, code)| code.contains("tokio::time::")));
    assert_none(no_runtime, &["Instant::now"]);
    let no_cli = sources("src").into_iter().filter(|file| file.module() != "cli" && !file.is_test());
    assert_none(no_cli, &["env::var", "env::args", "var_os"]);
}

#[test]
fn nothing_is_unsafe_and_nothing_is_left_undone() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""), "unsafe code is denied crate-wide");
    // Put together here, so that a search for what is left undone finds nothing but that.
    let (todo, undone, mark) = (concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"));
    assert_none(sources("src"), &["unsafe ", "unsafe{", "(unsafe_code)", todo, undone, mark]);
    let tests = sources("tests").into_iter().filter(|file| !file.path.ends_with("layers.rs"));
    assert_none(tests, &["#[ignore", todo, mark]);
}

/// A source file without its comments.
struct Source {
    path: PathBuf,
    /// Code lines with their numbers, up to the tests at the bottom of the file.
    lines: Vec<(usize, String)>,
}

impl Source {
    /// The module of the first level it belongs to.
    fn module(&self) -> String {
        let below = self.path.strip_prefix("src").unwrap_or(&self.path);
        let first = below.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
        first.unwrap_or_default().trim_end_matches(".rs").to_owned()
    }

    fn is_test(&self) -> bool {
        let parts = self.path.components().map(|part| part.as_os_str().to_string_lossy());
        parts.into_iter().any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
    }

    /// The modules named after `crate::`, lists in braces included.
    fn imports(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (line, code) in &self.lines {
            for (at, _) in code.match_indices("crate::") {
                // `$crate::` and `mycrate::` are other things.
                if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
                    continue;
                }
                let rest = &code[at + "crate::".len()..];
                let names: Vec<&str> = match rest.strip_prefix('{') {
                    Some(list) => list.split(['}', ';']).next().unwrap_or_default().split(',').collect(),
                    None => vec![rest],
                };
                for name in names {
                    let name: String = name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if name.starts_with(|first: char| first.is_lowercase()) {
                        found.push((*line, name));
                    }
                }
            }
        }
        found
    }
}

fn assert_none(files: impl IntoIterator<Item = Source>, banned: &[&str]) {
    let mut wrong = BTreeMap::new();
    let mut seen = 0;
    for file in files {
        seen += 1;
        for (line, code) in &file.lines {
            if let Some(word) = banned.iter().find(|word| code.contains(**word)) {
                wrong.insert(format!("{}:{line}", file.path.display()), format!("`{word}` in `{}`", code.trim()));
            }
        }
    }
    assert!(seen > 0, "no file was looked at");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(&path));
            }
        }
    }
    found
}

fn read(path: &Path) -> Source {
    let text = fs::read_to_string(path).expect("a source file");
    Source { path: path.strip_prefix(root()).expect("below the root").to_owned(), lines: code_lines(&text) }
}

fn code_lines(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    // Tests at the bottom of a file may do as they please.
    let end = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"));
    let code = lines.iter().take(end.unwrap_or(lines.len())).enumerate();
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(at, line)| (at + 1, line.split(" // ").next().unwrap_or(line).to_owned()))
        .collect()
}

#[test]
fn the_check_sees_what_it_should_see() {
    let text =
        "use crate::{limit::Quota, proxy};\n/// [`crate::admin`]\nfn f(x: &$crate::Y) { crate::store::draw() }\n";
    let source = Source { path: PathBuf::from("src/policy/x.rs"), lines: code_lines(text) };
    let imports: Vec<String> = source.imports().into_iter().map(|(_, name)| name).collect();
    assert_eq!(imports, ["limit", "proxy", "store"]);
    assert_eq!(source.module(), "policy");
    assert_eq!(code_lines("a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod tests {\nc\n").len(), 4);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
