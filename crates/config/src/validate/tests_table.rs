//! `[[tests]]`: what is sent, as whom, when, and what must come out.

use super::test_line::parse;
use super::{entries_of, list_of, names_of};
use crate::raw::{RawFile, RawTest};
use crate::reading::{At, Context, Flaw, Place, suggestion};
use crate::settings::{Expect, Sent, TestCaller, TestCase};
use crate::values::messages::headers_of;
use tollgate_policy::identity::Identity;

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
    let headers = headers_of(entries_of(&raw.headers), context)
        .into_iter()
        .map(|(name, value)| (name, value.value.clone()))
        .collect();
    if !raw.body.is_absent() {
        for (name, value) in entries_of(&raw.headers) {
            let framing = ["content-length", "transfer-encoding"];
            if framing.contains(&name.value.to_ascii_lowercase().as_str()) {
                let title = format!("`{}` beside a `body`", name.value);
                let label = "the length of the request is that of its body";
                context.error(title, value.place, label);
            }
        }
    }
    let (send, expect) = (raw.send.get()?, raw.expect.get()?);
    let mut sent = Vec::new();
    for text in &send.value {
        let read = parse(text.as_str()).and_then(|sent| {
            let caller = sent
                .caller
                .map(|caller| known(caller, text.as_str(), file, identities));
            Ok(Sent {
                caller: caller.transpose()?,
                ..sent
            })
        });
        match read {
            Ok(one) => sent.push(one),
            Err(flaw) => context.flaw(flaw, text),
        }
    }
    if sent.len() < send.len() || sent.is_empty() {
        return None;
    }
    if sent.windows(2).any(|pair| pair[1].at < pair[0].at) {
        let label = "later entries must not be earlier";
        context.error("a test that goes back in time", send.place, label);
    }
    check_sums(expect, expect.place, &sent, context);
    let names = names_of(&file.limits);
    if let Some(limit) = &expect.limit
        && !names.contains(&limit.as_str())
    {
        let place = context.place_inside(expect.place, ".limit");
        context.unknown("limit", limit, place.unwrap_or(expect.place), &names);
    }
    let lines: Vec<&str> = send.iter().map(At::as_str).collect();
    let name = raw.name.get().map(|name| name.as_str().to_owned());
    let (_, line, _) = context.sources.position(raw.place);
    Some(TestCase {
        name: name.unwrap_or_else(|| lines.join("; ")),
        line,
        sent,
        start: raw.at().value,
        headers,
        body: raw.body.get().map(|body| body.as_str().to_owned()),
        expect: expect.value.clone(),
    })
}

/// Every request is allowed or refused.
fn check_sums(expect: &Expect, place: Place, sent: &[Sent], context: &mut Context<'_>) {
    let all: u64 = sent.iter().map(|sent| sent.count).sum();
    let (allowed, refused) = (expect.allowed, expect.refused);
    let counted = allowed.unwrap_or(0).saturating_add(refused.unwrap_or(0));
    let exact = allowed.is_some() && refused.is_some() && expect.status.is_none();
    if counted > all || (exact && counted != all) {
        let title = format!("{all} requests are sent, but {counted} are expected back");
        context.error(title, place, "every request is allowed or refused");
    }
}

/// What `as IDENTITY:CALLER` means: a known caller where callers are listed, otherwise a key.
fn known(
    caller: TestCaller,
    text: &str,
    file: &RawFile,
    identities: &[Identity],
) -> Result<TestCaller, Flaw> {
    let start = text.find(" as ").map_or(0, |at| at + 4);
    let (identity, name) = (&caller.identity, &caller.name);
    let Some(index) = identities
        .iter()
        .position(|known| *known.name == **identity)
    else {
        let label = suggestion("identity", identity, &names_of(&file.identities));
        let title = format!("unknown identity `{identity}`");
        return Err(Flaw::new(start, start + identity.len(), title, label));
    };
    if let Some(callers) = &identities[index].callers {
        let callers = callers.load();
        if callers.named(name).is_none() {
            let names: Vec<&str> = callers.names().collect();
            let start = start + identity.len() + 1;
            let title = format!("`{name}` is no known caller of identity `{identity}`");
            let label = suggestion("caller", name, &names);
            return Err(Flaw::new(start, start + name.len(), title, label));
        }
    }
    Ok(TestCaller { index, ..caller })
}
