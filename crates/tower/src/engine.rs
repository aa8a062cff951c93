//! The limits in force, and how they are changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Agreement, Builder, Count};
use tollgate_admission::{Account, UnderWay, shared_store};
use tollgate_config::settings::ColdStart;
use tollgate_config::{Config, ConfigError, Loader, settings};
use tollgate_limit::Role;
use tollgate_limiter::Limiter;
use tollgate_policy::Policy;
use tollgate_policy::identity::WhenMissing;
use tollgate_policy::identity::source::Source as KeySource;
use tollgate_policy::{Scope, ScopePart};
use tollgate_response::DecisionId;
use tollgate_response::quota_headers::QuotaFields;
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local;

/// Where the limits come from.
#[derive(Clone, Debug)]
pub(super) enum LimitsSource {
    File(PathBuf),
    Builder(Box<Builder>),
}

/// Why a layer cannot be made or changed; after a failed change the limits in force stay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, or what the builder says, has mistakes. The text names each, with its place.
    #[error("{0}")]
    Config(String),
    /// The shared store cannot be used: its settings are invalid, this build has no such store, or
    /// its audit refuses it.
    #[error("the shared store: {0}")]
    Store(String),
    /// The layer was made without a file, so there is none to read again.
    #[error("the limits were not read from a file")]
    NoFile,
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.render(false))
    }
}

/// The limits in force, shared by all services of a layer.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) clock: Clock,
    /// The reservations of requests under way.
    pub(super) under_way: Arc<UnderWay>,
    current: ArcSwap<Snapshot>,
    /// The source of the limits in force; held while they are changed.
    source: Mutex<LimitsSource>,
    /// The number of the next decision: a random start, then consecutive numbers.
    ids: AtomicU64,
    /// Whether it was logged that requests have no address.
    unaddressed: AtomicBool,
}

/// Limits that are in force together, with their buckets.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) policy: Arc<Policy>,
    pub(super) limiter: Limiter,
    pub(super) quota: QuotaFields,
    /// Whether any limit follows the service's health.
    pub(super) follows: bool,
    /// Whether any limit needs addresses of clients.
    pub(super) needs_address: bool,
    /// The shared store and its settings.
    store: Option<settings::Store>,
    backend: Arc<Backend>,
    warnings: Vec<String>,
}

impl Engine {
    pub(super) fn new(source: LimitsSource, clock: Clock) -> Result<Self, Error> {
        let config = source.read(&clock)?;
        let backend = open(&config, &clock)?;
        let cold_start = match config.server.cold_start {
            ColdStart::Full => local::ColdStart::Full,
            ColdStart::Empty => local::ColdStart::Empty,
        };
        let limits = &config.policy.limits;
        let limiter = Limiter::new(limits, Arc::clone(&backend), clock.clone(), cold_start);
        let snapshot = Snapshot::new(config, limiter, backend);
        Ok(Self {
            clock,
            under_way: Arc::default(),
            current: ArcSwap::from_pointee(snapshot),
            source: Mutex::new(source),
            ids: AtomicU64::new(fastrand::u64(..)),
            unaddressed: AtomicBool::new(false),
        })
    }

    /// The limits in force, for a moment.
    pub(super) fn current(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// The id of the next decision.
    pub(super) fn next_id(&self) -> DecisionId {
        DecisionId::of(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// Logs once that requests have no address although a limit needs one.
    #[cold]
    pub(super) fn warn_unaddressed(&self) {
        if !self.unaddressed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a limit is per address, and the layer does not know the address of a request: all such \
                 requests share one bucket (RateLimitLayer::peer)"
            );
        }
    }

    /// Reads `source`, or the file again, and puts it in force. Buckets are carried over.
    fn replace(&self, source: Option<LimitsSource>) -> Result<(), Error> {
        let mut in_force = self.source.lock();
        let source = match source {
            Some(source) => source,
            None if matches!(*in_force, LimitsSource::Builder(_)) => return Err(Error::NoFile),
            None => in_force.clone(),
        };
        let config = source.read(&self.clock)?;
        let before = self.current();
        let limits = &config.policy.limits;
        let backend = if config.store == before.store {
            let old = &before.policy.limits;
            shared_store::change_limits(config.store.as_ref(), &before.backend, old, limits)
                .map_err(Error::Store)?;
            Arc::clone(&before.backend)
        } else {
            open(&config, &self.clock)?
        };
        let (limiter, _) = before.limiter.next(limits, Arc::clone(&backend));
        self.current
            .store(Arc::new(Snapshot::new(config, limiter, backend)));
        *in_force = source;
        Ok(())
    }
}

impl LimitsSource {
    fn read(&self, clock: &Clock) -> Result<Config, Error> {
        let config = match self {
            Self::File(path) => Loader::new(&variable, clock.now())
                .for_service()
                .file(path)?,
            Self::Builder(builder) => builder.config(clock.now())?,
        };
        for warning in &config.warnings {
            tracing::warn!("{}", warning.strip_prefix("warning: ").unwrap_or(warning));
        }
        Ok(config)
    }
}

/// The value of a variable of the environment: a layer reads its file where the process runs.
#[expect(
    clippy::disallowed_methods,
    reason = "the file of a layer names variables"
)]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn open(config: &Config, clock: &Clock) -> Result<Arc<Backend>, Error> {
    shared_store::open(config.store.as_ref(), &config.policy.limits, clock)
        .map(Arc::new)
        .map_err(Error::Store)
}

