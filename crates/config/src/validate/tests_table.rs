//! `[[tests]]`: what is sent, as whom, when, and what must come out.

use std::net::IpAddr;

use http::{HeaderName, Method, StatusCode, Uri};

use super::{Context, costs, list_of, names_of};
use crate::problem::{Problem, nearest, suggestion};
use crate::quantity::{Flaw, duration};
use crate::raw::{RawExpect, RawFile, RawTest};
use crate::settings::{Expect, Sent, TestCaller, TestCase};
use crate::source::At;
use tollgate_limit::{Micros, Timestamp};
use tollgate_policy::identity::Identity;
use tollgate_policy::method::is_in_capitals;

/// Compiles `[[tests]]`. `identities`: compiled, by index.
pub(crate) fn tests(
    raw: &RawFile,
    identities: &[Identity],
    context: &mut Context<'_>,
) -> Vec<TestCase> {
    list_of(&raw.tests)
        .iter()
        .filter_map(|test| case(test, raw, identities, context))
        .collect()
}

fn case(
    raw: &At<RawTest>,
    file: &RawFile,
    identities: &[Identity],
    context: &mut Context<'_>,
) -> Option<TestCase> {
    if raw.send.is_absent() {
        let problem =
            Problem::error("a test that sends nothing").at(raw.place, "`send` is missing");
        context.push(problem.help("send = \"21 x POST /v1/search/a as tenant:acme at 0s\""));
    }
    if raw.expect.is_absent() {
        let problem =
            Problem::error("a test that expects nothing").at(raw.place, "`expect` is missing");
        context.push(problem.help("expect = { allowed = 20, refused = 1 }"));
    }
    let mut headers = Vec::new();
    for (name, value) in raw
        .headers
        .get()
        .map_or(&[][..], |headers| headers.entries.as_slice())
    {
        let name: Option<HeaderName> = costs::header_name_of(&name.value, name.place, context);
        let value = super::responses::header_value(value, context);
        headers.extend(name.zip(value));
    }
    let send = raw.send.get()?;
    let expect = raw.expect.get()?;
    let mut sent = Vec::new();
    for text in &send.list {
        let read = parse(text.as_str()).and_then(|mut sent| {
            sent.caller = sent
                .caller
                .map(|caller| known(caller, text.as_str(), file, identities))
                .transpose()?;
            Ok(sent)
        });
        match read {
            Ok(one) => sent.push(one),
            Err(flaw) => context.flaw(flaw, text),
        }
    }
    if sent.len() < send.list.len() || sent.is_empty() {
        return None;
    }
    if sent.windows(2).any(|pair| pair[1].at < pair[0].at) {
        let problem = Problem::error("a test that goes back in time")
            .at(send.place, "later entries must not be earlier");
        context.push(problem);
    }
    let start = start(raw, context);
    let expect = self::expect(expect, &sent, file, context);
    let name = raw.name.get().map_or_else(
        || {
            send.list
                .iter()
                .map(At::as_str)
                .collect::<Vec<_>>()
                .join("; ")
        },
        |name| name.as_str().to_owned(),
    );
    let (_, line, _) = context.sources.position(raw.place);
    Some(TestCase {
        name,
        line,
        sent,
        start,
        headers,
        expect,
    })
}

/// When a test begins.
fn start(raw: &RawTest, context: &mut Context<'_>) -> Timestamp {
    let text = raw.at().at();
    let read = text.as_str().parse::<jiff::Timestamp>().ok();
    let micros = read.and_then(|moment| u64::try_from(moment.as_microsecond()).ok());
    match micros.map(Timestamp::from_micros) {
        Some(moment) if (EARLIEST..=LATEST).contains(&moment) => return moment,
        Some(_) => {
            let problem = Problem::error("a test begins between the years 2025 and 2050");
            context.push(problem.at(
                text.place,
                "outside what calendar windows are worked out for",
            ));
        }
        None => {
            let problem = Problem::error(format!("`{}` is no moment", text.as_str()));
            context.push(problem.at(
                text.place,
                "a date and a time with its zone, like `2026-03-01T00:00:00Z`",
            ));
        }
    }
    EARLIEST
}

/// 2025-01-01T00:00:00Z.
const EARLIEST: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);
/// 2051-01-01T00:00:00Z.
const LATEST: Timestamp = Timestamp::from_micros(2_556_144_000_000_000);

