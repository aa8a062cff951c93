//! The rate limit service: tells the gateway what a request asks, and Envoy what was decided.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Request, Response};
use tollgate_gateway::Gateway;
use tollgate_gateway::decide::{DescriptorAsked, DescriptorStatus as Decided, DescriptorsDecided};
use tollgate_limit::{Micros, Rate};
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_policy::claims::domains::Entry as PolicyEntry;
use tollgate_telemetry::metrics::Samples;

use crate::grpc::{self, MESSAGE_MAX, ReplyBody, Requests, Status};
use crate::health::Serving;
use crate::messages::{
    Code, DescriptorStatus, Duration, Entry, HeaderValue, HealthCheckRequest, HealthCheckResponse,
    RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, Unit,
};

pub(crate) const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The most descriptors of a request.
const DESCRIPTORS_MAX: usize = 64;
/// The largest message of an Envoy: as much as a server of gRPC for Go reads.
const TRUSTED_MESSAGE_MAX: usize = 4 << 20;

/// Responds to Envoy, on one worker.
pub struct RateLimitService {
    gateway: Rc<Gateway>,
    serving: Serving,
    counts: Arc<Counts>,
}

/// What the service has decided. All workers share it.
#[derive(Debug, Default)]
pub struct Counts {
    ok: AtomicU64,
    over_limit: AtomicU64,
    unknown_domain: AtomicU64,
    unreadable: AtomicU64,
}

impl Counts {
    pub fn samples(&self, samples: &mut Samples) {
        let outcomes = [
            ("ok", &self.ok),
            ("over_limit", &self.over_limit),
            ("unknown_domain", &self.unknown_domain),
            ("unreadable", &self.unreadable),
        ];
        for (outcome, count) in outcomes {
            samples.counter(
                "rate_limit_service_requests",
                "Requests to Envoy's rate limit service, by outcome",
                &[("outcome", outcome)],
                count.load(Ordering::Relaxed),
            );
        }
    }
}

impl RateLimitService {
    pub fn new(gateway: Rc<Gateway>, serving: Serving, counts: Arc<Counts>) -> Self {
        Self {
            gateway,
            serving,
            counts,
        }
    }

    async fn call(
        &self,
        connection: &ConnInfo,
        request: Request<Inbound>,
    ) -> Result<Response<ReplyBody>, Status> {
        let (head, body) = request.into_parts();
        let messages = |max| Requests::new(body, max);
        match head.uri.path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                // A peer says which client a request is of, and may give units back.
                if !self.gateway.trusts(connection) {
                    return Err(Status::permission_denied(
                        "the peer is not in decide.trusted",
                    ));
                }
                let asked = messages(TRUSTED_MESSAGE_MAX).one().await;
                let head = Request::from_parts(head, ());
                let (decided, count) = match &asked {
                    Ok(asked) => self.decide(&head, asked).await?,
                    Err(_) => (None, &self.counts.unreadable),
                };
                count.fetch_add(1, Ordering::Relaxed);
                Ok(grpc::message(&decided.map_or_else(refusal, response)))
            }
            "/grpc.health.v1.Health/Check" => {
                let asked: HealthCheckRequest = messages(MESSAGE_MAX).one().await?;
                let status = self.serving.of(&asked.service);
                let status = status.ok_or(Status::not_found("unknown service"))?.into();
                Ok(grpc::message(&HealthCheckResponse { status }))
            }
            "/grpc.health.v1.Health/Watch" => {
                let asked: HealthCheckRequest = messages(MESSAGE_MAX).one().await?;
                Ok(grpc::watching(self.serving.watch(&asked.service)))
            }
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Ok(grpc::reflecting(messages(MESSAGE_MAX)))
            }
            _ => Err(Status::unimplemented("there is no such method")),
        }
    }

    /// The decision, with its counter; `None`: the request is refused, because it cannot be decided.
    async fn decide(
        &self,
        head: &Request<()>,
        asked: &RateLimitRequest,
    ) -> Result<(Option<DescriptorsDecided>, &AtomicU64), Status> {
        // No client of Envoy can cause these.
        if asked.domain.is_empty() {
            return Err(Status::invalid("the domain is empty"));
        }
        if asked.descriptors.is_empty() {
            return Err(Status::invalid("there are no descriptors"));
        }
        let unreadable = (None, &self.counts.unreadable);
        if asked.descriptors.len() > DESCRIPTORS_MAX {
            return Ok(unreadable);
        }
        let hits = u64::from(asked.hits_addend).max(1);
        let descriptors: Vec<_> = asked
            .descriptors
            .iter()
            .map(|one| one.asked(hits))
            .collect();
        let decided = self
            .gateway
            .decide_descriptors(head, &asked.domain, &descriptors);
        let Ok(decided) = decided.await else {
            return Ok(unreadable);
        };
        let count = if decided.refused {
            &self.counts.over_limit
        } else if self.gateway.has_domain(&asked.domain) {
            &self.counts.ok
        } else {
            &self.counts.unknown_domain
        };
        Ok((Some(decided), count))
    }
}

