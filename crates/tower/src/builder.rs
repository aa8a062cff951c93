//! Limits that are written in code. A builder writes a file and reads it like one, so that every
//! rule and every mistake is the file's.

use tollgate_config::{Config, ConfigError, Loader, quoted};
use tollgate_limit::Timestamp;
use tollgate_store::clock::Clock;

use super::engine::LimitsSource;
use super::limit::list;
use super::{Error, Limit, RateLimitLayer, Store};

/// Collects limits for a layer without a file; made by [`RateLimitLayer::builder`].
///
/// Without a route, every limit applies to every request.
///
/// ```
/// use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};
///
/// # fn main() -> Result<(), tollgate_tower::Error> {
/// let layer = RateLimitLayer::builder()
///     .limit("total", Limit::token_bucket(Rate::per_second(500), 100).per(Key::everyone()))
///     .limit("search", Limit::token_bucket(Rate::per_minute(30), 5).per(Key::address()))
///     .route("/**", &["total"])
///     .route("GET /search/**", &["total", "search"])
///     .build()?;
/// # drop(layer); Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing before it is built"]
pub struct Builder {
    limits: Vec<(String, Limit)>,
    routes: Vec<(String, Vec<String>)>,
    trusted_proxies: Vec<String>,
    store: Option<Store>,
    toml: String,
}

impl Builder {
    /// Adds a limit. A limit of the same name is replaced: buckets belong to their limit's name.
    pub fn limit(mut self, name: &str, limit: Limit) -> Self {
        self.limits.retain(|(known, _)| known != name);
        self.limits.push((name.to_owned(), limit));
        self
    }

    /// Adds a route: the requests that `pattern` matches are charged on these limits, all of them or
    /// none. A pattern is `[METHOD[|METHOD]] [HOST]/PATH`, where `{name}` is one segment and `**` the
    /// rest. The most specific route takes the request; the order does not matter.
    pub fn route(mut self, pattern: &str, limits: &[&str]) -> Self {
        let limits = limits.iter().map(|name| (*name).to_owned()).collect();
        self.routes.push((pattern.to_owned(), limits));
        self
    }

    /// Believes `X-Forwarded-For` and `Forwarded` from these addresses and networks, such as
    /// `10.0.0.0/8`. From all others they are ignored.
    pub fn trusted_proxies(mut self, networks: &[&str]) -> Self {
        self.trusted_proxies = networks.iter().map(|one| (*one).to_owned()).collect();
        self
    }

    /// Keeps the buckets in a store that several instances share.
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// Adds tables in the words of the file, such as `[identities.user]`, `[tiers.pro]` or
    /// `[responses]`. Variables (`${NAME}`) are read from the environment.
    pub fn toml(mut self, text: &str) -> Self {
        self.toml.push_str(text);
        self.toml.push('\n');
        self
    }

    /// Makes the layer.
    ///
    /// # Errors
    /// All mistakes at once, in the text that the builder has written; or why the store cannot be used.
    pub fn build(self) -> Result<RateLimitLayer, Error> {
        RateLimitLayer::new(LimitsSource::Builder(Box::new(self)), Clock::system())
    }

    /// The text of the file.
    fn text(&self) -> String {
        let mut out = String::new();
        for (name, limit) in &self.limits {
            limit.write(name, &mut out);
        }
        if !self.trusted_proxies.is_empty() {
            let networks = list(&self.trusted_proxies);
            out.push_str(&format!("[address]\ntrusted_proxies = {networks}\n\n"));
        }
        if let Some(store) = &self.store {
            store.write(&mut out);
        }
        let all: Vec<&str> = self.limits.iter().map(|(name, _)| name.as_str()).collect();
        if self.routes.is_empty() && !all.is_empty() {
            write_route("/**", &all, &mut out);
        }
        for (pattern, limits) in &self.routes {
            write_route(pattern, limits, &mut out);
        }
        out + &self.toml
    }

    /// Reads what was collected as the file of a service.
    pub(super) fn config(&self, now: Timestamp) -> Result<Config, ConfigError> {
        let variable = |name: &str| {
            let known = self.store.as_ref().and_then(|store| store.variable(name));
            known.or_else(|| super::engine::variable(name))
        };
        Loader::new(&variable, now)
            .for_service()
            .text(&self.text(), "the limits in code")
    }
}

fn write_route<T: AsRef<str>>(pattern: &str, limits: &[T], out: &mut String) {
    let (pattern, limits) = (quoted(pattern), list(limits));
    out.push_str(&format!(
        "[[routes]]\nmatch = {pattern}\nlimits = {limits}\n\n"
    ));
}
