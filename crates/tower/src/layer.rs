//! The layer, and the service that it makes.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tower_layer::Layer;
use ::tower_service::Service;
use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, Response, Uri};
use http_body::Body;

use super::admit::{Next, start};
use super::engine::{Engine, LimitsSource};
use super::{Builder, Error, Handle, ResponseBody, ResponseFuture};
use tollgate_store::clock::Clock;

/// Finds the address of a request's peer.
type PeerOf = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;
/// Finds the subject of a request's verified client certificate.
type SubjectOf = Arc<dyn for<'e> Fn(&'e Extensions) -> Option<&'e str> + Send + Sync>;
/// Finds the key of a request.
type KeyOf = Arc<dyn for<'r> Fn(RequestHead<'r>) -> Option<Cow<'r, str>> + Send + Sync>;

/// A request without its body, from which an application takes a key ([`RateLimitLayer::key_by`]).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'r> {
    /// The method of the request.
    pub method: &'r Method,
    /// The target of the request.
    pub uri: &'r Uri,
    /// The headers of the request.
    pub headers: &'r HeaderMap,
    /// What layers before this one have found out, such as who sends it.
    pub extensions: &'r Extensions,
}

/// Limits the requests of a service. Clones, and all services made by them, share the buckets.
///
/// See the [module](super) for what it does to requests and responses.
#[derive(Clone)]
pub struct RateLimitLayer {
    shared: Arc<LayerState>,
}

/// What all services of a layer share.
#[derive(Clone)]
pub(super) struct LayerState {
    pub(super) engine: Arc<Engine>,
    pub(super) peer: PeerOf,
    pub(super) subject: SubjectOf,
    pub(super) key: Option<KeyOf>,
}

impl RateLimitLayer {
    /// A layer with the limits of a file. Variables (`${NAME}`) are read from the environment.
    ///
    /// The file is the gateway's: `[limits]`, `[identities]`, `[tiers]`, `[address]`, `[store]`,
    /// `[responses]`, and `[[routes]]` with `match`, `limits` and `refusal`. A route needs no
    /// upstream; settings that only a gateway has are [warnings](Handle::warnings).
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("limits.toml");
    /// std::fs::write(&path, r#"
    ///     [limits.per_tenant]
    ///     rate = "100/minute"
    ///     burst = 20
    ///     per = "header:x-api-key"
    ///     when_missing = "refuse"
    ///
    ///     [[routes]]
    ///     match = "/v1/**"
    ///     limits = ["per_tenant"]
    /// "#)?;
    /// let layer = tollgate_tower::RateLimitLayer::from_file(&path)?;
    /// # drop(layer); Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// All mistakes of the file, each with its place; or why its store cannot be used.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let source = LimitsSource::File(path.as_ref().to_path_buf());
        Self::new(source, Clock::system())
    }

    /// A builder, for limits that are written in code.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn new(source: LimitsSource, clock: Clock) -> Result<Self, Error> {
        let engine = Arc::new(Engine::new(source, clock)?);
        let shared = LayerState {
            engine,
            peer: Arc::new(|extensions| {
                let socket = extensions.get::<std::net::SocketAddr>();
                socket
                    .map(std::net::SocketAddr::ip)
                    .or_else(|| extensions.get::<IpAddr>().copied())
            }),
            subject: Arc::new(|_| None),
            key: None,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Sets how the address of a request's peer is found in its extensions: the address of the
    /// connection, before any header. By default it is a `SocketAddr` or an `IpAddr` there.
    ///
    /// ```
    /// # use axum::extract::ConnectInfo;
    /// # use std::net::SocketAddr;
    /// # use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};
    /// # fn main() -> Result<(), tollgate_tower::Error> {
    /// let limit = Limit::token_bucket(Rate::per_second(10), 10).per(Key::address());
    /// let layer = RateLimitLayer::builder().limit("per_address", limit).build()?
    ///     .peer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    /// # drop(layer); Ok(()) }
    /// ```
    #[must_use]
    pub fn peer(
        self,
        find: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        let peer: PeerOf = Arc::new(find);
        self.with(|shared| shared.peer = peer)
    }

    /// Sets how the subject of a request's verified client certificate is found in its extensions,
    /// for identities by `client_certificate`. By default there is none.
    #[must_use]
    pub fn client_certificate(
        self,
        find: impl for<'e> Fn(&'e Extensions) -> Option<&'e str> + Send + Sync + 'static,
    ) -> Self {
        let subject: SubjectOf = Arc::new(find);
        self.with(|shared| shared.subject = subject)
    }

    /// Sets how the application finds the key of a request, for limits by [`Key::application`]: who a
    /// session belongs to, for example. A request without one, or with an empty one, lacks the key.
    /// It is asked again where a request had to wait for a store.
    ///
    /// ```
    /// # use tollgate_tower::{Error, Key, Limit, Rate, RateLimitLayer};
    /// /// Who is logged in, as a layer before this one has found out.
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// # fn main() -> Result<(), Error> {
    /// let limit = Limit::token_bucket(Rate::per_minute(60), 10).per(Key::application().or_address());
    /// let layer = RateLimitLayer::builder().limit("per_user", limit).build()?
    ///     .key_by(|request| Some(request.extensions.get::<User>()?.0.as_str().into()));
    /// # drop(layer); Ok(()) }
    /// ```
    ///
    /// [`Key::application`]: super::Key::application
    #[must_use]
    pub fn key_by(
        self,
        find: impl for<'r> Fn(RequestHead<'r>) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    ) -> Self {
        let key: KeyOf = Arc::new(find);
        self.with(|shared| shared.key = Some(key))
    }

    fn with(self, change: impl FnOnce(&mut LayerState)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Changes the limits while services run, and tells what they have decided.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared.engine))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// A service whose requests are limited; made by [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<LayerState>,
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> ResponseFuture<S, B> {
        match start(&self.shared, &request) {
            Next::Admit(due) => {
                due.keep_readable(&mut request);
                ResponseFuture::serving(self.inner.call(request), due)
            }
            Next::Refuse(response) => {
                // The readiness that this service has reserved is given up.
                self.inner = self.inner.clone();
                ResponseFuture::refused(response)
            }
            Next::Wait(work) => {
                // The clone is not ready; the service that is ready serves this request.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::deciding(work, Arc::clone(&self.shared), ready, request)
            }
        }
    }
}
