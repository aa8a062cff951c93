//! Replaces `${VAR}` in strings of the file. The environment is passed in as a function.

use super::problem::Flaw;
use super::text::Text;

pub type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EnvError {
    /// The variable that is not set, if that is the mistake.
    pub(crate) unset: Option<String>,
    pub(crate) flaw: Flaw,
}

/// Replaces every `${VAR}`, `${VAR:-default}` and `${VAR:?message}`; `$${` stands for `${`.
///
/// An empty variable counts as set for `${VAR}` and as unset for the other two forms, as in a shell.
pub(crate) fn interpolate(text: &str, env: Env<'_>) -> Result<Text, Vec<EnvError>> {
    let mut read = Text::default();
    let out = &mut read.value;
    let mut errors = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find("${") {
        let start = at + found;
        if text[at..start].ends_with('$') {
            out.push_str(&text[at..start - 1]);
            out.push_str("${");
            at = start + 2;
            continue;
        }
        out.push_str(&text[at..start]);
        let Some(length) = text[start..].find('}') else {
            let label = "the name of a variable and `}` are missing";
            let flaw = Flaw::new(start, text.len(), "a `${` that is never closed", label)
                .help("write `$${` for the two characters themselves");
            errors.push(EnvError { unset: None, flaw });
            return Err(errors);
        };
        let end = start + length + 1;
        let inner = &text[start + 2..end - 1];
        let default = inner.split_once(":-");
        read.has_default |= default.is_some_and(|(_, default)| !default.is_empty());
        match variable(inner, env) {
            Ok((value, is_default)) => {
                if !is_default {
                    let length = out.len();
                    read.from_environment.push(length..length + value.len());
                }
                out.push_str(&value);
            }
            Err(error) => errors.push(EnvError {
                flaw: error.flaw.shifted(start),
                ..error
            }),
        }
        at = end;
    }
    out.push_str(&text[at..]);
    if errors.is_empty() {
        Ok(read)
    } else {
        Err(errors)
    }
}

/// The value of one `${…}`, and whether it is the default.
fn variable(inner: &str, env: Env<'_>) -> Result<(String, bool), EnvError> {
    let (name, otherwise) = match inner.find(":-").into_iter().chain(inner.find(":?")).min() {
        Some(at) => (&inner[..at], Some((&inner[at..at + 2], &inner[at + 2..]))),
        None => (inner, None),
    };
    let error = |unset: bool, title: String, label: &str| EnvError {
        unset: unset.then(|| name.to_owned()),
        flaw: Flaw::new(0, inner.len() + 3, title, label),
    };
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !letters {
        let title = format!("`{name}` is not the name of an environment variable");
        let error = error(false, title, "letters, digits and `_` are");
        let flaw = error.flaw.help("`${VAR}`, `${VAR:-default}` and `${VAR:?message}` are known; placeholders of the request are written `{name}`, without `$`");
        return Err(EnvError { flaw, ..error });
    }
    let unset = format!("the environment variable `{name}` is not set");
    match (env(name), otherwise) {
        (Some(value), None) => Ok((value, false)),
        (Some(value), Some(_)) if !value.is_empty() => Ok((value, false)),
        (_, Some((":-", default))) => Ok((default.to_owned(), true)),
        (_, Some((_, ""))) => {
            let title = format!("{unset}: it must be set");
            Err(error(true, title, "required here"))
        }
        (_, Some((_, message))) => Err(error(true, format!("{unset}: {message}"), "required here")),
        (None, None) => {
            let error = error(true, unset, "read here");
            let help = format!("set it, or give a default: `${{{name}:-…}}`");
            let flaw = error.flaw.help(help);
            Err(EnvError { flaw, ..error })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<String, Vec<EnvError>> {
        interpolate(text, &|name| match name {
            "HOST" => Some("db".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
        .map(|text| text.value)
    }

    #[test]
    fn env_variables_are_replaced_everywhere() {
        assert_eq!(
            with("redis://${HOST}:${PORT:-6379}/0").as_deref(),
            Ok("redis://db:6379/0")
        );
        assert_eq!(with("${EMPTY}|${EMPTY:-x}").as_deref(), Ok("|x"));
        assert_eq!(with("$${HOST} ${HOST} $5").as_deref(), Ok("${HOST} db $5"));
    }

    #[test]
    fn every_unset_variable_is_reported_with_its_place() {
        let errors = with("a${ONE}b${TWO:?set TWO, please}").expect_err("neither is set");
        assert_eq!((errors[0].flaw.start, errors[0].flaw.end), (1, 7));
        assert!(
            errors[1].flaw.title.contains("set TWO, please"),
            "{}",
            errors[1].flaw.title
        );
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn an_open_brace_is_an_error_not_a_literal() {
        assert_eq!(with("${HOST").expect_err("never closed")[0].flaw.start, 0);
        assert!(with("${1A}").is_err());
        assert!(with("${}").is_err());
    }
}
