//! A router's rule as patterns of routes: `Host`, `Path`, `PathPrefix`, `Method` and `Headers` joined by `&&` and `||`.

use crate::compare::Takes;
use crate::draft::methods;

#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) text: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) takes: Takes,
}

const MOST: usize = 200;

#[derive(Clone, Debug, Default)]
struct Parts {
    hosts: Vec<String>,
    paths: Vec<(String, bool)>,
    methods: Vec<String>,
    headers: Vec<(String, String)>,
}

pub(super) fn patterns(rule: &str) -> Result<Vec<Pattern>, String> {
    if rule.len() > 10_000 {
        return Err("the rule is too long".to_owned());
    }
    let mut all = Vec::new();
    for alternative in split(rule, "||")? {
        let mut parts = Parts::default();
        let alternative = alternative.trim();
        // One pair of parentheses around an alternative says nothing.
        let inner = alternative
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'));
        for matcher in split(inner.unwrap_or(alternative), "&&")? {
            parts.read(matcher.trim())?;
        }
        parts.patterns(&mut all);
        if all.len() > MOST {
            return Err("the rule has too many alternatives".to_owned());
        }
    }
    Ok(all)
}

/// Splits at an operator that is in no quotes and no parentheses.
fn split<'t>(text: &'t str, operator: &str) -> Result<Vec<&'t str>, String> {
    let mut pieces = Vec::new();
    let (mut depth, mut quote, mut from, mut skip) = (0_i32, None, 0, 0);
    for (at, letter) in text.char_indices() {
        if at < skip {
            continue;
        }
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '`' | '"' | '\'') => quote = Some(letter),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) if depth == 0 && text[at..].starts_with(operator) => {
                pieces.push(&text[from..at]);
                from = at + operator.len();
                skip = from;
            }
            _ => {}
        }
    }
    if depth != 0 || quote.is_some() {
        return Err("the rule has an open quote or parenthesis".to_owned());
    }
    pieces.push(&text[from..]);
    Ok(pieces)
}

impl Parts {
    fn read(&mut self, matcher: &str) -> Result<(), String> {
        let no = || format!("a route has no `{matcher}`");
        let (kind, rest) = matcher.split_once('(').ok_or_else(no)?;
        let inside = rest.strip_suffix(')').ok_or_else(no)?;
        let list = split(inside, ",")?.into_iter();
        let list = list.map(|text| text.trim().trim_matches(['`', '"', '\'']).to_owned());
        match kind.trim() {
            "Host" if self.hosts.is_empty() => self.hosts.extend(list),
            "Path" if self.paths.is_empty() => self.paths.extend(list.map(|path| (path, false))),
            "PathPrefix" if self.paths.is_empty() => {
                self.paths.extend(list.map(|path| (path, true)))
            }
            "Method" if self.methods.is_empty() => self.methods.extend(list),
            "Header" | "Headers" => match &list.collect::<Vec<_>>()[..] {
                [name, value] => self
                    .headers
                    .push((name.to_ascii_lowercase(), value.clone())),
                _ => return Err(no()),
            },
            _ => return Err(no()),
        }
        Ok(())
    }

    fn patterns(mut self, all: &mut Vec<Pattern>) {
        let methods = methods(&self.methods);
        if self.hosts.is_empty() {
            self.hosts.push(String::new());
        }
        if self.paths.is_empty() {
            self.paths.push(("/".to_owned(), true));
        }
        for host in self.hosts.iter().take(MOST) {
            for (path, is_prefix) in self.paths.iter().take(MOST) {
                if all.len() > MOST {
                    return;
                }
                let front = path.trim_end_matches('/');
                let takes = match is_prefix {
                    true => Takes::Prefix(path.clone()),
                    false => Takes::Exact(path.clone()),
                };
                let (path, below) = if *is_prefix {
                    (front, "/**")
                } else {
                    (&**path, "")
                };
                all.push(Pattern {
                    text: format!("{methods}{host}{path}{below}"),
                    headers: self.headers.clone(),
                    takes,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rule: &str) -> Result<Vec<String>, String> {
        Ok(patterns(rule)?
            .into_iter()
            .map(|pattern| pattern.text)
            .collect())
    }

    #[test]
    fn traefik_rules_become_patterns() {
        let same = |rule, wanted: &[&str]| assert_eq!(texts(rule).expect(rule), wanted);
        same("Host(`a.example`)", &["a.example/**"]);
        same(
            "Host(`a.example`) && PathPrefix(`/v1`)",
            &["a.example/v1/**"],
        );
        same("Host(`a`, `b`) || Path(`/x`)", &["a/**", "b/**", "/x"]);
        same("(Host(`a`) && Method(`GET`))", &["GET a/**"]);
        for bad in [
            "HostRegexp(`.*`)",
            "!Host(`a`)",
            "Host(`a`",
            "",
            "(Host(`a`) || Path(`/b`)) && Method(`GET`)",
        ] {
            assert!(texts(bad).is_err(), "{bad}");
        }
    }
}