fn expect(raw: &At<RawExpect>, sent: &[Sent], file: &RawFile, context: &mut Context<'_>) -> Expect {
    let expect = Expect {
        allowed: raw.allowed.get().map(|at| at.value),
        refused: raw.refused.get().map(|at| at.value),
        retry_after: raw.retry_after.get().map(|at| at.value.0),
        status: raw.status.get().and_then(|at| u16::try_from(at.value).ok()),
        limit: raw.limit.get().map(|name| name.as_str().to_owned()),
    };
    if expect == Expect::default() {
        let problem = Problem::error("a test that expects nothing").at(raw.place, "an empty table");
        context.push(problem.help("expect = { allowed = 20, refused = 1 }"));
    }
    let all: u64 = sent.iter().map(|sent| sent.count).sum();
    let counted = expect
        .allowed
        .unwrap_or(0)
        .saturating_add(expect.refused.unwrap_or(0));
    let exact = expect.allowed.is_some() && expect.refused.is_some() && expect.status.is_none();
    if counted > all || (exact && counted != all) {
        let problem = Problem::error(format!(
            "{all} requests are sent, but {counted} are expected back"
        ));
        context.push(problem.at(raw.place, "every request is allowed or refused"));
    }
    if let (Some(after), Some(0)) = (raw.retry_after.place(), expect.refused) {
        let problem = Problem::error("a wait is expected, but no refusal")
            .at(after, "only a refusal names a wait");
        context.push(problem);
    }
    if let Some(after) = raw
        .retry_after
        .get()
        .filter(|after| !after.value.0.0.is_multiple_of(1_000_000))
    {
        let problem = Problem::error("`Retry-After` is whole seconds")
            .at(after.place, "no caller is ever told this");
        context.push(problem.help("a wait is rounded up: one of 100ms is told as \"1s\""));
    }
    let names = names_of(&file.limits);
    if let Some(limit) = raw
        .limit
        .get()
        .filter(|limit| !names.contains(&limit.as_str()))
    {
        context.unknown("limit", limit.as_str(), limit.place, &names);
    }
    expect
}

/// What `as IDENTITY:CALLER` means: a known caller where callers are listed, otherwise a key.
fn known(
    caller: TestCaller,
    text: &str,
    file: &RawFile,
    identities: &[Identity],
) -> Result<TestCaller, Flaw> {
    let start = text.find(" as ").map_or(0, |at| at + 4);
    let Some(index) = identities
        .iter()
        .position(|identity| *identity.name == *caller.identity)
    else {
        let names = names_of(&file.identities);
        let flaw = Flaw::new(
            start,
            start + caller.identity.len(),
            format!("unknown identity `{}`", caller.identity),
            suggestion("identity", &caller.identity, &names),
        );
        return Err(flaw);
    };
    if let Some(callers) = &identities[index].callers {
        let callers = callers.load();
        if callers.named(&caller.name).is_none() {
            let names: Vec<&str> = callers.iter().map(|caller| &*caller.name).collect();
            let start = start + caller.identity.len() + 1;
            let title = format!(
                "`{}` is no known caller of identity `{}`",
                caller.name, caller.identity
            );
            return Err(Flaw::new(
                start,
                start + caller.name.len(),
                title,
                suggestion("caller", &caller.name, &names),
            ));
        }
    }
    Ok(TestCaller { index, ..caller })
}

