use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Version};

/// The properties of a request that decide the form of a refusal.
#[derive(Clone, Debug, Default)]
pub struct RefusalForm {
    head: bool,
    http1: bool,
    takes_lines: bool,
    /// Boxed, because most requests have none of these properties.
    rare: Option<Box<Rare>>,
}

/// Rarely present properties that decide the form of a refusal.
#[derive(Clone, Debug, Default)]
struct Rare {
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl RefusalForm {
    /// From `request`. `rare`: whether it may have a Content-Type or an Origin. `takes_lines`: the
    /// server that read the request appends lines to a response's head when it writes it.
    pub fn of<B>(request: &Request<B>, rare: bool, takes_lines: bool) -> Self {
        Self {
            head: *request.method() == Method::HEAD,
            http1: request.version() < Version::HTTP_2,
            takes_lines,
            rare: rare
                .then(|| Rare::of(request.method(), request.headers()))
                .flatten(),
        }
    }

    /// For a decision that another program asks for, about a request with this Origin. `head`:
    /// whether the program asks with HEAD. Never the form of a gRPC call, since the status of that
    /// is 200, which admits the request.
    pub fn of_decision(head: bool, origin: Option<HeaderValue>) -> Self {
        let rare = Rare { grpc: None, origin };
        Self {
            head,
            rare: rare.origin.is_some().then(|| Box::new(rare)),
            ..Self::default()
        }
    }

    pub(crate) fn grpc(&self) -> Option<&HeaderValue> {
        self.rare.as_ref()?.grpc.as_ref()
    }

    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.rare.as_ref()?.origin.as_ref()
    }

    pub const fn is_head(&self) -> bool {
        self.head
    }

    pub const fn is_http1(&self) -> bool {
        self.http1
    }

    /// Whether headers may be written as lines after the response's header table.
    pub const fn takes_lines(&self) -> bool {
        self.takes_lines
    }

    /// Whether a refusal has the common form, and its headers may be written as lines.
    pub const fn is_plain(&self) -> bool {
        self.takes_lines && !self.head && self.rare.is_none()
    }
}

impl Rare {
    fn of(method: &Method, headers: &HeaderMap) -> Option<Box<Self>> {
        // For a client that sent CONNECT, a 200 would open a tunnel, whatever its content.
        let kind = headers
            .get(CONTENT_TYPE)
            .filter(|_| *method != Method::CONNECT);
        let grpc = kind.filter(|value| value.as_bytes().starts_with(b"application/grpc"));
        let origin = headers.get(ORIGIN);
        (grpc.is_some() || origin.is_some()).then(|| {
            Box::new(Self {
                grpc: grpc.cloned(),
                origin: origin.cloned(),
            })
        })
    }
}
