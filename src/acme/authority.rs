//! Requests to an authority, by the gateway's own client.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;

use crate::outbound::{Service, retry_after};
use tollgate_config::settings::Acme as Settings;
use tollgate_policy::upstream::{Server, ServerAddress, TlsFiles};

/// How the authority's own certificate is verified.
pub(crate) fn authority_tls(settings: &Settings) -> TlsFiles {
    TlsFiles {
        ca: settings.ca_file.clone(),
        ..TlsFiles::default()
    }
}

/// An authority. Clones share what it said last.
#[derive(Clone)]
pub(super) struct Authority {
    tls: TlsFiles,
    /// How long it wants to be left alone.
    wait: Arc<Mutex<Option<Duration>>>,
}

impl Authority {
    pub(super) fn of(settings: &Settings) -> Self {
        Self {
            tls: authority_tls(settings),
            wait: Arc::default(),
        }
    }

    /// What the last response with an error said in `Retry-After`.
    pub(super) fn wait(&self) -> Option<Duration> {
        *self.wait.lock()
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Bytes>, String> {
        let (mut head, body) = request.into_parts();
        let server = server(&head.uri).ok_or("the authority named a URL that is not https")?;
        let origin = head.uri.path_and_query().map(PathAndQuery::as_str);
        head.uri = origin
            .unwrap_or("/")
            .parse()
            .map_err(|error: http::uri::InvalidUri| error.to_string())?;
        let Ok(body) = body.collect().await;
        let request = Request::from_parts(head, Full::new(body.to_bytes()));
        let service = Service::trusting(&server, PATIENCE, &self.tls)?;
        let exchange = service.exchange(request, Some(BODY_MAX));
        let response = tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| format!("no response in {PATIENCE:?}"))?
            .map_err(|error| format!("{}: {error}", server.authority))?;
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            if let Some(wait) = retry_after(response.headers()) {
                *self.wait.lock() = Some(wait);
            }
            let kind = response.headers().get(CONTENT_TYPE);
            let kind = kind.and_then(|kind| kind.to_str().ok());
            if !kind.is_some_and(|kind| kind.contains("json")) {
                return Err(format!("{} responded with {status}", server.authority));
            }
        }
        Ok(response)
    }
}

impl HttpClient for Authority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let sent = self.clone().send(request);
        Box::pin(async move {
            let response = sent.await.map_err(|error| Error::Other(error.into()))?;
            Ok(BytesResponse::from(response.map(Full::new)))
        })
    }
}

fn server(uri: &Uri) -> Option<Server> {
    let authority = uri
        .authority()
        .filter(|_| uri.scheme_str() == Some("https"))?;
    let host = authority.host().trim_matches(['[', ']']);
    Some(Server {
        address: ServerAddress::Tcp(host.to_owned(), authority.port_u16().unwrap_or(443)),
        tls: Some(host.into()),
        authority: authority.clone(),
        base_path: String::new(),
        weight: 1,
    })
}

const PATIENCE: Duration = Duration::from_secs(30);
/// The largest response that is read.
const BODY_MAX: usize = 1 << 20;
