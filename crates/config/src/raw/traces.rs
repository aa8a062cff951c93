//! `[traces]`: where spans of sampled requests are sent.

use crate::declare::settings;
use crate::forms::{ShareOfRequests, TIMEOUT};
use crate::settings::Secret;
use crate::validate::server_url::{ServiceSecret, ServiceUrl};
use tollgate_limit::Micros;
use tollgate_policy::upstream::Server;

settings! {
    /// Sends a span of each sampled request to a collector of OpenTelemetry. It needs a gateway that was built with the feature `otlp`.
    pub struct Traces {
        /// The collector: OTLP over HTTP, in its JSON form.
        @required("url = \"http://127.0.0.1:4318/v1/traces\" names the collector") url: Server as ServiceUrl => "http://127.0.0.1:4318/v1/traces",
        /// The share of the requests without a valid `traceparent` that begin a trace. A request with one is sampled if its sender says so.
        /// Default: none begins a trace.
        sample: Option<u16> as Option<ShareOfRequests> => "1% of requests",
        /// The name of the service in its spans.
        service: String = "tollgate" => "edge",
        /// A bearer token for the collector. It must come from the environment.
        token: Option<Secret> as Option<ServiceSecret> => "${OTLP_TOKEN}",
        /// How long the collector may take for one document.
        timeout: Micros [TIMEOUT] = "5s",
    }
}
