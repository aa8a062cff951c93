//! The name of the operation that a GraphQL request executes.
//!
//! Only as much of a document is read as is needed to find its operations (GraphQL specification,
//! section 2.3): names at the outermost level, between strings, comments and brackets.

use super::flaw::OperationFlaw;

/// The name of the operation of `document` that is executed, where the request says `named`;
/// `None`: it has no name. Without a document (a persisted query) it is the name that the request
/// says; if it says none, the persisted document decides, which only the server knows.
pub(super) fn operation<'t>(
    document: Option<&'t [u8]>,
    named: Option<&'t [u8]>,
) -> Result<Option<&'t [u8]>, OperationFlaw> {
    let Some(document) = document else {
        return named.map(Some).ok_or(OperationFlaw::Unsaid);
    };
    let mut operations = Operations::new(document);
    let mut only = None;
    let mut count = 0;
    let mut is_there = false;
    while let Some(operation) = operations.next()? {
        count += 1;
        only = operation;
        is_there |= operation.is_some() && operation == named;
    }
    match (named, count) {
        (Some(name), _) if is_there => Ok(Some(name)),
        (None, 1) => Ok(only),
        (_, 0) => Err(OperationFlaw::Absent),
        (None, _) => Err(OperationFlaw::Several),
        (Some(_), _) => Err(OperationFlaw::Unknown),
    }
}

struct Operations<'t> {
    rest: &'t [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Name(&'t [u8]),
    Open,
    Close,
    Brace,
    /// `@`, the beginning of a directive.
    At,
    Other,
}

impl<'t> Operations<'t> {
    const fn new(rest: &'t [u8]) -> Self {
        Self { rest }
    }

    /// The name of the next operation, if it has one.
    fn next(&mut self) -> Result<Option<Option<&'t [u8]>>, OperationFlaw> {
        loop {
            match self.token()? {
                None => return Ok(None),
                Some(Token::Brace) => {
                    self.skip(1)?;
                    return Ok(Some(None));
                }
                Some(Token::Name(b"query" | b"mutation" | b"subscription")) => {
                    let name = match self.token()? {
                        Some(Token::Name(name)) => Some(name),
                        Some(Token::Brace) => {
                            self.skip(1)?;
                            return Ok(Some(None));
                        }
                        Some(Token::Open) => {
                            self.skip(1)?;
                            None
                        }
                        Some(Token::At) => None,
                        Some(Token::Close | Token::Other) | None => {
                            return Err(OperationFlaw::Syntax);
                        }
                    };
                    self.skip_selection()?;
                    return Ok(Some(name));
                }
                Some(Token::Name(b"fragment")) => self.skip_selection()?,
                Some(_) => return Err(OperationFlaw::Syntax),
            }
        }
    }

    /// Skips to the end of the braces that come next at this level.
    fn skip_selection(&mut self) -> Result<(), OperationFlaw> {
        loop {
            match self.token()?.ok_or(OperationFlaw::Syntax)? {
                Token::Brace => return self.skip(1),
                Token::Open => self.skip(1)?,
                Token::Close => return Err(OperationFlaw::Syntax),
                Token::Name(_) | Token::At | Token::Other => {}
            }
        }
    }

    /// Skips to the end of `depth` open brackets.
    fn skip(&mut self, mut depth: usize) -> Result<(), OperationFlaw> {
        while depth > 0 {
            match self.token()?.ok_or(OperationFlaw::Syntax)? {
                Token::Brace | Token::Open => depth += 1,
                Token::Close => depth -= 1,
                Token::Name(_) | Token::At | Token::Other => {}
            }
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Token<'t>>, OperationFlaw> {
        loop {
            let Some((&byte, after)) = self.rest.split_first() else {
                return Ok(None);
            };
            let start = std::mem::replace(&mut self.rest, after);
            return Ok(Some(match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b',' => continue,
                b'#' => {
                    let end = memchr::memchr2(b'\n', b'\r', after).unwrap_or(after.len());
                    self.rest = &after[end..];
                    if ends_elsewhere(&after[..end]) {
                        return Err(OperationFlaw::Syntax);
                    }
                    continue;
                }
                // A byte order mark is white space anywhere (section 2.1.1).
                0xEF if after.starts_with(&[0xBB, 0xBF]) => {
                    self.rest = &after[2..];
                    continue;
                }
                b'{' => Token::Brace,
                b'(' | b'[' => Token::Open,
                b'}' | b')' | b']' => Token::Close,
                b'"' => {
                    self.string(after)?;
                    Token::Other
                }
                b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                    let is_end = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_');
                    let end = start.iter().position(is_end).unwrap_or(start.len());
                    let (name, rest) = start.split_at(end);
                    self.rest = rest;
                    Token::Name(name)
                }
                b'@' => Token::At,
                b'!' | b'$' | b'&' | b'.' | b':' | b'=' | b'|' => Token::Other,
                b'-' | b'+' | b'0'..=b'9' => Token::Other,
                // Some servers may skip what the grammar does not have.
                _ => return Err(OperationFlaw::Syntax),
            }));
        }
    }

    /// Skips a string or a block string; `after`: the bytes after the first quote.
    fn string(&mut self, after: &'t [u8]) -> Result<(), OperationFlaw> {
        let block = after.strip_prefix(b"\"\"");
        let mut rest = block.unwrap_or(after);
        loop {
            let end = memchr::memchr3(b'"', b'\\', b'\n', rest).ok_or(OperationFlaw::Syntax)?;
            rest = &rest[end..];
            rest = match (rest, block) {
                ([b'\\', b'"', b'"', b'"', after @ ..], Some(_)) => after,
                ([b'"', b'"', b'"', after @ ..], Some(_)) | ([b'"', after @ ..], None) => {
                    self.rest = after;
                    return Ok(());
                }
                ([_, after @ ..], Some(_)) | ([b'\\', _, after @ ..], None) => after,
                _ => return Err(OperationFlaw::Syntax),
            };
        }
    }
}