/// Parses `[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS]`.
pub(crate) fn parse(text: &str) -> Result<Sent, Flaw> {
    let mut words = words(text).peekable();
    let whole = |title: String, label: &str| Flaw::new(0, text.len(), title, label).help(HELP);
    let mut count = 1;
    if let Some(&(start, word)) = words.peek()
        && word.bytes().all(|byte| byte.is_ascii_digit())
    {
        words.next();
        count = word
            .parse()
            .ok()
            .filter(|count| (1..=COUNT_MOST).contains(count))
            .ok_or_else(|| {
                Flaw::new(
                    start,
                    start + word.len(),
                    format!("a test cannot send {word} requests"),
                    format!("1 to {COUNT_MOST}"),
                )
            })?;
        match words.next() {
            Some((_, "x")) => {}
            Some((start, other)) => {
                return Err(Flaw::new(
                    start,
                    start + other.len(),
                    "a count without `x`",
                    "`x` was expected here",
                )
                .help(HELP));
            }
            None => {
                return Err(whole(
                    "a test that sends nothing".to_owned(),
                    "a count alone",
                ));
            }
        }
    }
    let Some((start, word)) = words.next() else {
        return Err(whole(
            "a test that sends nothing".to_owned(),
            "a method and a path were expected",
        ));
    };
    let method = word.parse::<Method>().ok().filter(|_| is_in_capitals(word));
    let method = method.ok_or_else(|| {
        Flaw::new(
            start,
            start + word.len(),
            format!("`{word}` is no method"),
            "a method in capitals was expected here",
        )
        .help(HELP)
    })?;
    let Some((start, target)) = words.next() else {
        return Err(whole(
            "a test without a path".to_owned(),
            "a path was expected after the method",
        ));
    };
    let slash = target.find('/').ok_or_else(|| {
        Flaw::new(
            start,
            start + target.len(),
            format!("`{target}` is no path"),
            "a path begins with `/`",
        )
        .help(HELP)
    })?;
    let (host, path) = target.split_at(slash);
    let uri: Uri = path.parse().map_err(|_| {
        Flaw::new(
            start + slash,
            start + target.len(),
            format!("`{path}` is no path"),
            "a character that cannot stand in a URL",
        )
    })?;
    let mut sent = Sent {
        count,
        method,
        host: (!host.is_empty()).then(|| host.to_owned()),
        uri,
        caller: None,
        from: None,
        at: Micros::ZERO,
        every: Micros::ZERO,
        lasting: Micros::ZERO,
        answered: StatusCode::OK,
    };
    while let Some((start, word)) = words.next() {
        let Some((value_start, value)) = words.next() else {
            return Err(Flaw::new(
                start,
                text.len(),
                format!("`{word}` at the end"),
                "something is missing after it",
            )
            .help(HELP));
        };
        let end = value_start + value.len();
        match word {
            "at" => sent.at = duration(value).map_err(|flaw| flaw.shifted(value_start))?,
            "every" => sent.every = duration(value).map_err(|flaw| flaw.shifted(value_start))?,
            "for" => sent.lasting = duration(value).map_err(|flaw| flaw.shifted(value_start))?,
            "answered" => {
                let status = value
                    .parse::<u16>()
                    .ok()
                    .filter(|status| (200..=599).contains(status) && value.len() == 3);
                let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                sent.answered = status.ok_or_else(|| {
                    let label = "a status from 200 to 599 was expected here";
                    Flaw::new(
                        value_start,
                        end,
                        format!("an upstream does not answer `{value}`"),
                        label,
                    )
                })?;
            }
            "from" => {
                let read = value.parse::<IpAddr>();
                sent.from = Some(read.map_err(|_| {
                    Flaw::new(
                        value_start,
                        end,
                        format!("`{value}` is no address"),
                        "an IP address was expected here",
                    )
                })?);
            }
            "as" => {
                let (identity, name) = value
                    .split_once(':')
                    .filter(|(_, name)| !name.is_empty())
                    .ok_or_else(|| {
                    Flaw::new(
                        value_start,
                        end,
                        format!("`{value}` is no caller"),
                        "an identity and a caller were expected, like `tenant:acme`",
                    )
                })?;
                sent.caller = Some(TestCaller {
                    identity: identity.to_owned(),
                    index: 0,
                    name: name.to_owned(),
                });
            }
            other => {
                let label = nearest(other, ["as", "from", "at", "every", "for", "answered"])
                    .map_or_else(
                        || {
                            "`as`, `from`, `at`, `every`, `for` or `answered` was expected here"
                                .to_owned()
                        },
                        |near| format!("did you mean `{near}`?"),
                    );
                return Err(Flaw::new(
                    start,
                    start + other.len(),
                    format!("`{other}` means nothing here"),
                    label,
                )
                .help(HELP));
            }
        }
    }
    Ok(sent)
}

/// Words with the byte each begins at.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split(' ')
        .scan(0, |at, word| {
            let start = *at;
            *at += word.len() + 1;
            Some((start, word))
        })
        .filter(|(_, word)| !word.is_empty())
}

const HELP: &str = "[N x] METHOD [HOST]/PATH [as IDENTITY:CALLER] [from ADDRESS] [at TIME] [every TIME] [for TIME] [answered STATUS], like \"21 x POST /v1/search/a as tenant:acme at 0s\"";

/// A test must end.
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
    fn what_cannot_be_sent_is_pointed_at() {
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
