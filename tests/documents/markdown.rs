//! What a Markdown file holds: fenced blocks with their directives, headings and links.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown file.
pub(crate) struct Document {
    /// Its path inside the repository.
    pub(crate) path: PathBuf,
    pub(crate) blocks: Vec<Block>,
    /// The anchors of its headings.
    pub(crate) anchors: Vec<String>,
    /// The targets of its links, with their lines.
    pub(crate) links: Vec<(usize, String)>,
    pub(crate) text: String,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) directive: Directive,
    /// The line of the file that it begins on.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// What the HTML comment above a block says about it. Readers do not see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Directive {
    /// No comment: a whole configuration, or commands that are run.
    #[default]
    None,
    /// `<!-- file NAME -->`: later commands of the page find the block under this name. With `, from PATH` behind the name
    /// it is that file of the repository.
    File(String),
    /// `<!-- fragment -->`: the test adds the tables that the block refers to.
    Fragment,
    /// `<!-- not run: REASON -->`: commands whose words are checked, but which are not run.
    NotRun,
}

impl Document {
    pub(crate) fn read(path: &Path) -> Self {
        let full = root().join(path);
        let raw = std::fs::read_to_string(&full)
            .unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        Self::parse(path, &raw)
    }

    /// A page of this text.
    pub(crate) fn parse(path: &Path, text: &str) -> Self {
        let mut document = Self {
            path: path.to_owned(),
            blocks: Vec::new(),
            anchors: Vec::new(),
            links: Vec::new(),
            text: text.to_owned(),
        };
        document.scan(text);
        document
    }

    fn scan(&mut self, text: &str) {
        let mut open: Option<Block> = None;
        let mut directive = Directive::None;
        for (number, line) in (1..).zip(text.lines()) {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (Some(_), Some(_)) => self.blocks.extend(open.take()),
                (None, Some(language)) => {
                    open = Some(Block {
                        language: language.trim().to_owned(),
                        directive: std::mem::take(&mut directive),
                        line: number,
                        text: String::new(),
                    });
                }
                (None, None) => self.prose(line, number, &mut directive),
            }
        }
        assert!(
            open.is_none(),
            "{}: a block has no end",
            self.path.display()
        );
    }

    fn prose(&mut self, line: &str, number: usize, directive: &mut Directive) {
        let place = || format!("{}:{number}", self.path.display());
        if let Some(comment) = line
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            *directive = match comment.split_once([' ', ':']) {
                Some(("file", name)) => {
                    let (name, _) = name.split_once(", from ").unwrap_or((name, ""));
                    Directive::File(name.to_owned())
                }
                Some(("not", _)) if comment.starts_with("not run: ") => Directive::NotRun,
                None if comment == "fragment" => Directive::Fragment,
                // Any other comment speaks to people.
                _ => Directive::None,
            };
        } else if !line.trim().is_empty() {
            assert!(
                *directive == Directive::None,
                "{}: the comment above it belongs to a block",
                place()
            );
        }
        if line.starts_with('#')
            && let Some((marks, title)) = line.split_once(' ')
            && marks.bytes().all(|mark| mark == b'#')
        {
            let anchor = anchor_of(title);
            // A second heading of the same words gets a number, as on GitHub and in mdBook.
            let same = |known: &&String| {
                **known == anchor
                    || known
                        .strip_prefix(&format!("{anchor}-"))
                        .is_some_and(|rest| rest.parse::<usize>().is_ok())
            };
            let before = self.anchors.iter().filter(same).count();
            self.anchors.push(match before {
                0 => anchor,
                _ => format!("{anchor}-{before}"),
            });
        }
        for target in targets(line) {
            self.links.push((number, target));
        }
    }
}

/// Every Markdown file under these folders and these files, in order.
pub(crate) fn documents(of: &[&str]) -> Vec<Document> {
    let mut paths = Vec::new();
    for start in of {
        collect(Path::new(start), &mut paths);
    }
    paths.sort();
    assert!(!paths.is_empty(), "{of:?} hold no document");
    paths.iter().map(|path| Document::read(path)).collect()
}

fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    let full = root().join(path);
    if full.is_dir() {
        for entry in std::fs::read_dir(&full).expect("a readable folder") {
            let name = entry.expect("a readable entry").file_name();
            collect(&path.join(name), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "md") {
        into.push(path.to_owned());
    }
}

/// The anchor of a heading: lower case, blanks as hyphens, no punctuation.
pub(crate) fn anchor_of(title: &str) -> String {
    let mut anchor = String::new();
    for letter in title.trim().chars() {
        match letter {
            ' ' => anchor.push('-'),
            '-' | '_' => anchor.push(letter),
            _ if letter.is_alphanumeric() => anchor.extend(letter.to_lowercase()),
            _ => {}
        }
    }
    anchor
}

/// The targets of the inline links of a line; what stands in back quotes is no link.
fn targets(line: &str) -> Vec<String> {
    let prose: Vec<&str> = line.split('`').step_by(2).collect();
    let prose = prose.join("`");
    let mut found = Vec::new();
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        if let Some(end) = rest.find(')') {
            found.push(rest[..end].to_owned());
        }
    }
    found
}