/// Whether a comment has a line end of the first edition of the specification, which later ones do
/// not have: what follows is then a document to some servers.
fn ends_elsewhere(comment: &[u8]) -> bool {
    let is_end = |three: &[u8]| matches!(three, [0xE2, 0x80, 0xA8 | 0xA9]);
    comment.windows(3).any(is_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'t>(
        document: &'t str,
        name: Option<&'t str>,
    ) -> Result<Option<&'t str>, OperationFlaw> {
        operation(Some(document.as_bytes()), name.map(str::as_bytes))
            .map(|name| name.map(|name| std::str::from_utf8(name).expect("ASCII")))
    }

    #[test]
    fn graphql_operation_is_the_one_that_is_executed() {
        assert_eq!(named("query A { a }", None), Ok(Some("A")));
        assert_eq!(named("{ a { b } }", None), Ok(None));
        assert_eq!(named("query { a }", None), Ok(None));
        assert_eq!(
            named("query ($x: [Int!] = [1]) @d(a: {b: 1}) { a }", None),
            Ok(None)
        );
        let two = "# query C { c }\nquery A($x: Int) { a(s: \"} query D {\") }\nfragment F on T { query mutation }\nmutation B @d { b(s: \"\"\"{ \\\"\"\" \"x\" \"\"\") }";
        assert_eq!(named(two, Some("B")), Ok(Some("B")));
        assert_eq!(named(two, Some("A")), Ok(Some("A")));
        assert_eq!(named(two, None), Err(OperationFlaw::Several));
        for wrong in ["C", "D", "F"] {
            let found = named(two, Some(wrong));
            assert_eq!(found, Err(OperationFlaw::Unknown), "{wrong}");
        }
        assert_eq!(operation(None, Some(b"A")), Ok(Some(&b"A"[..])));
    }

    #[test]
    fn graphql_byte_order_mark_is_ignored_wherever_it_stands() {
        for document in [
            "query \u{feff}Dear{a}",
            "\u{feff}query Dear{a}",
            "query Dear\u{feff}{a\u{feff}}\u{feff}",
            "query#x\u{feff}\n\u{feff},\u{feff}Dear{a}",
        ] {
            assert_eq!(named(document, None), Ok(Some("Dear")), "{document:?}");
        }
        assert_eq!(operation(None, None), Err(OperationFlaw::Unsaid));
    }

    #[test]
    fn graphql_character_beyond_the_grammar_is_refused() {
        for document in [
            "query \u{a0}Dear{a}",
            "query \u{b}Dear{a}",
            "query \u{c}Dear{a}",
            "query \0Dear{a}",
            "query \u{200b}Dear{a}",
            "query \u{2028}Dear{a}",
            "query 1Dear{a}",
            "query $Dear{a}",
            "query #\u{2028}Dear{a}\n Cheap{a}",
            "query #\u{2029}Dear{a}\n Cheap{a}",
            "query Cheap{a} ;",
        ] {
            let found = named(document, None);
            assert_eq!(found, Err(OperationFlaw::Syntax), "{document:?}");
        }
        let all = "query A($x: [Int!] = [-1.5e+3, 2] @d) @e { ...F a(s: \"\u{a0}%\", t: $x) @f # \u{e4}\n }";
        assert_eq!(named(all, None), Ok(Some("A")));
    }

    #[test]
    fn graphql_document_that_is_not_clear_is_refused() {
        for document in [
            "}",
            "query A",
            "query A {",
            "query A { \" }",
            "type T { a: Int }",
            "{ a } x",
            "query A { \"\"\" }",
            "{ a(s: \"\\",
        ] {
            let found = named(document, None);
            assert_eq!(found, Err(OperationFlaw::Syntax), "{document}");
        }
        for document in ["", "# nothing", "fragment F on T { a }"] {
            assert_eq!(named(document, None), Err(OperationFlaw::Absent));
            assert_eq!(named(document, Some("F")), Err(OperationFlaw::Absent));
        }
        let two = "query A { a } { b }";
        assert_eq!(named(two, None), Err(OperationFlaw::Several));
        let one = "query A { a }";
        assert_eq!(named(one, Some("B")), Err(OperationFlaw::Unknown));
    }
}
