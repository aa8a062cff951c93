pub(super) enum Token {
    Word(String),
    End,
    Open,
    Close,
}

pub(super) struct Lexer<'t> {
    pub(super) rest: &'t str,
    pub(super) line: usize,
}

impl Lexer<'_> {
    fn step(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        self.line += usize::from(letter == '\n');
        Some(letter)
    }

    /// The next token with its line. The mistake with its line.
    pub(super) fn next(&mut self) -> Result<Option<(Token, usize)>, (&'static str, usize)> {
        loop {
            let line = self.line;
            let Some(letter) = self.rest.chars().next() else {
                return Ok(None);
            };
            let token = match letter {
                _ if letter.is_whitespace() || letter == '\u{feff}' => {
                    self.step();
                    continue;
                }
                '#' => {
                    while self
                        .rest
                        .chars()
                        .next()
                        .is_some_and(|letter| letter != '\n')
                    {
                        self.step();
                    }
                    continue;
                }
                ';' => Token::End,
                '{' => Token::Open,
                '}' => Token::Close,
                '"' | '\'' => {
                    self.step();
                    return Ok(Some((Token::Word(self.quoted(letter, line)?), line)));
                }
                _ => return Ok(Some((Token::Word(self.bare()), line))),
            };
            self.step();
            return Ok(Some((token, line)));
        }
    }

    fn quoted(&mut self, quote: char, line: usize) -> Result<String, (&'static str, usize)> {
        let mut word = String::new();
        while let Some(letter) = self.step() {
            match letter {
                _ if letter == quote => return Ok(word),
                '\\' => self.escaped(&mut word),
                _ => word.push(letter),
            }
        }
        Err(("a quote that is not closed", line))
    }

    fn bare(&mut self) -> String {
        let mut word = String::new();
        while let Some(letter) = self.rest.chars().next() {
            if letter.is_whitespace() || letter == ';' || (letter == '{' && !word.ends_with('$')) {
                break;
            }
            self.step();
            match letter {
                '\\' => self.escaped(&mut word),
                // `${name}` is a variable and no block.
                '{' => {
                    word.push('{');
                    while let Some(letter) = self.step() {
                        word.push(letter);
                        if letter == '}' || letter == '\n' {
                            break;
                        }
                    }
                }
                _ => word.push(letter),
            }
        }
        word
    }

    /// Before quotes and blanks a backslash goes; elsewhere it is a part of an expression and stays.
    fn escaped(&mut self, word: &mut String) {
        match self.step() {
            Some('t') => word.push('\t'),
            Some('n') => word.push('\n'),
            Some('r') => word.push('\r'),
            Some(letter @ ('"' | '\'' | '\\' | ' ' | ';' | '{' | '}')) => word.push(letter),
            Some(letter) => word.extend(['\\', letter]),
            None => word.push('\\'),
        }
    }

    /// Passes over a block of another language up to the brace that closes it, and returns its text.
    pub(super) fn skip_block(&mut self) -> Result<&str, &'static str> {
        let text = self.rest;
        let mut depth = 1_usize;
        while let Some(letter) = self.step() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(&text[..text.len() - self.rest.len() - 1]);
            }
        }
        Err("the block of Lua is not closed")
    }
}
