//! Active health checks: requests a path, and records the result in the server's health record.
//!
//! Each worker has a task for each server. One of them sends the checks; when its worker drops the
//! server, another takes over.

use std::rc::{Rc, Weak};

use http::header::USER_AGENT;
use http::{HeaderValue, Request, StatusCode, Version};

use super::connect::Opened;
use super::incidents::causes;
use super::server::ServerState;
use super::{ForwardError, RequestBody, outgoing};
use tollgate_net::timers;
use tollgate_policy::upstream::{Health, HostPolicy};

pub(super) async fn run(server: Weak<ServerState>, health: Health) {
    let mut watch = None;
    loop {
        let Some(held) = server.upgrade() else { return };
        watch = watch.or_else(|| held.record.watch());
        if watch.is_some() {
            let outcome = timers::within(health.timeout.into(), ask(&held, &health.path)).await;
            let flaw = match outcome {
                Ok(Ok(status)) if status.is_success() || status.is_redirection() => None,
                Ok(Ok(status)) => Some(format!(
                    "health check: it responded with {status} to {}",
                    health.path
                )),
                Ok(Err(error)) => Some(format!("health check: {}", causes(&error))),
                Err(_) => Some("health check: no response in time".to_owned()),
            };
            let good = flaw.is_none();
            if let Some(flaw) = flaw {
                held.record.incidents.failed("health_check", flaw);
            }
            held.record
                .checked(good, health.healthy_after, health.unhealthy_after);
        }
        drop(held);
        // Vary the interval randomly, so that workers and gateways do not check in step.
        let every = std::time::Duration::from(health.every);
        timers::pause(every.mul_f64(0.9 + fastrand::f64() * 0.2)).await;
    }
}

/// The status of the response to `path`, on a separate connection: an exhausted pool does not make
/// a server unhealthy.
async fn ask(server: &Rc<ServerState>, path: &str) -> Result<StatusCode, ForwardError> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = path.parse().map_err(|_| ForwardError::Rewrite)?;
    request
        .headers_mut()
        .insert(USER_AGENT, HeaderValue::from_static("tollgate-health"));
    // Checks use the server's own name, whatever Host is sent with requests.
    let host = match &server.host {
        HostPolicy::Keep => &HostPolicy::Upstream,
        other => other,
    };
    let mut connection = match server.speaks_http2 {
        false => server.connector.http1(None).await?,
        true => match server.connector.http2().await? {
            Opened::Http1(connection) => connection,
            Opened::Http2(opened) => {
                let (mut sender, connection, _) = *opened;
                tokio::task::spawn_local(async move {
                    // The response reports the connection's error.
                    let _ = connection.await;
                });
                *request.version_mut() = Version::HTTP_2;
                outgoing::address(&mut request, host, &server.server, true)?;
                let response = sender
                    .send_request(request)
                    .await
                    .map_err(ForwardError::Response)?;
                return Ok(response.status());
            }
        },
    };
    outgoing::address(&mut request, host, &server.server, false)?;
    let (mut head, _) = request.into_parts();
    connection.ask(&head.method, &head.uri, &mut head.headers, None, false);
    let response = std::future::poll_fn(|cx| connection.poll_response(cx, |_, _| ())).await;
    response.map(|head| head.status).map_err(ForwardError::from)
}
