//! Writes a refusal: as a problem document (RFC 9457), as a configured body, or as a gRPC status.
//!
//! Scripts in a browser can read every refusal, and caches must not store it.

mod document;
mod template;

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use smallvec::SmallVec;

use super::json_rpc;
use super::problem::{PROBLEM_JSON, Problem};
use super::quota_headers::{EXPOSED, retry_after_secs};
pub use document::Denial;
use tollgate_limit::Micros;
use tollgate_limit::printable::percent_encoded;
use tollgate_policy::body::json::Calls;
use tollgate_policy::{RefusalBody, Template};

/// The properties of a request that decide the form of a refusal.
#[derive(Clone, Debug, Default)]
pub struct RefusalForm {
    /// Whether the request is HEAD.
    pub head: bool,
    http1: bool,
    /// Whether headers may be written as lines after the response's header table.
    pub takes_lines: bool,
    /// The content type of a gRPC call.
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl RefusalForm {
    /// From `request`. `rare`: whether it may have a Content-Type or an Origin. `takes_lines`: the
    /// server that read the request appends lines to a response's head when it writes it.
    pub fn of<B>(request: &Request<B>, rare: bool, takes_lines: bool) -> Self {
        let header = |name| request.headers().get(name).filter(|_| rare);
        let is_grpc = |kind: &&HeaderValue| kind.as_bytes().starts_with(b"application/grpc");
        // For a client that sent CONNECT, a 200 would open a tunnel, whatever its content.
        let kind = header(CONTENT_TYPE).filter(|_| *request.method() != Method::CONNECT);
        Self {
            head: *request.method() == Method::HEAD,
            http1: request.version() < Version::HTTP_2,
            takes_lines,
            grpc: kind.filter(is_grpc).cloned(),
            origin: header(ORIGIN).cloned(),
        }
    }

    /// For a decision that another program asks for, about a request with this Origin. `head`:
    /// whether the program asks with HEAD. Never the form of a gRPC call, since the status of that
    /// is 200, which admits the request.
    pub fn of_decision(head: bool, origin: Option<HeaderValue>) -> Self {
        Self {
            head,
            origin,
            ..Self::default()
        }
    }

    /// Whether a refusal has the common form, and its headers may be written as lines.
    pub const fn is_plain(&self) -> bool {
        self.takes_lines && !self.head && self.grpc.is_none() && self.origin.is_none()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub violated: SmallVec<[Arc<str>; 2]>,
    /// The wait until a retry is admitted; `None` if it is unknown.
    pub retry_after: Option<Micros>,
    /// Whether the request costs more than a limit can ever grant.
    pub never_fits: bool,
    /// Whether an operator's override or a penalty blocks the caller.
    pub blocked: bool,
    /// Whether a limit with `refuse_status = 402` refused. That status stands if several limits
    /// refuse, because a caller that waits only for the others is refused again.
    pub budget: bool,
    /// Whether its budgets refuse only because of what requests under way reserve.
    pub reserved: bool,
    pub by_penalty: bool,
    pub budgets: Vec<SpentBudget>,
}

impl Refused {
    pub fn problem(&self) -> Problem {
        if self.by_penalty {
            return Problem::PENALTY;
        }
        if self.blocked {
            return Problem::BLOCKED;
        }
        if self.reserved {
            return Problem::RESERVED;
        }
        match (self.never_fits, self.retry_after, self.budget) {
            (true, _, false) => Problem::NEVER_FITS,
            (true, _, true) => Problem::NEVER_IN_BUDGET,
            (false, None, false) => Problem::CONCURRENCY_EXCEEDED,
            (false, None, true) => Problem::BUDGET_AND_CONCURRENCY,
            (false, Some(_), false) => Problem::QUOTA_EXCEEDED,
            (false, Some(_), true) => Problem::BUDGET_EXHAUSTED,
        }
    }
}

tollgate_policy::labels! {
    Refused {
        Self { by_penalty: true, .. } => "penalty",
        Self { blocked: true, .. } => "blocked",
        Self { budget: true, .. } => "budget_exhausted",
        _ => "denied",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Refusal<'r> {
    pub problem: Problem,
    /// The word for it in metrics and logs.
    pub label: &'static str,
    pub reason: Reason<'r>,
    pub detail: Option<&'r str>,
    /// The wait after which a retry makes sense: exact for a limit, estimated otherwise.
    pub retry_after: Option<Micros>,
    pub allow: Option<&'r HeaderValue>,
    /// Whether a connection of HTTP/1 must close after it.
    pub closes: bool,
}

/// Why a request is refused, as far as it decides the form of the refusal.
#[derive(Clone, Copy, Debug)]
pub enum Reason<'r> {
    Denied(&'r Refused),
    StoreDown(&'r Arc<str>),
    /// The caller is not identified; this challenge would be.
    Unidentified(Option<&'r HeaderValue>),
    Other,
}

/// A form of refusals in place of a problem document.
#[derive(Clone, Copy, Debug)]
pub enum Form<'f> {
    Template(&'f HeaderValue, &'f Template),
    Calls(&'f Calls),
    /// A problem document with an `error`, for every reason.
    OpenAi,
}

impl<'f> Form<'f> {
    /// The form that a route or the file chooses, for a request that makes these JSON-RPC calls.
    pub fn of(body: &'f RefusalBody, calls: Option<&'f Calls>) -> Option<Self> {
        match body {
            RefusalBody::Template {
                content_type,
                template,
            } => Some(Self::Template(content_type, template)),
            RefusalBody::JsonRpc => calls.map(Self::Calls),
            RefusalBody::OpenAi => Some(Self::OpenAi),
        }
    }
}

impl<'r> Refusal<'r> {
    pub fn new(problem: Problem, label: &'static str, reason: Reason<'r>) -> Self {
        let retry_after = match reason {
            Reason::Denied(refused) if !refused.never_fits => refused.retry_after,
            Reason::StoreDown(_) => Some(Micros::from_secs(1)),
            _ => None,
        };
        Self {
            problem,
            label,
            reason,
            detail: None,
            retry_after,
            allow: None,
            closes: false,
        }
    }

    fn budgets(&self) -> &'r [SpentBudget] {
        match self.reason {
            Reason::Denied(refused) => &refused.budgets,
            _ => &[],
        }
    }

    pub(super) fn detail(&self) -> String {
        let mut detail = self.detail.unwrap_or(self.problem.detail).to_owned();
        for budget in self.budgets() {
            detail.push(' ');
            detail += &budget.words();
        }
        detail
    }

    pub(super) fn limits(&self) -> &'r [Arc<str>] {
        match self.reason {
            Reason::Denied(refused) => &refused.violated,
            Reason::StoreDown(limit) => std::slice::from_ref(limit),
            Reason::Unidentified(_) | Reason::Other => &[],
        }
    }

    /// The reason with limits and wait: many clients show nothing else of an error.
    pub(super) fn message(&self) -> String {
        let mut message = self.detail();
        if !self.limits().is_empty() {
            message += &format!(" Refused by: {}.", self.limits().join(", "));
        }
        if let Some(wait) = self.retry_after {
            message += &match retry_after_secs(wait) {
                seconds @ ..172_800 => format!(" Retry after {seconds} s."),
                seconds => format!(" Retry after {} days.", seconds.div_ceil(86_400)),
            };
        }
        message
    }

    /// The response, without quota headers. `own` is the form that the route or the file chooses;
    /// `id` is the id of the decision.
    pub fn response(&self, form: &RefusalForm, own: Option<Form<'_>>, id: &str) -> Response<Bytes> {
        let mut response = match &form.grpc {
            Some(content_type) => self.grpc(content_type),
            None => self.body(form, own, id),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, retry_after_secs(wait).into());
        }
        if let Reason::Unidentified(Some(challenge)) = self.reason {
            headers.insert(WWW_AUTHENTICATE, challenge.clone());
        }
        if let Some(origin) = &form.origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(
                ACCESS_CONTROL_EXPOSE_HEADERS,
                HeaderValue::from_static(EXPOSED),
            );
            headers.insert(VARY, HeaderValue::from_static("Origin"));
            // A script that sent cookies may read that it must wait, but not whether its user is known.
            if !matches!(self.reason, Reason::Unidentified(_)) {
                headers.insert(
                    ACCESS_CONTROL_ALLOW_CREDENTIALS,
                    HeaderValue::from_static("true"),
                );
            }
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, allow.clone());
        }
        if self.closes && form.http1 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn body(&self, form: &RefusalForm, own: Option<Form<'_>>, id: &str) -> Response<Bytes> {
        let (status, content_type, body) = self.contents(own, id);
        // The encoder does not know the length of a body that HEAD omits.
        let length = form.head.then(|| HeaderValue::from(body.len()));
        let mut response = Response::new(if form.head { Bytes::new() } else { body });
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        if let Some(length) = length {
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        response
    }

    /// The status, the content type and the body: a problem document, or the configured form, which
    /// most forms have only if a limit or its store refuses.
    pub fn contents(&self, own: Option<Form<'_>>, id: &str) -> (StatusCode, HeaderValue, Bytes) {
        let refuses = matches!(self.reason, Reason::Denied(_) | Reason::StoreDown(_));
        let status = self.problem.status;
        match own {
            Some(Form::Template(content_type, template)) if refuses => {
                let fill = || self.fill(content_type, template.text(), id).into();
                let body = template.fixed().unwrap_or_else(fill);
                (status, content_type.clone(), body)
            }
            // Clients take a JSON-RPC response only from a successful response of HTTP.
            Some(Form::Calls(calls)) if refuses || self.problem == Problem::OVERLOADED => {
                (StatusCode::OK, JSON, json_rpc::errors(self, calls, id))
            }
            Some(Form::OpenAi) => (status, JSON, self.document_with_error(id)),
            _ => (status, PROBLEM_JSON, self.document(id)),
        }
    }

    /// A trailers-only response (gRPC over HTTP/2, "Responses"): HTTP 200, the status in the head.
    fn grpc(&self, content_type: &HeaderValue) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type.clone());
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.problem.grpc)));
        let message = grpc_encoded(&self.detail());
        headers.insert(
            GRPC_MESSAGE,
            HeaderValue::from_maybe_shared(Bytes::from(message)).expect("visible ASCII"),
        );
        self.pushback(headers);
        response
    }

    /// When a gRPC client's own retries are allowed; a negative number forbids them (gRFC A6).
    fn pushback(&self, headers: &mut HeaderMap) {
        let value = match (self.reason, self.retry_after) {
            (Reason::Denied(refused), _) if refused.never_fits => HeaderValue::from_static("-1"),
            (_, Some(wait)) => HeaderValue::from(wait.ceil_millis()),
            (_, None) => return,
        };
        headers.insert(GRPC_RETRY_PUSHBACK, value);
    }
}

