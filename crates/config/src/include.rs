//! Reads the file and its includes, and merges them into one mirror.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::files::{cannot_read, folder, matches, read_text};
use super::merge::merge;
use super::raw::RawFile;
use super::reading::{Context, Place, Problem, SHOWN_MAX, Table};

#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) raw: RawFile,
    /// Lines with syntax errors: other mistakes on them are consequences.
    pub(crate) broken_lines: Vec<(u32, usize)>,
    /// Whether a file is written in another language, so that all other mistakes are consequences.
    pub(crate) is_foreign: bool,
}

/// Reads a text and its includes. Relative paths start in the directory of `name`.
pub(crate) fn read(name: &str, text: String, context: &mut Context<'_>) -> Tree {
    let mut walk = Walk {
        context,
        tree: Tree::default(),
        chain: vec![PathBuf::from(name)],
    };
    walk.text(name, text);
    walk.tree
}

struct Walk<'w, 'e> {
    context: &'w mut Context<'e>,
    tree: Tree,
    /// The files being read, outermost first.
    chain: Vec<PathBuf>,
}

impl Walk<'_, '_> {
    fn text(&mut self, name: &str, text: String) {
        let base = folder(Path::new(name));
        let file = self.context.sources.add(name, text.as_str(), &base);
        let (keys, errors) = DeTable::parse_recoverable(&text);
        self.syntax(file, &text, &errors);
        let table = Table {
            keys: keys.get_ref(),
            place: Place::new(file, 0..0),
        };
        let raw = RawFile::read_table(&table, self.context);
        let includes = raw.include.or(Vec::new());
        merge(&mut self.tree.raw, raw, &mut self.context.problems);
        for pattern in includes {
            let whole = base.join(pattern.as_str());
            if pattern.as_str().contains('*') {
                // Files that match later are watched for.
                self.context.files.push(whole.clone());
            }
            match matches(&whole) {
                Ok(paths) => paths
                    .into_iter()
                    .for_each(|path| self.file(path, pattern.place)),
                Err(title) => self.refuse(title, pattern.place),
            }
        }
    }

    fn refuse(&mut self, title: String, included: Place) {
        self.context.error(title, included, "included here");
    }

    fn file(&mut self, path: PathBuf, included: Place) {
        let real = std::fs::canonicalize(&path).ok();
        let same = |other: &PathBuf| real.is_some() && std::fs::canonicalize(other).ok() == real;
        let circle = self.chain.iter().any(same);
        if circle || self.context.files.iter().any(same) {
            let (title, label) = if circle {
                ("includes itself", "the circle closes here")
            } else {
                ("is included twice", "included again here")
            };
            let title = format!("`{}` {title}", path.display());
            self.context.error(title, included, label);
            return;
        }
        if self.context.files.len() > FILES_MAX {
            self.refuse(format!("more than {FILES_MAX} files"), included);
            return;
        }
        self.context.files.push(path.clone());
        match read_text(&path) {
            Ok(text) => {
                self.chain.push(path.clone());
                self.text(&path.display().to_string(), text);
                self.chain.pop();
            }
            Err(error) => self.refuse(cannot_read(&path, &error), included),
        }
    }

    /// Reports the first syntax error of each line: the others are consequences.
    fn syntax(&mut self, file: u32, text: &str, errors: &[toml::de::Error]) {
        if !errors.is_empty()
            && let Some((language, line)) = other_language(text)
        {
            self.tree.is_foreign = true;
            self.tree.broken_lines.push((file, 0));
            let title = format!("this file is {language}, and a configuration is TOML");
            let problem = self.context.error(
                title,
                Place::new(file, line),
                "no line of TOML begins like this",
            );
            problem.syntax = true;
            problem.help("`tollgate init` writes a file to start from, `tollgate import` translates those of other gateways");
            return;
        }
        for error in errors.iter().take(SHOWN_MAX) {
            let span = error.span().unwrap_or(0..0);
            let line = text
                .get(..span.start)
                .unwrap_or_default()
                .matches('\n')
                .count();
            if self.tree.broken_lines.contains(&(file, line)) {
                continue;
            }
            self.tree.broken_lines.push((file, line));
            let place = Place::new(file, span.clone());
            let message = error.message();
            if message == "duplicate key" {
                // Keys of a table that is written twice are duplicates too.
                let header = text[..span.start]
                    .lines()
                    .enumerate()
                    .filter(|(_, line)| line.starts_with('['))
                    .last();
                if header.is_some_and(|(at, _)| {
                    at < line && self.tree.broken_lines.contains(&(file, at))
                }) {
                    continue;
                }
                duplicate(file, text, place, self.context).syntax = true;
                continue;
            }
            let unquoted = message.starts_with("string values must be quoted");
            let label = match unquoted {
                true if span.is_empty() => "a value is missing here".to_owned(),
                true => "a text needs quotes".to_owned(),
                false => message.replace(", expected", "; expected"),
            };
            let problem = self.context.error("this is not TOML", place, label);
            problem.syntax = true;
            if unquoted && !span.is_empty() {
                // Word processors write quotes that are not TOML.
                let word = text[span]
                    .trim_matches(['“', '”', '„', '‟', '‘', '’', '‚', '«', '»', '`', '\'', '"']);
                problem.help(format!("write \"{word}\""));
            }
        }
    }
}

/// The language of a text that is not TOML, if it is one that configurations are written in, and
/// its first line.
fn other_language(text: &str) -> Option<(&'static str, Range<usize>)> {
    let lines = || {
        let own = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        text.lines().filter(own)
    };
    let first = lines().next()?;
    let begins = |line: &str, with: &[char]| line.trim_start().starts_with(with);
    let is_pair = |line: &str| {
        let (key, value) = line.split_once(':').unwrap_or_default();
        let plain = |letter: char| {
            letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/' | '"' | '\'' | ' ')
        };
        !key.is_empty()
            && key.chars().all(plain)
            && (value.is_empty() || value.starts_with(char::is_whitespace))
    };
    let language = if begins(first, &['{']) {
        "JSON"
    } else if first.trim_end() == "---"
        || (is_pair(first) && !lines().any(|line| begins(line, &['['])))
    {
        "YAML"
    } else {
        return None;
    };
    let start = first.as_ptr() as usize - text.as_ptr() as usize;
    Some((language, start..start + first.len()))
}

/// A duplicate key or table, with both places if the first can be found in the text.
fn duplicate<'c>(
    file: u32,
    text: &str,
    place: Place,
    context: &'c mut Context<'_>,
) -> &'c mut Problem {
    let name = text.get(place.range()).unwrap_or_default();
    let title = format!("`{name}` is written twice");
    let problem = context.error(title, place, "written again here");
    let before = &text[..place.range().start];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let header = line.trim_start().starts_with('[');
    let is_in_table = |earlier: &&str| header || !earlier.trim_start().starts_with('[');
    let is_same = |earlier: &&str| match earlier.split_once('=') {
        _ if header => earlier.trim() == line.trim(),
        Some((key, _)) => key.trim() == name,
        None => false,
    };
    let mut earlier = text[..line_start].lines().rev().take_while(is_in_table);
    if let Some(first) = earlier.find(is_same) {
        let first = first.trim();
        let start = first.as_ptr() as usize - text.as_ptr() as usize;
        let length = if header { first } else { name }.len();
        problem.at(
            Place::new(file, start..start + length),
            "first written here",
        );
    }
    problem
}

/// A safety bound, far above any intended number of included files.
const FILES_MAX: usize = 1_000;
