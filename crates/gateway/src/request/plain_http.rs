//! Requests without TLS that no route gets: an authority's check of a host (HTTP-01, RFC 8555
//! section 8.3), and those that are redirected to https.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response};

use super::own::{fixed, redirect};
use crate::forward::body::ResponseBody;
use tollgate_net::listener::Address;
use tollgate_net::server::ConnInfo;
use tollgate_policy::descriptor::normal_host;
use tollgate_policy::routes::template::{Placeholder, Template};

/// What an authority gets for each token that it asks for at present. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Challenges(Arc<ArcSwap<HashMap<String, String>>>);

impl Challenges {
    pub fn answer(&self, by_token: HashMap<String, String>) {
        self.0.store(Arc::new(by_token));
    }
}

/// What happens to requests without TLS before the routes.
#[derive(Debug)]
pub struct PlainHttp {
    challenges: Challenges,
    /// Where requests over TCP are redirected.
    location: Option<Template>,
}

impl PlainHttp {
    pub fn new(challenges: Challenges, redirects: bool) -> Self {
        let https = Template::parse("https://{host}{path}{query}", |_| None);
        Self {
            challenges,
            location: https.ok().filter(|_| redirects),
        }
    }

    /// The response to a request that no route gets. A request whose Host is malformed goes on: the
    /// routes' checks refuse it.
    #[cold]
    pub(super) fn response(
        &self,
        connection: &ConnInfo,
        request: &Request<()>,
    ) -> Option<Response<ResponseBody>> {
        let target = request.uri();
        if *request.method() == Method::GET
            && let Some(token) = target.path().strip_prefix(CHALLENGE)
            && let Some(answer) = self.challenges.0.load().get(token)
        {
            let kind = HeaderValue::from_static("application/octet-stream");
            return Some(fixed(200, kind, answer.clone()));
        }
        let location = self.location.as_ref()?;
        // A token alone, because the router would take a path with `..` to be another one.
        let is_token = |token: &str| {
            token
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let is_challenge = target.path().strip_prefix(CHALLENGE).is_some_and(is_token);
        if !matches!(*connection.listener, Address::Tcp(_)) || is_challenge {
            return None;
        }
        let host = request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok());
        let host = target.authority().map(Authority::as_str).or(host);
        let Some(host) = host.filter(|host| !host.is_empty()) else {
            let kind = HeaderValue::from_static("text/plain");
            return Some(fixed(
                400,
                kind,
                "the request names no host to redirect to\n".to_owned(),
            ));
        };
        let host = normal_host(host).ok().filter(|host| !host.is_empty())?;
        let location = location.location(|placeholder, to| match placeholder {
            Placeholder::Host => to.extend_from_slice(host.as_bytes()),
            Placeholder::RequestPath => to.extend_from_slice(target.path().as_bytes()),
            _ => to.extend_from_slice(target.query().unwrap_or_default().as_bytes()),
        });
        Some(redirect(308, location))
    }
}

const CHALLENGE: &str = "/.well-known/acme-challenge/";