impl Snapshot {
    fn new(config: Config, limiter: Limiter, backend: Arc<Backend>) -> Self {
        let policy = config.policy;
        let follows = |limit: &Arc<tollgate_limit::Limit>| limit.algorithm.follows().is_some();
        Self {
            quota: QuotaFields::new(&policy.responses, &policy.limits, &policy.rules),
            follows: policy.limits.iter().any(follows),
            needs_address: needs_address(&policy),
            limiter,
            store: config.store,
            backend,
            warnings: config.warnings,
            policy,
        }
    }

    /// Whether the response changes nothing for an admitted request.
    pub(super) fn is_final(&self, account: &Account) -> bool {
        let is_followed = self.follows && !account.claims.is_empty();
        let permit = account.judged.permit();
        permit.is_some_and(|permit| permit.is_settled() && !is_followed)
    }
}

/// Whether a limit or an identity reads the addresses of clients.
fn needs_address(policy: &Policy) -> bool {
    let by_address = |scope: &Scope| match scope {
        Scope::Identities(parts) => parts.contains(&ScopePart::Address),
        Scope::Everyone => false,
    };
    let identities = policy.identities.iter();
    let mut of_identities = identities.map(|identity| {
        identity.sources.contains(&KeySource::Address)
            || matches!(identity.when_missing, WhenMissing::UseAddress)
    });
    policy.rules.iter().any(|rule| by_address(&rule.scope)) || of_identities.any(|needs| needs)
}

/// Changes the limits of a layer while its services run, and tells what they have decided.
///
/// ```
/// use tollgate_tower::{Key, Limit, Rate, RateLimitLayer};
///
/// # fn main() -> Result<(), tollgate_tower::Error> {
/// let limit = |rate| Limit::token_bucket(rate, 10).per(Key::everyone());
/// let layer = RateLimitLayer::builder().limit("all", limit(Rate::per_second(10))).build()?;
/// let handle = layer.handle();
///
/// // A new rate; the buckets keep their units.
/// handle.replace(RateLimitLayer::builder().limit("all", limit(Rate::per_second(20))))?;
/// assert_eq!(handle.counts().len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Handle(pub(super) Arc<Engine>);

/// What one limit of a layer has decided so far; made by [`Handle::counts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitCount {
    /// The name of the limit.
    pub name: String,
    /// The tier whose numbers these are; `None`: the limit's own.
    pub tier: Option<String>,
    /// What the limit has decided.
    pub count: Count,
    /// How a candidate compares with the live limit, if this is a candidate.
    pub candidate: Option<Agreement>,
}

impl Handle {
    /// Reads the file again and puts it in force. Buckets are carried over by the names of their
    /// limits: no change refills a caller. It blocks: the file is read, and another store is
    /// connected.
    ///
    /// # Errors
    /// All mistakes of the file, or why its store cannot be used; the limits in force then stay.
    /// [`Error::NoFile`] if the limits do not come from a file.
    pub fn reload(&self) -> Result<(), Error> {
        self.0.replace(None)
    }

    /// Puts the limits of a builder in force, as [`Handle::reload`] does for a file.
    ///
    /// # Errors
    /// All mistakes at once, or why the store cannot be used; the limits in force then stay.
    pub fn replace(&self, builder: Builder) -> Result<(), Error> {
        self.0
            .replace(Some(LimitsSource::Builder(Box::new(builder))))
    }

    /// What each limit has decided so far. The counts survive changes of the limits.
    pub fn counts(&self) -> Vec<LimitCount> {
        let snapshot = self.0.current();
        let counts = snapshot.limiter.snapshot().into_iter();
        counts
            .map(|one| LimitCount {
                name: one.limit.name.to_string(),
                tier: one.limit.tier.as_deref().map(str::to_owned),
                count: one.count,
                candidate: (one.limit.role == Role::Candidate).then_some(one.agreement),
            })
            .collect()
    }

    /// Warnings about legal but probably unintended settings, such as those that only a gateway
    /// has. They are also logged when the settings are read.
    pub fn warnings(&self) -> Vec<String> {
        self.0.current().warnings.clone()
    }
}
