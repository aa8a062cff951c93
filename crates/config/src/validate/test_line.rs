//! One line of a test: `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME]
//! [every TIME] [for TIME] [answered STATUS]`.

use std::net::IpAddr;

use http::{Method, StatusCode, Uri};

use crate::reading::{Flaw, near_or};
use crate::settings::{Sent, TestCaller};
use crate::values::quantity::duration;
use tollgate_limit::Micros;
use tollgate_policy::routes::method::is_in_capitals;

/// A word of the line, and the byte it begins at.
#[derive(Clone, Copy)]
struct Word<'t> {
    start: usize,
    text: &'t str,
}

impl Word<'_> {
    fn wrong(self, title: String, label: impl Into<String>) -> Flaw {
        Flaw::new(self.start, self.start + self.text.len(), title, label)
    }

    /// The word as a `T`, or why it is none.
    fn read<T: std::str::FromStr>(self, what: &str, label: &str) -> Result<T, Flaw> {
        let read = self.text.parse();
        read.map_err(|_| self.wrong(format!("`{}` is no {what}", self.text), label))
    }

    fn duration(self) -> Result<Micros, Flaw> {
        duration(self.text).map_err(|flaw| flaw.shifted(self.start))
    }
}

pub(crate) fn parse(text: &str) -> Result<Sent, Flaw> {
    let mut words = words(text).peekable();
    let whole = |title: &str, label: &str| Flaw::new(0, text.len(), title, label).help(HELP);
    let mut count = 1;
    if let Some(&word) = words.peek()
        && word.text.bytes().all(|byte| byte.is_ascii_digit())
    {
        words.next();
        let number = word.text.parse().ok();
        count = number
            .filter(|count| (1..=COUNT_MOST).contains(count))
            .ok_or_else(|| {
                let title = format!("a test cannot send {} requests", word.text);
                word.wrong(title, format!("1 to {COUNT_MOST}"))
            })?;
        match words.next() {
            Some(Word { text: "x", .. }) => {}
            Some(other) => {
                let flaw = other.wrong("a count without `x`".to_owned(), "`x` was expected here");
                return Err(flaw.help(HELP));
            }
            None => return Err(whole("a test that sends nothing", "a count alone")),
        }
    }
    let Some(word) = words.next() else {
        let label = "a method and a path were expected";
        return Err(whole("a test that sends nothing", label));
    };
    let method = word.text.parse::<Method>().ok();
    let method = method
        .filter(|_| is_in_capitals(word.text))
        .ok_or_else(|| {
            let title = format!("`{}` is no method", word.text);
            word.wrong(title, "a method in capitals was expected here")
                .help(HELP)
        })?;
    let Some(target) = words.next() else {
        let label = "a path was expected after the method";
        return Err(whole("a test without a path", label));
    };
    let slash = target.text.find('/').ok_or_else(|| {
        let title = format!("`{}` is no path", target.text);
        target.wrong(title, "a path begins with `/`").help(HELP)
    })?;
    let (host, path) = target.text.split_at(slash);
    let start = target.start + slash;
    let uri = Word { start, text: path };
    let mut sent = Sent {
        count,
        method,
        host: (!host.is_empty()).then(|| host.to_owned()),
        uri: uri.read::<Uri>("path", "a character that cannot stand in a URL")?,
        caller: None,
        from: None,
        at: Micros::ZERO,
        every: Micros::ZERO,
        lasting: Micros::ZERO,
        answered: StatusCode::OK,
    };
    while let Some(key) = words.next() {
        let Some(value) = words.next() else {
            let title = format!("`{}` at the end", key.text);
            let flaw = Flaw::new(
                key.start,
                text.len(),
                title,
                "something is missing after it",
            );
            return Err(flaw.help(HELP));
        };
        option(key, value, &mut sent)?;
    }
    Ok(sent)
}

fn option(key: Word<'_>, value: Word<'_>, sent: &mut Sent) -> Result<(), Flaw> {
    match key.text {
        "at" => sent.at = value.duration()?,
        "every" => sent.every = value.duration()?,
        "for" => sent.lasting = value.duration()?,
        "answered" => {
            let status = value.text.parse::<u16>().ok();
            let status =
                status.filter(|status| (200..=599).contains(status) && value.text.len() == 3);
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            sent.answered = status.ok_or_else(|| {
                let title = format!("`{}` is no status of a response", value.text);
                value.wrong(title, "a status from 200 to 599 was expected here")
            })?;
        }
        "from" => {
            let address = value.read::<IpAddr>("address", "an IP address was expected here")?;
            sent.from = Some(address);
        }
        "as" => {
            let named = value
                .text
                .split_once(':')
                .filter(|(_, name)| !name.is_empty());
            let (identity, name) = named.ok_or_else(|| {
                let label = "an identity and a caller were expected, like `tenant:acme`";
                value.wrong(format!("`{}` is no caller", value.text), label)
            })?;
            sent.caller = Some(TestCaller {
                identity: identity.to_owned(),
                index: 0,
                name: name.to_owned(),
            });
        }
        other => {
            let keys = ["as", "from", "at", "every", "for", "answered"];
            let otherwise = "`as`, `from`, `at`, `every`, `for` or `answered` was expected here";
            let label = near_or(other, keys, otherwise);
            let title = format!("`{other}` means nothing here");
            return Err(key.wrong(title, label).help(HELP));
        }
    }
    Ok(())
}

fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    text.split(' ')
        .scan(0, |at, text| {
            let start = *at;
            *at += text.len() + 1;
            Some(Word { start, text })
        })
        .filter(|word| !word.text.is_empty())
}

const HELP: &str = "[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS], like \"21 x POST /v1/search/a as tenant:acme at 0s\"";

const COUNT_MOST: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_test_reads_as_it_is_said() {
        let sent = parse(
            "21 x POST a.example/v1/search/a?q=1 as tenant:acme from 192.0.2.1 at 1m every 100ms for 2s answered 401",
        )
        .expect("right");
        assert_eq!(
            (sent.count, sent.method.as_str(), sent.host.as_deref()),
            (21, "POST", Some("a.example"))
        );
        assert_eq!(sent.uri, "/v1/search/a?q=1");
        assert_eq!(
            (sent.at, sent.every),
            (Micros::from_secs(60), Micros(100_000))
        );
        assert_eq!(
            (sent.lasting, sent.answered),
            (Micros::from_secs(2), StatusCode::UNAUTHORIZED)
        );
        assert_eq!(
            sent.caller.map(|caller| (caller.identity, caller.name)),
            Some(("tenant".to_owned(), "acme".to_owned()))
        );
        assert_eq!(parse("GET /").expect("right").count, 1);
    }

    #[test]
    fn test_line_invalid_is_pointed_at() {
        for (text, start, end) in [
            ("", 0, 0),
            ("21 x", 0, 4),
            ("21 POST /", 3, 7),
            ("0 x GET /", 0, 1),
            ("get /", 0, 3),
            ("GET x", 4, 5),
            ("GET / at", 6, 8),
            ("GET / at 5", 9, 10),
            ("GET / frm 1.2.3.4", 6, 9),
            ("GET / from nowhere", 11, 18),
            ("GET / as acme", 9, 13),
            ("GET / answered 101", 15, 18),
            ("GET / answered no", 15, 17),
        ] {
            let flaw = parse(text).expect_err(text);
            assert_eq!((flaw.start, flaw.end), (start, end), "{text}: {flaw:?}");
        }
    }
}
