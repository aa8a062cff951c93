//! Responses of the gateway that are not refusals: a route's configured response or redirect, and
//! OPTIONS and TRACE where the gateway is the last recipient.

use http::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, MAX_FORWARDS, USER_AGENT, VIA,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;

use crate::forward::body::ResponseBody;
use tollgate_policy::routes::Route;
use tollgate_response::ALLOWED;

pub(crate) fn redirect(status: u16, location: HeaderValue) -> Response<ResponseBody> {
    with_header(status, LOCATION, location, ResponseBody::EMPTY)
}

pub(crate) fn fixed(
    status: u16,
    content_type: HeaderValue,
    body: impl Into<ResponseBody>,
) -> Response<ResponseBody> {
    with_header(status, CONTENT_TYPE, content_type, body.into())
}

fn with_header(
    status: u16,
    name: HeaderName,
    value: HeaderValue,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    // The configuration accepts only valid statuses.
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(name, value);
    response
}

/// The response to OPTIONS or TRACE as the last recipient (RFC 9110 7.6.2).
#[cold]
pub(crate) fn last_recipient<B>(request: &Request<B>, route: &Route) -> Response<ResponseBody> {
    const OK: u16 = 200;
    if *request.method() == Method::TRACE {
        return fixed(
            OK,
            HeaderValue::from_static("message/http"),
            reflection(request),
        );
    }
    let methods = allow(&route.pattern.methods).unwrap_or_else(|| ALLOWED.clone());
    with_header(OK, ALLOW, methods, ResponseBody::EMPTY)
}

/// The response without its body, if it is only a head: to HEAD, or with a status that allows no
/// body. The length of the body that HEAD omits is kept.
pub(crate) fn head_alone(
    response: Response<ResponseBody>,
    is_head: bool,
) -> Response<ResponseBody> {
    let bodiless = matches!(
        response.status(),
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    if !(is_head || bodiless) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    if let (Some(length), false) = (body.size_hint().exact(), bodiless) {
        head.headers
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    Response::from_parts(head, ResponseBody::EMPTY)
}

/// Formats methods as the value of `Allow`; `None` if there are none.
pub(crate) fn allow(methods: &[Method]) -> Option<HeaderValue> {
    let words: Vec<&str> = methods.iter().map(Method::as_str).collect();
    HeaderValue::from_str(&words.join(", "))
        .ok()
        .filter(|_| !methods.is_empty())
}

/// The request as received, without the headers that may hold a secret.
fn reflection<B>(request: &Request<B>) -> String {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut text = format!("TRACE {target} {:?}\r\n", request.version());
    for name in [HOST, MAX_FORWARDS, USER_AGENT, VIA] {
        for value in request
            .headers()
            .get_all(&name)
            .iter()
            .filter_map(|value| value.to_str().ok())
        {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text + "\r\n"
}