/// Writes the header lines of a plain refusal by limits, for a response without a header table; the
/// quota headers follow. `wait` is the retry time.
pub fn write_headers(out: &mut Vec<u8>, content_type: &HeaderValue, wait: Option<Micros>) {
    out.extend_from_slice(b"content-type: ");
    out.extend_from_slice(content_type.as_bytes());
    out.extend_from_slice(b"\r\ncache-control: no-store\r\n");
    if let Some(wait) = wait {
        out.extend_from_slice(b"retry-after: ");
        let seconds = retry_after_secs(wait);
        out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

pub(super) fn escape_json(out: &mut String, text: &str) {
    if text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    {
        return out.push_str(text);
    }
    for character in text.chars() {
        escape_json_char(out, character);
    }
}

pub fn escape_json_char(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        control if control.is_control() => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(control));
        }
        plain => out.push(plain),
    }
}

fn grpc_encoded(text: &str) -> String {
    percent_encoded(text, |byte| (b' '..=b'~').contains(&byte) && byte != b'%')
}

/// The methods that are served if a route lists none.
pub static ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A budget that refused a request, as far as its caller may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentBudget {
    pub limit: Arc<str>,
    /// Its amount and period: `50 USD per month`.
    pub quota: String,
    /// What is left of it, below zero in debt; `None`: other callers draw from it too.
    pub left: Option<String>,
    /// What of it was used, and what requests under way only reserve; `None`: it is used up.
    pub used: Option<String>,
    pub reserved: Option<String>,
    /// What the request costs; `None`: it states more than the highest cost, or nothing readable.
    pub cost: Option<String>,
    /// The time until the budget is whole again, or its window ends.
    pub reset: Micros,
}

impl SpentBudget {
    pub fn write_list(budgets: &[Self], out: &mut String) {
        for (place, budget) in budgets.iter().enumerate() {
            out.push_str(if place == 0 { "[{" } else { ",{" });
            let texts = [
                ("policy", Some(&*budget.limit)),
                ("quota", Some(budget.quota.as_str())),
                ("left", budget.left.as_deref()),
                ("used", budget.used.as_deref()),
                ("reserved", budget.reserved.as_deref()),
                ("cost", budget.cost.as_deref()),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\"{name}\":\"");
                    escape_json(out, text);
                    out.push_str("\",");
                }
            }
            let _ = write!(out, "\"reset_ms\":{}}}", budget.reset.ceil_millis());
        }
        out.push(']');
    }

    pub(super) fn words(&self) -> String {
        let mut words = format!("{} is {}", self.limit, self.quota);
        if let Some(left) = &self.left {
            words += &format!(", {left} left");
        }
        if let (Some(used), Some(reserved)) = (&self.used, &self.reserved) {
            words += &format!(", {used} used, {reserved} reserved by requests under way");
        }
        if let Some(cost) = &self.cost {
            words += &format!(", the request costs {cost}");
        }
        words + "."
    }
}
