//! `nginx.conf` as a tree of directives with their lines; `include` is followed.

use std::path::Path;

use super::directive::{Blocks, Directive};
use crate::draft::Draft;
use crate::{ImportError, Read, SourceFile, TEXT_MAX};

use super::lexer::{Lexer, Token};

const DEEPEST: usize = 32;
/// The most directives of all files.
const MOST: usize = 200_000;
/// The most files, and the deepest nesting of `include`.
const MOST_FILES: usize = 500;
const DEEPEST_INCLUDE: usize = 10;

/// Reads files with everything they include. What cannot be included is said in the draft.
pub(crate) fn read(
    sources: &[SourceFile],
    read: Read<'_>,
    draft: &mut Draft,
) -> Result<Directive, ImportError> {
    // The files of a dump are those of the machine that it was made on, and none of this one.
    let dumps: Vec<Vec<SourceFile>> = sources.iter().map(dumped).collect();
    let held = dumps
        .iter()
        .map(|dump| move |pattern: &Path| found(dump, pattern));
    let held: Vec<_> = held.collect();
    let mut reader = Reader {
        read,
        draft,
        directives: 0,
        files: 0,
        bytes: 0,
    };
    let mut root = Directive::default();
    for (index, source) in sources.iter().enumerate() {
        let main = dumps[index].first();
        reader.read = match main {
            Some(_) => &held[index],
            None => read,
        };
        let main = main.unwrap_or(source);
        root.block.extend(reader.file(main, main.folder(), 0)?);
    }
    Ok(root)
}

/// The files within a dump of `nginx -T`, the main one first; none if it is no dump.
fn dumped(source: &SourceFile) -> Vec<SourceFile> {
    let mut files: Vec<SourceFile> = Vec::new();
    for line in source.text.lines() {
        let name = line.strip_prefix("# configuration file ");
        if let Some(name) = name.and_then(|name| name.strip_suffix(':')) {
            files.push(SourceFile {
                name: name.to_owned(),
                text: String::new(),
            });
        } else if let Some(file) = files.last_mut() {
            file.text.push_str(line);
            file.text.push('\n');
        }
    }
    files
}

/// The files of a dump that an `include` names.
fn found(dump: &[SourceFile], pattern: &Path) -> Result<Vec<SourceFile>, String> {
    let pattern = pattern.to_string_lossy();
    let named = dump
        .iter()
        .filter(|file| is_match(pattern.as_bytes(), file.name.as_bytes()));
    let named: Vec<SourceFile> = named.cloned().collect();
    match named.is_empty() && !pattern.contains(['*', '?', '[']) {
        true => Err("the dump does not hold it".to_owned()),
        false => Ok(named),
    }
}

/// Whether a name has the form of a pattern with `*` and `?`, which stand for no slash.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    // Where the last `*` stands, and the name from where it takes one byte more.
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(byte) if *byte == name[of] || (*byte == b'?' && name[of] != b'/') => {
                (at, of) = (at + 1, of + 1);
            }
            _ => match star {
                Some((place, from)) if name[from] != b'/' => {
                    star = Some((place, from + 1));
                    (at, of) = (place + 1, from + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

struct Reader<'r> {
    read: Read<'r>,
    draft: &'r mut Draft,
    directives: usize,
    files: usize,
    bytes: usize,
}

impl Reader<'_> {
    fn file(
        &mut self,
        source: &SourceFile,
        base: &Path,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        self.files += 1;
        self.bytes += source.text.len();
        if self.files > MOST_FILES || self.bytes > TEXT_MAX {
            return Err(ImportError::TooMuch(format!(
                "more than {MOST_FILES} files or {TEXT_MAX} bytes are included"
            )));
        }
        let broken =
            |line: usize, what: &str| ImportError::broken(source.place(line), what.to_owned());
        let mut lexer = Lexer {
            rest: &source.text,
            line: 1,
        };
        let mut blocks = Blocks::new(DEEPEST);
        let mut words: Vec<(String, usize)> = Vec::new();
        while let Some((token, line)) = lexer.next().map_err(|(what, line)| broken(line, what))? {
            match token {
                Token::Word(_) if words.len() > 10_000 => {
                    return Err(broken(line, "a directive of more than 10000 words"));
                }
                Token::Word(word) => words.push((word, line)),
                Token::Close if !words.is_empty() => {
                    return Err(broken(line, "a directive without `;` before `}`"));
                }
                Token::Close => blocks.close(source.place(line))?,
                Token::End | Token::Open => {
                    let mut words = std::mem::take(&mut words).into_iter();
                    let Some((name, line)) = words.next() else {
                        return Err(broken(line, "a directive was expected here"));
                    };
                    self.directives += 1;
                    if self.directives > MOST {
                        return Err(ImportError::TooMuch(format!("more than {MOST} directives")));
                    }
                    let directive = Directive {
                        place: source.place(line),
                        name,
                        args: words.map(|(word, _)| word).collect(),
                        ..Directive::default()
                    };
                    let opens = matches!(token, Token::Open);
                    if opens && directive.name.ends_with("_by_lua_block") {
                        let script = lexer.skip_block().map_err(|what| broken(line, what))?;
                        let args = vec![script.to_owned()];
                        blocks.add([Directive { args, ..directive }]);
                    } else if opens {
                        blocks.open(directive)?;
                    } else if directive.name == "include" {
                        blocks.add(self.include(&directive, base, depth)?);
                    } else {
                        blocks.add([directive]);
                    }
                }
            }
        }
        let here = blocks.end().map_err(|open| {
            let what = format!("the block of `{}` is not closed", open.name);
            ImportError::broken(open.place, what)
        })?;
        if let Some((word, line)) = words.first() {
            return Err(broken(*line, &format!("`{word}` has no `;`")));
        }
        Ok(here)
    }

    fn include(
        &mut self,
        directive: &Directive,
        base: &Path,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let pattern = directive.arg(0);
        // Types of files and parameters for other protocols: they hold no limits.
        let name = Path::new(pattern)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        if name == "mime.types" || name.ends_with("_params") || pattern.contains("modules-enabled")
        {
            return Ok(Vec::new());
        }
        if depth + 1 >= DEEPEST_INCLUDE {
            let what = format!(
                "`include` is nested deeper than {DEEPEST_INCLUDE} files, or includes itself"
            );
            return Err(ImportError::broken(directive.place.clone(), what));
        }
        let mut all = Vec::new();
        match (self.read)(&base.join(pattern)) {
            // NGINX resolves relative names from the directory of the main file, whatever file names them.
            Ok(sources) => {
                for source in &sources {
                    all.extend(self.file(source, base, depth + 1)?);
                }
            }
            Err(why) => {
                let why = format!("it cannot be read, so its limits are not known: {why}");
                self.draft.lost(directive, &why);
            }
        }
        Ok(all)
    }
}
