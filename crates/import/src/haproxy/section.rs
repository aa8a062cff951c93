//! `haproxy.cfg` as sections of lines with their words.

use crate::{ImportError, Place, Source};

/// The most lines.
const MOST: usize = 100_000;

/// A line with its words.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) place: Place,
    pub(super) words: Vec<String>,
}

impl Line {
    pub(super) fn text(&self) -> String {
        self.words.join(" ")
    }

    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// The word behind this one.
    pub(super) fn after(&self, word: &str) -> Option<&str> {
        let at = self.words.iter().position(|known| known == word)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// Whether one of its words is one of these.
    pub(super) fn has(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&&**word))
    }
}

/// A section: `frontend`, `backend`, `listen` and the like.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

impl Section {
    /// Its lines that begin with this word.
    pub(super) fn all<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s Line> {
        self.lines.iter().filter(move |line| line.word(0) == word)
    }

    /// The lines of an acl; several are alternatives.
    pub(super) fn acl<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Line> {
        self.all("acl").filter(move |line| line.word(1) == name)
    }
}

const KINDS: [&str; 18] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "userlist",
    "resolvers",
    "mailers",
    "program",
    "cache",
    "http-errors",
    "ring",
    "log-forward",
    "fcgi-app",
    "crt-list",
    "crt-store",
    "traces",
];

/// Reads files.
pub(super) fn read(sources: &[Source]) -> Result<Vec<Section>, ImportError> {
    let mut sections: Vec<Section> = Vec::new();
    let mut count = 0;
    for source in sources {
        for (index, text) in source.text.lines().enumerate() {
            let place = source.place(index + 1);
            let words = words(text).map_err(|what| ImportError::broken(place.clone(), what))?;
            let Some(first) = words.first() else { continue };
            count += 1;
            if count > MOST {
                return Err(ImportError::TooMuch(format!("more than {MOST} lines")));
            }
            if KINDS.contains(&first.as_str()) {
                let name = words.get(1).cloned().unwrap_or_default();
                sections.push(Section {
                    kind: first.clone(),
                    name,
                    lines: Vec::new(),
                });
            } else if let Some(section) = sections.last_mut() {
                section.lines.push(Line { place, words });
            } else {
                let what = format!("`{first}` is in no section");
                return Err(ImportError::broken(place, what));
            }
        }
    }
    Ok(sections)
}

/// The words of a line: quotes hold blanks together, a backslash the next character, `#` begins a comment.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.trim_start_matches('\u{feff}').chars();
    while let Some(letter) = letters.next() {
        match letter {
            '#' => break,
            '\\' => word
                .get_or_insert_default()
                .push(letters.next().unwrap_or('\\')),
            '"' | '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        Some(end) if end == letter => break,
                        Some('\\') if letter == '"' => word.extend(letters.next()),
                        Some(inner) => word.push(inner),
                        None => return Err("a quote that is not closed"),
                    }
                }
            }
            _ if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}
