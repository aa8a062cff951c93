//! The stream of events over HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{Extension, Request, State};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use hyper::body::Frame;
use tokio::sync::Notify;

use super::super::Options;
use super::super::api::{Answer, Problem, typed};
use super::super::guard::is_of_another_site;
use super::{READERS_MAX, Subscription};

/// Responds with the events from now on, or after the event that the request names. `cut` ends the connection.
pub(in crate::admin) async fn respond(
    State(options): State<Arc<Options>>,
    Extension(cut): Extension<Arc<Notify>>,
    request: Request,
) -> Answer {
    // Another site cannot read the stream, but it could take the places of readers.
    if is_of_another_site(request.headers()) {
        let words = "events are not for the pages of other sites";
        return Err(Problem::new(StatusCode::FORBIDDEN, words));
    }
    let last = last_id(&request).map_err(Problem::bad_request)?;
    let subscribed = options.live.events.subscribe(last, cut);
    let subscription = subscribed.map_err(|_| {
        let words = format!("{READERS_MAX} readers are the most: try again later");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, words)
    })?;
    let body = axum::body::Body::new(subscription);
    let mut response = typed(StatusCode::OK, "text/event-stream", body);
    // A proxy in front would hold events back.
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The id of the last event that the reader has: a header, which browsers send when they connect
/// again, or `after` in the query.
fn last_id(request: &Request) -> Result<Option<&str>, &'static str> {
    let query = request.uri().query().unwrap_or_default();
    let mut last = None;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("after", id)) => last = Some(id),
            _ => return Err("events are asked for with `after=ID` only"),
        }
    }
    let header = request.headers().get("last-event-id");
    Ok(match header {
        Some(id) => Some(id.to_str().unwrap_or_default()),
        None => last,
    })
}

impl hyper::body::Body for Subscription {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |message: Arc<super::Message>| Ok(Frame::data(message.wire.clone()));
        self.poll_next(context).map(|message| message.map(frame))
    }
}
