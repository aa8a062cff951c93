//! The gateway as a hyper service: any server that drives a [`hyper::service::Service`] can run it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use http::{Request, Response};
use hyper::service::Service;

use super::Gateway;
use tollgate_net::server::{ConnInfo, Handler, Inbound};

/// The gateway, serving one connection.
#[derive(Clone)]
pub struct ConnectionService {
    gateway: Rc<Gateway>,
    connection: Rc<ConnInfo>,
}

impl ConnectionService {
    /// Serves the requests that arrive over `connection`.
    pub fn new(gateway: Rc<Gateway>, connection: ConnInfo) -> Self {
        Self {
            gateway,
            connection: Rc::new(connection),
        }
    }
}

impl<B: Into<Inbound>> Service<Request<B>> for ConnectionService {
    type Response = Response<<Gateway as Handler>::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let Self {
            gateway,
            connection,
        } = self.clone();
        let request = request.map(Into::into);
        Box::pin(async move { Ok(gateway.handle(&connection, request).await) })
    }
}
