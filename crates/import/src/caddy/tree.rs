//! A Caddyfile as a tree of directives with their lines; snippets and files are imported.

use std::collections::HashMap;
use std::path::Path;

use crate::directive::{Blocks, Directive};
use crate::draft::Draft;
use crate::{ImportError, Read, Source, TEXT_MAX};

/// The deepest nesting of blocks and imports, and the most directives and bytes.
const DEEPEST: usize = 24;
const MOST: usize = 100_000;

/// Reads files: site blocks, whose names are addresses.
pub(super) fn read(
    sources: &[Source],
    read: Read<'_>,
    draft: &mut Draft,
) -> Result<Vec<Directive>, ImportError> {
    let mut all = Vec::new();
    let mut importer = Importer {
        read,
        draft,
        snippets: HashMap::new(),
        directives: 0,
        bytes: 0,
    };
    for source in sources {
        importer.bytes += source.text.len();
        let parsed = parse(source)?;
        for directive in &parsed {
            let name = directive
                .name
                .strip_prefix('(')
                .and_then(|name| name.strip_suffix(')'));
            if let Some(name) = name {
                importer
                    .snippets
                    .insert(name.to_owned(), directive.block.clone());
            }
        }
        let sites = parsed
            .into_iter()
            .filter(|directive| !directive.name.starts_with('('));
        all.extend(importer.expand(sites.collect(), source.folder(), 0)?);
    }
    Ok(all)
}

struct Importer<'r> {
    read: Read<'r>,
    draft: &'r mut Draft,
    snippets: HashMap<String, Vec<Directive>>,
    directives: usize,
    bytes: usize,
}

impl Importer<'_> {
    /// Puts what is imported in the place of `import`.
    fn expand(
        &mut self,
        list: Vec<Directive>,
        base: &Path,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut all = Vec::new();
        for mut directive in list {
            self.directives += 1;
            if self.directives > MOST {
                return Err(ImportError::TooMuch(format!(
                    "more than {MOST} directives, imports counted"
                )));
            }
            if directive.name != "import" {
                directive.block = self.expand(directive.block, base, depth + 1)?;
                all.push(directive);
                continue;
            }
            if depth + 1 >= DEEPEST {
                let what = format!("`import` is nested deeper than {DEEPEST}, or imports itself");
                return Err(ImportError::broken(directive.place, what));
            }
            if let Some(snippet) = self.snippets.get(directive.arg(0)).cloned() {
                let filled = snippet
                    .into_iter()
                    .map(|inner| filled(inner, &directive.args[1..]))
                    .collect();
                all.extend(self.expand(filled, base, depth + 1)?);
                continue;
            }
            match (self.read)(&base.join(directive.arg(0))) {
                Ok(sources) => {
                    for source in &sources {
                        self.bytes += source.text.len();
                        if self.bytes > TEXT_MAX {
                            return Err(ImportError::TooMuch(format!(
                                "more than {TEXT_MAX} bytes are imported"
                            )));
                        }
                        all.extend(self.expand(parse(source)?, base, depth + 1)?);
                    }
                }
                Err(why) => {
                    let why = format!("it cannot be read, so its limits are not known: {why}");
                    self.draft.lost(&directive, &why);
                }
            }
        }
        Ok(all)
    }
}

/// With the arguments of an `import` in the place of `{args[0]}`. Blocks are nested no deeper than [`DEEPEST`].
fn filled(mut directive: Directive, with: &[String]) -> Directive {
    for text in std::iter::once(&mut directive.name).chain(&mut directive.args) {
        for (index, value) in with.iter().enumerate().take(20) {
            if text.len() + value.len() < 4_096 && text.contains("{args") {
                *text = text
                    .replace(&format!("{{args[{index}]}}"), value)
                    .replace(&format!("{{args.{index}}}"), value);
            }
        }
    }
    let inner = directive.block.into_iter();
    directive.block = inner.map(|inner| filled(inner, with)).collect();
    directive
}

fn parse(source: &Source) -> Result<Vec<Directive>, ImportError> {
    let mut blocks = Blocks::new(DEEPEST);
    for (line, mut words) in lines(source)? {
        let place = source.place(line);
        let opens = words.pop_if(|word| word == "{").is_some();
        if words.first().is_some_and(|word| word == "}") {
            blocks.close(place)?;
            continue;
        }
        if words.is_empty() && !opens {
            continue;
        }
        let mut words = words.into_iter();
        let directive = Directive {
            place,
            name: words.next().unwrap_or_default(),
            args: words.collect(),
            block: Vec::new(),
        };
        if opens {
            blocks.open(directive)?;
        } else {
            blocks.add([directive]);
        }
    }
    blocks
        .end()
        .map_err(|open| ImportError::broken(open.place, "the block is not closed"))
}

/// The lines of a file with their words. Quotes hold blanks and line breaks together.
fn lines(source: &Source) -> Result<Vec<(usize, Vec<String>)>, ImportError> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let (mut line, mut began) = (1, 1);
    let mut letters = source.text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' | ' ' | '\t' | '\r' => {
                words.extend(word.take());
                if letter == '\n' {
                    if !words.is_empty() {
                        all.push((began, std::mem::take(&mut words)));
                    }
                    line += 1;
                    began = line;
                }
            }
            '#' if word.is_none() => {
                while letters.peek().is_some_and(|letter| *letter != '\n') {
                    letters.next();
                }
            }
            // The line goes on.
            '\\' if letters.peek() == Some(&'\n') => {
                letters.next();
                line += 1;
            }
            '"' | '`' if word.is_none() => {
                let (at, mut text) = (line, String::new());
                loop {
                    match letters.next() {
                        Some(end) if end == letter => break,
                        Some('\\')
                            if letter == '"' && matches!(letters.peek(), Some('"' | '\\')) =>
                        {
                            text.extend(letters.next());
                        }
                        Some(inner) => {
                            line += usize::from(inner == '\n');
                            text.push(inner);
                        }
                        None => {
                            let place = source.place(at);
                            return Err(ImportError::broken(place, "a quote that is not closed"));
                        }
                    }
                }
                words.push(text);
            }
            '\u{feff}' if line == 1 && words.is_empty() => {}
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if !words.is_empty() {
        all.push((began, words));
    }
    Ok(all)
}
