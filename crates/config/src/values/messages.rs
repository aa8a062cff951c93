//! Parts of messages: methods, names and values of headers, bodies of refusals.

use http::{HeaderName, HeaderValue, Method};

use crate::reading::{
    At, Context, OneOrMany, Place, ShortOr, Text, forms, suggestion, table, words,
};
use tollgate_policy::routes::method::is_in_capitals;
use tollgate_policy::{Dialect, REFUSAL_PLACEHOLDERS, RefusalBody};

words! {
    /// A form of refusals that needs no text of its own.
    pub(crate) enum RawRefusalForm {
        /// JSON-RPC errors.
        JsonRpc = "json-rpc",
        /// Problem documents with `error.message`, which the clients of OpenAI, Anthropic and LiteLLM print. Unlike the other forms also for
        /// what is refused for another reason than a limit: 400, 401, 404, 413.
        OpenAi = "openai",
    }
}

table! {
    /// A refusal body in place of problem+json.
    RawRefusal {
        /// The body; placeholders of the refusal such as `{limits}` and `{retry_after}` are filled in.
        body: Text => "{\"error\": \"slow down\", \"retry_after\": {retry_after}}",
        /// A file that holds the body, in place of `body`.
        body_file: Text => "refusal.html",
        /// Its content type.
        @required("content_type = \"text/plain; charset=utf-8\"") content_type: HeaderText => "application/json",
    }
}

words! {
    /// A dialect of quota headers.
    pub(crate) enum RawDialect {
        /// `RateLimit` and `RateLimit-Policy`, the IETF draft (revision 11).
        Draft11 = "ratelimit",
        /// The same, under the name of its revision.
        Draft11Named = "draft-11",
        /// The names of the draft's next revision.
        DraftNext = "draft-next",
        /// One `RateLimit` header as `limit=, remaining=, reset=`.
        Draft07 = "draft-07",
        /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
        Draft06 = "draft-06",
        /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
        XRateLimit = "x-ratelimit",
        /// None.
        Off = "off",
    }
}

forms! {
    HeaderText -> HeaderValue = header_value;
    HeaderNameText -> HeaderName = |text, context| header_name_of(text.as_str(), text.place, context);
    /// The dialects of quota headers, or `off`.
    QuotaHeaders -> Vec<Dialect> as OneOrMany<RawDialect> = |list, context| Some(dialects(list, context));
    /// A refusal body, of the file or of a route.
    Refusal -> RefusalBody as ShortOr<RawRefusalForm, RawRefusal> = refusal;
    MethodText -> Method = |text, context| {
        let method = text.as_str().parse().ok();
        let method = method.filter(|_| is_in_capitals(text.as_str()));
        context.value_of(text, method, "is no method", "methods are written in capitals, like `GET`")
    };
    /// The value that a header must have, or `*`.
    HeaderPattern -> Option<HeaderValue> = |text, context| match text.as_str() {
        "*" => Some(None),
        _ => header_value(text, context).map(Some),
    };
}

pub(crate) fn header_value(text: &At<Text>, context: &mut Context<'_>) -> Option<HeaderValue> {
    let read = HeaderValue::from_str(text.as_str()).ok();
    if read.is_none() {
        let title = format!("{:?} cannot be a header's value", text.as_str());
        context.error(title, text.place, "printable ASCII was expected");
    }
    read
}

pub(crate) fn header_name_of(
    name: &str,
    place: Place,
    context: &mut Context<'_>,
) -> Option<HeaderName> {
    let read = name.parse().ok();
    if read.is_none() {
        let label = if name.ends_with(':') {
            "a name has no colon"
        } else {
            "letters, digits and `-` were expected"
        };
        context.error(format!("`{name}` cannot be a header's name"), place, label);
    }
    read
}

/// Headers by name, in the order of the file.
pub(crate) fn headers_of<'h, T>(
    entries: &'h [(At<String>, At<T>)],
    context: &mut Context<'_>,
) -> Vec<(HeaderName, &'h At<T>)> {
    let named = entries
        .iter()
        .filter_map(|(name, value)| Some((header_name_of(name, name.place, context)?, value)));
    named.collect()
}

fn dialects(list: &At<Vec<At<RawDialect>>>, context: &mut Context<'_>) -> Vec<Dialect> {
    let mut headers = Vec::new();
    for at in &list.value {
        headers.push(match at.value {
            RawDialect::Draft11 | RawDialect::Draft11Named => Dialect::Draft11,
            RawDialect::DraftNext => Dialect::DraftNext,
            RawDialect::Draft07 => Dialect::Draft07,
            RawDialect::Draft06 => Dialect::Draft06,
            RawDialect::XRateLimit => Dialect::XRateLimit,
            RawDialect::Off if list.len() == 1 => continue,
            RawDialect::Off => {
                let label = "it cannot stand beside others";
                context.error("\"off\" beside other dialects", at.place, label);
                continue;
            }
        });
    }
    // Two dialects that write the same header contradict each other.
    let legacy = |dialect: &&Dialect| matches!(dialect, Dialect::Draft06 | Dialect::XRateLimit);
    let forms = headers.len() - headers.iter().filter(legacy).count();
    if forms > 1 || (1..headers.len()).any(|at| headers[..at].contains(&headers[at])) {
        let title = "two dialects that write the same header";
        let label = "one `RateLimit` header can have one form only";
        context.error(title, list.place, label).help(
            "`ratelimit` (draft-11), `draft-next` and `draft-07` exclude one another; `draft-06` and `x-ratelimit` go with any",
        );
    }
    headers
}

fn refusal(
    written: &At<ShortOr<RawRefusalForm, RawRefusal>>,
    context: &mut Context<'_>,
) -> Option<RefusalBody> {
    let raw = match &written.value {
        ShortOr::Short(RawRefusalForm::JsonRpc) => return Some(RefusalBody::JsonRpc),
        ShortOr::Short(RawRefusalForm::OpenAi) => return Some(RefusalBody::OpenAi),
        ShortOr::Table(raw) => raw,
    };
    let (template, place) = match (raw.body.get(), raw.body_file.get()) {
        (Some(body), Some(file)) => {
            let title = "`body` and `body_file` are both written";
            context.either(title, file.place, body.place);
            return None;
        }
        (Some(body), None) => (body.as_str().to_owned(), body.place),
        (None, Some(file)) => (
            context.content(file, "the body is read from here")?,
            file.place,
        ),
        (None, None) => {
            if raw.body.is_absent() && raw.body_file.is_absent() {
                context.error(
                    "a refusal without a body",
                    written.place,
                    "`body` is missing",
                );
            }
            return None;
        }
    };
    for name in placeholders(&template).filter(|name| !REFUSAL_PLACEHOLDERS.contains(name)) {
        let title = format!("`{{{name}}}` is no placeholder of a refusal body");
        let label = suggestion("placeholder", name, &REFUSAL_PLACEHOLDERS);
        context.error(title, place, label);
    }
    Some(RefusalBody::Template {
        content_type: raw.content_type.get()?.value.clone(),
        template: template.into(),
    })
}

/// The words in braces. Other text in braces (`{"a": 1}`, `{}`) is no placeholder.
fn placeholders(template: &str) -> impl Iterator<Item = &str> {
    let in_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    template
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name)
        .filter(move |name| !name.is_empty() && name.bytes().all(in_word))
}
