//! `nginx.conf` as a tree of directives with their lines; `include` is followed.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::draft::Draft;
use crate::{ImportError, Place, Read, Source, TEXT_MAX};

use super::lexer::{Lexer, Token};

/// The deepest nesting of blocks.
const DEEPEST: usize = 32;
/// The most directives of all files.
const MOST: usize = 200_000;
/// The most files, and the deepest nesting of `include`.
const MOST_FILES: usize = 500;
const DEEPEST_INCLUDE: usize = 10;

/// A directive with its arguments, and what its block holds.
#[derive(Clone, Debug)]
pub(crate) struct Directive {
    pub(crate) file: Rc<str>,
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    /// `None`: it ends with `;`.
    pub(crate) block: Option<Vec<Directive>>,
}

impl Directive {
    pub(crate) fn place(&self) -> Place {
        Place {
            file: self.file.to_string(),
            line: self.line,
        }
    }

    /// As the file has it, on one line.
    pub(crate) fn words(&self) -> String {
        let mut words = self.name.clone();
        for arg in &self.args {
            words.push(' ');
            words.push_str(arg);
        }
        words
    }

    pub(crate) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    pub(crate) fn children(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Its direct children of this name.
    pub(crate) fn all<'d>(&'d self, name: &'d str) -> impl Iterator<Item = &'d Self> {
        self.children()
            .iter()
            .filter(move |child| child.name == name)
    }
}

/// Reads files with everything they include. What cannot be included is said in the draft.
pub(crate) fn read(
    sources: &[Source],
    read: Read<'_>,
    draft: &mut Draft,
) -> Result<Directive, ImportError> {
    let mut reader = Reader {
        read,
        draft,
        directives: 0,
        files: 0,
        bytes: 0,
    };
    let mut all = Vec::new();
    for source in sources {
        let base = Path::new(&source.name)
            .parent()
            .map_or_else(PathBuf::new, Path::to_path_buf);
        all.extend(reader.file(source, &base, 0)?);
    }
    Ok(Directive {
        file: "".into(),
        line: 0,
        name: String::new(),
        args: Vec::new(),
        block: Some(all),
    })
}

struct Reader<'r> {
    read: Read<'r>,
    draft: &'r mut Draft,
    directives: usize,
    files: usize,
    bytes: usize,
}

/// A block under way.
struct Open {
    directive: Directive,
    block: Vec<Directive>,
}

impl Reader<'_> {
    fn file(
        &mut self,
        source: &Source,
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
        let file: Rc<str> = source.name.as_str().into();
        let at = |line| Place {
            file: source.name.clone(),
            line,
        };
        let mut lexer = Lexer {
            rest: &source.text,
            line: 1,
        };
        let mut stack: Vec<Open> = Vec::new();
        let mut here: Vec<Directive> = Vec::new();
        let mut words: Vec<(String, usize)> = Vec::new();
        while let Some((token, line)) = lexer
            .next()
            .map_err(|(what, line)| ImportError::broken(at(line), what))?
        {
            match token {
                Token::Word(word) => {
                    if words.len() > 10_000 {
                        return Err(ImportError::broken(
                            at(line),
                            "a directive of more than 10000 words",
                        ));
                    }
                    words.push((word, line));
                }
                Token::Close => {
                    if !words.is_empty() {
                        return Err(ImportError::broken(
                            at(line),
                            "a directive without `;` before `}`",
                        ));
                    }
                    let Some(mut open) = stack.pop() else {
                        return Err(ImportError::broken(at(line), "`}` closes no block"));
                    };
                    open.directive.block = Some(std::mem::replace(&mut here, open.block));
                    here.push(open.directive);
                }
                Token::End | Token::Open => {
                    let mut words = std::mem::take(&mut words).into_iter();
                    let Some((name, line)) = words.next() else {
                        let what = "a directive was expected here";
                        return Err(ImportError::broken(at(line), what));
                    };
                    self.directives += 1;
                    if self.directives > MOST {
                        return Err(ImportError::TooMuch(format!("more than {MOST} directives")));
                    }
                    let args = words.map(|(word, _)| word).collect();
                    let directive = Directive {
                        file: Rc::clone(&file),
                        line,
                        name,
                        args,
                        block: None,
                    };
                    if matches!(token, Token::Open) {
                        if directive.name.ends_with("_by_lua_block") {
                            lexer
                                .skip_block()
                                .map_err(|what| ImportError::broken(at(line), what))?;
                            here.push(directive);
                            continue;
                        }
                        if stack.len() + 1 >= DEEPEST {
                            let what = format!("nested deeper than {DEEPEST} blocks");
                            return Err(ImportError::broken(at(line), what));
                        }
                        stack.push(Open {
                            directive,
                            block: std::mem::take(&mut here),
                        });
                    } else if directive.name == "include" {
                        here.extend(self.include(&directive, base, depth)?);
                    } else {
                        here.push(directive);
                    }
                }
            }
        }
        if let Some(open) = stack.pop() {
            let what = format!("the block of `{}` is not closed", open.directive.name);
            return Err(ImportError::broken(open.directive.place(), what));
        }
        if let Some((word, line)) = words.first() {
            return Err(ImportError::broken(
                at(*line),
                format!("`{word}` has no `;`"),
            ));
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
            return Err(ImportError::broken(
                directive.place(),
                format!(
                    "`include` is nested deeper than {DEEPEST_INCLUDE} files, or includes itself"
                ),
            ));
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
                self.draft
                    .not_imported(&directive.place(), &directive.words(), &why);
            }
        }
        Ok(all)
    }
}
