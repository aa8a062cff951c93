//! `[responses]`, refusal bodies, fixed responses and redirects.

use http::HeaderValue;

use super::Context;
use crate::problem::{Problem, suggestion};
use crate::raw::{RawDialect, RawRefusal, RawReset, RawResponses};
use crate::reader::Field;
use crate::scalar::Text;
use crate::source::At;
use tollgate_policy::{Dialect, REFUSAL_PLACEHOLDERS, RefusalBody, Reset, Responses};

/// `[responses]`.
pub(crate) fn responses(field: &Field<RawResponses>, context: &mut Context<'_>) -> Responses {
    let raw = field.or(RawResponses::default());
    let mut headers: Vec<Dialect> = Vec::new();
    let dialects = raw.headers().at();
    for at in &dialects.list {
        let dialect = match at.value {
            RawDialect::Draft11 | RawDialect::Draft11Named => Dialect::Draft11,
            RawDialect::DraftNext => Dialect::DraftNext,
            RawDialect::Draft07 => Dialect::Draft07,
            RawDialect::Draft06 => Dialect::Draft06,
            RawDialect::XRateLimit => Dialect::XRateLimit,
            RawDialect::Off if dialects.list.len() == 1 => break,
            RawDialect::Off => {
                let problem = Problem::error("\"off\" beside other dialects");
                context.push(problem.at(at.place, "either, or"));
                continue;
            }
        };
        headers.push(dialect);
    }
    check_names(&dialects, &headers, context);
    let legacy = headers
        .iter()
        .any(|dialect| matches!(dialect, Dialect::XRateLimit | Dialect::Draft06));
    if let (Some(place), false) = (raw.reset.place(), legacy) {
        let problem = Problem::warning("`reset` means nothing to the dialects that are sent")
            .at(place, "for legacy fields");
        context.push(problem.help("add \"x-ratelimit\" to `headers`"));
    }
    Responses {
        headers,
        reset: match raw.reset().value {
            RawReset::Seconds => Reset::Seconds,
            RawReset::Epoch => Reset::Epoch,
            RawReset::EpochMillis => Reset::EpochMillis,
        },
        body: refusal(&raw.refusal, context),
    }
}

/// Two dialects that write the same header contradict each other.
fn check_names(
    list: &At<crate::scalar::OneOrMany<RawDialect>>,
    headers: &[Dialect],
    context: &mut Context<'_>,
) {
    let ratelimit = |dialect: &&Dialect| {
        matches!(
            dialect,
            Dialect::Draft11 | Dialect::DraftNext | Dialect::Draft07
        )
    };
    let mut clash = headers.iter().filter(ratelimit).count() > 1;
    clash |= (1..headers.len()).any(|at| headers[..at].contains(&headers[at]));
    if clash {
        let problem = Problem::error("two dialects that write the same field")
            .at(list.place, "one `RateLimit` field can have one form only");
        context.push(problem.help("`ratelimit` (draft-11), `draft-next` and `draft-07` exclude one another; `draft-06` and `x-ratelimit` go with any"));
    }
}

/// A refusal body, of the file or of a route.
pub(crate) fn refusal(field: &Field<RawRefusal>, context: &mut Context<'_>) -> Option<RefusalBody> {
    let raw = field.get()?;
    if raw.content_type.is_absent() {
        let problem = Problem::error("a refusal body needs a content type")
            .at(raw.place, "`content_type` is missing");
        context.push(problem.help("content_type = \"text/plain; charset=utf-8\""));
    }
    let template = match (raw.body.get(), raw.body_file.get()) {
        (Some(body), Some(file)) => {
            context.push(
                Problem::error("`body` and `body_file` are both written")
                    .at(file.place, "one of them must go")
                    .at(body.place, "the other"),
            );
            return None;
        }
        (Some(body), None) => body.as_str().to_owned(),
        (None, Some(file)) => context.content(file, "the body is read from here")?,
        (None, None) => {
            if raw.body.is_absent() && raw.body_file.is_absent() {
                context.push(
                    Problem::error("a refusal without a body").at(raw.place, "`body` is missing"),
                );
            }
            return None;
        }
    };
    let place = raw
        .body
        .place()
        .or(raw.body_file.place())
        .unwrap_or(raw.place);
    for name in placeholders(&template).filter(|name| !REFUSAL_PLACEHOLDERS.contains(name)) {
        let problem = Problem::error(format!("`{{{name}}}` is no placeholder of a refusal body"));
        context.push(problem.at(
            place,
            suggestion("placeholder", name, &REFUSAL_PLACEHOLDERS),
        ));
    }
    Some(RefusalBody {
        content_type: header_value(raw.content_type.get()?, context)?,
        template,
    })
}

/// The words in braces. Other text in braces (`{"a": 1}`, `{}`) is no placeholder.
fn placeholders(template: &str) -> impl Iterator<Item = &str> {
    let word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    template
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name)
        .filter(move |name| word(name))
}

/// A header's value.
pub(crate) fn header_value(text: &At<Text>, context: &mut Context<'_>) -> Option<HeaderValue> {
    let read = HeaderValue::from_str(text.as_str()).ok();
    if read.is_none() {
        let problem = Problem::error(format!("{:?} cannot be a header's value", text.as_str()));
        context.push(problem.at(text.place, "printable ASCII was expected"));
    }
    read
}