impl Handler for RateLimitService {
    type Body = ReplyBody;

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<ReplyBody> {
        if let Err(response) = grpc::check(&request) {
            return response;
        }
        self.call(connection, request)
            .await
            .unwrap_or_else(Status::response)
    }

    fn observe(&self, event: Event<'_>) {
        self.gateway.observe(event);
    }
}

impl RateLimitDescriptor {
    /// What it asks; `hits`: those of the request.
    fn asked(&self, hits: u64) -> DescriptorAsked<'_> {
        let numbers = self.limit.as_ref().and_then(|limit| {
            let period = Micros::from_secs(limit.unit().secs()?);
            Some(Rate::new(limit.requests_per_unit.into(), period))
        });
        DescriptorAsked {
            entries: (self.entries.iter())
                .map(|Entry { key, value }| PolicyEntry { key, value })
                .collect(),
            hits: self.hits_addend.unwrap_or(hits),
            numbers,
            gives_back: self.is_negative_hits,
        }
    }
}

/// The response to what cannot be decided. After an error Envoy would admit the request, and a client
/// can cause one by its headers.
fn refusal() -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        ..RateLimitResponse::default()
    }
}

fn response(decided: DescriptorsDecided) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(decided.refused).into(),
        statuses: decided.statuses.iter().map(status).collect(),
        response_headers_to_add: headers(&decided.headers),
        raw_body: decided.body,
    }
}

const fn code(over_limit: bool) -> Code {
    if over_limit {
        Code::OverLimit
    } else {
        Code::Ok
    }
}

fn status(decided: &Decided) -> DescriptorStatus {
    let code = code(decided.over_limit).into();
    let Some(limit) = &decided.limit else {
        // As the service of envoyproxy says that a rule admits everything.
        let limit_remaining = if decided.unlimited { u32::MAX } else { 0 };
        return DescriptorStatus {
            code,
            limit_remaining,
            ..DescriptorStatus::default()
        };
    };
    let whole = limit.period.0 % 1_000_000 == 0;
    let unit = if whole {
        Unit::of_secs(limit.period.0 / 1_000_000)
    } else {
        Unit::Unknown
    };
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            requests_per_unit: clamped(limit.amount),
            unit: unit.into(),
            name: limit.name.to_string(),
        }),
        limit_remaining: clamped(limit.remaining),
        duration_until_reset: limit.reset.map(duration),
    }
}

fn clamped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn duration(span: Micros) -> Duration {
    Duration {
        seconds: i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.0 % 1_000_000 * 1_000).unwrap_or_default(),
    }
}

fn headers(headers: &HeaderMap) -> Vec<HeaderValue> {
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        Some(HeaderValue {
            key: name.as_str().to_owned(),
            value: value.to_str().ok()?.to_owned(),
        })
    };
    headers.iter().filter_map(header).collect()
}
