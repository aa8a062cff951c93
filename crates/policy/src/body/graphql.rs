//! The name of the operation that a GraphQL request executes.
//!
//! Only as much of a document is read as is needed to find its operations (GraphQL specification,
//! section 2.3): names at the outermost level, between strings, comments and brackets.

/// It is not clear which operation is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unclear;

/// The name of the operation of `document` that is executed, where the request says `named`;
/// `None`: it has no name. Without a document (a persisted query) it is the name that the request
/// says.
pub(super) fn operation<'t>(
    document: Option<&'t [u8]>,
    named: Option<&'t [u8]>,
) -> Result<Option<&'t [u8]>, Unclear> {
    let Some(document) = document else {
        return Ok(named);
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
    match named {
        Some(name) if is_there => Ok(Some(name)),
        None if count == 1 => Ok(only),
        _ => Err(Unclear),
    }
}

/// Iterates over the operations of a document.
struct Operations<'t> {
    rest: &'t [u8],
}

/// A token, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Name(&'t [u8]),
    Open,
    Close,
    Brace,
    Other,
}

impl<'t> Operations<'t> {
    const fn new(rest: &'t [u8]) -> Self {
        Self { rest }
    }

    /// The name of the next operation, if it has one.
    fn next(&mut self) -> Result<Option<Option<&'t [u8]>>, Unclear> {
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
                        Some(Token::Other) => None,
                        Some(Token::Close) | None => return Err(Unclear),
                    };
                    self.skip_selection()?;
                    return Ok(Some(name));
                }
                Some(Token::Name(b"fragment")) => self.skip_selection()?,
                Some(_) => return Err(Unclear),
            }
        }
    }

    /// Skips to the end of the braces that come next at this level.
    fn skip_selection(&mut self) -> Result<(), Unclear> {
        loop {
            match self.token()?.ok_or(Unclear)? {
                Token::Brace => return self.skip(1),
                Token::Open => self.skip(1)?,
                Token::Close => return Err(Unclear),
                Token::Name(_) | Token::Other => {}
            }
        }
    }

    /// Skips to the end of `depth` open brackets.
    fn skip(&mut self, mut depth: usize) -> Result<(), Unclear> {
        while depth > 0 {
            match self.token()?.ok_or(Unclear)? {
                Token::Brace | Token::Open => depth += 1,
                Token::Close => depth -= 1,
                Token::Name(_) | Token::Other => {}
            }
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Token<'t>>, Unclear> {
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
                _ => Token::Other,
            }));
        }
    }

    /// Skips a string or a block string; `after`: the bytes after the first quote.
    fn string(&mut self, after: &'t [u8]) -> Result<(), Unclear> {
        let block = after.strip_prefix(b"\"\"");
        let mut rest = block.unwrap_or(after);
        loop {
            let end = memchr::memchr3(b'"', b'\\', b'\n', rest).ok_or(Unclear)?;
            rest = &rest[end..];
            rest = match (rest, block) {
                ([b'\\', b'"', b'"', b'"', after @ ..], Some(_)) => after,
                ([b'"', b'"', b'"', after @ ..], Some(_)) | ([b'"', after @ ..], None) => {
                    self.rest = after;
                    return Ok(());
                }
                ([_, after @ ..], Some(_)) | ([b'\\', _, after @ ..], None) => after,
                _ => return Err(Unclear),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'t>(document: &'t str, name: Option<&'t str>) -> Result<Option<&'t str>, Unclear> {
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
        for wrong in [None, Some("C"), Some("D"), Some("F")] {
            assert_eq!(named(two, wrong), Err(Unclear), "{wrong:?}");
        }
        assert_eq!(operation(None, Some(b"A")), Ok(Some(&b"A"[..])));
        assert_eq!(operation(None, None), Ok(None));
    }

    #[test]
    fn graphql_document_that_is_not_clear_is_refused() {
        for document in [
            "",
            "}",
            "query A",
            "query A {",
            "query A { \" }",
            "type T { a: Int }",
            "{ a } x",
            "query A { \"\"\" }",
            "{ a(s: \"\\",
            "fragment F on T { a }",
            "query A { a } { b }",
        ] {
            assert_eq!(named(document, None), Err(Unclear), "{document}");
        }
        assert_eq!(named("query A { a }", Some("B")), Err(Unclear));
    }
}
