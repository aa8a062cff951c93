//! The owners of a limit's buckets.

/// The owner of each bucket of a limit: `per` in the file.
///
/// A key that a request may lack must say how such a request is treated: [`Key::or_address`],
/// [`Key::or_refuse`] or [`Key::or_skip`].
///
/// ```
/// use tollgate_tower::Key;
///
/// let by_tenant = Key::header("x-api-key").or_refuse();
/// let by_address = Key::address();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub(super) per: String,
    pub(super) when_missing: Option<&'static str>,
}

impl Key {
    fn new(per: impl Into<String>) -> Self {
        Self {
            per: per.into(),
            when_missing: None,
        }
    }

    /// Each client address by itself. The layer must know addresses
    /// ([`RateLimitLayer::peer`](super::RateLimitLayer::peer)); without one all requests share a bucket.
    pub fn address() -> Self {
        Self::new("address")
    }

    /// One bucket for all requests.
    pub fn everyone() -> Self {
        Self::new("everyone")
    }

    /// The value of a request header.
    pub fn header(name: &str) -> Self {
        Self::new(format!("header:{name}"))
    }

    /// The token of `Authorization: Bearer`. The token is not verified.
    pub fn bearer() -> Self {
        Self::new("bearer")
    }

    /// The value of a cookie.
    pub fn cookie(name: &str) -> Self {
        Self::new(format!("cookie:{name}"))
    }

    /// The value of a query parameter.
    pub fn query(name: &str) -> Self {
        Self::new(format!("query:{name}"))
    }

    /// The key that the application gives a request
    /// ([`RateLimitLayer::key_by`](super::RateLimitLayer::key_by)).
    pub fn application() -> Self {
        Self::new("application")
    }

    /// An identity that [`Builder::toml`](super::Builder::toml) declares, such as one that is the
    /// claim of a verified token.
    pub fn identity(name: &str) -> Self {
        Self::new(name)
    }

    /// A request without the key counts for its address.
    #[must_use]
    pub fn or_address(mut self) -> Self {
        self.when_missing = Some("use:address");
        self
    }

    /// A request without the key is refused with 401.
    #[must_use]
    pub fn or_refuse(mut self) -> Self {
        self.when_missing = Some("refuse");
        self
    }

    /// A request without the key is not limited by this limit.
    #[must_use]
    pub fn or_skip(mut self) -> Self {
        self.when_missing = Some("skip");
        self
    }
}
