//! Opens and checks the configured store that gateways share.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::admin::{Standing, status};
use tollgate_config::settings::{Audit, Secret, Store, StoreKind};
use tollgate_limit::key::WHOLE;
use tollgate_limit::lease::Terms;
use tollgate_limit::{Algorithm, Limit, Micros, Mode, Placement, Role, WhenDown};
use tollgate_policy::Policy;
use tollgate_policy::route::Route;
use tollgate_store::audit::{Finding, Weight};
use tollgate_store::clock::Clock;
use tollgate_store::mysql::{self, MysqlOptions};
use tollgate_store::postgres::{self, PostgresOptions};
use tollgate_store::redis::{Address, RedisOptions};
use tollgate_store::tls::Tls;
use tollgate_store::{Backend, RemoteStore, Store as _};
use tollgate_telemetry::metrics::Samples;

/// How long a start waits for the audit; `when_down` handles a store that does not respond by then.
const AUDIT_WITHIN: Duration = Duration::from_secs(3);

/// How long a start, or a reload with another store, waits until the store is connected or has
/// failed.
const FIRST_TRY_WITHIN: Duration = Duration::from_secs(1);

/// The store's address, checked as far as possible without connecting.
enum Place {
    Redis(Address),
    Postgres(String),
    Mysql(String),
}

/// Checks the settings as [`open`] does, without connecting. The error says which are invalid.
pub(super) fn check(store: &Store) -> Result<(), String> {
    place(store, &tls(store)?).map(drop)
}

fn place(store: &Store, tls: &Tls) -> Result<Place, String> {
    let url = with_credentials(store);
    match store.kind {
        StoreKind::Redis => {
            let address = Address::parse(&url)
                .and_then(|address| address.with_tls(tls))
                .and_then(|address| {
                    address.check()?;
                    Ok(address)
                });
            address.map(Place::Redis).map_err(|error| error.to_string())
        }
        StoreKind::Postgres => {
            postgres::check_address(&url).map_err(|error| error.to_string())?;
            Ok(Place::Postgres(url))
        }
        StoreKind::Mysql => {
            mysql::check_address(&url).map_err(|error| error.to_string())?;
            Ok(Place::Mysql(url))
        }
    }
}

/// Opens the store and waits for its first connection; later it reconnects by itself. The error
/// says which settings are invalid. `limits` are those that use the store: the audit checks whether
/// it could lose their state.
pub(super) fn open(
    store: Option<&Store>,
    limits: &[Arc<Limit>],
    clock: &Clock,
) -> Result<Backend, String> {
    let Some(store) = store else {
        return Ok(Backend::None);
    };
    let key_secret = store.key_secret.expose().as_bytes().to_vec();
    let tls = tls(store)?;
    let long_quotas = has_long_quotas(limits);
    let opened = match place(store, &tls)? {
        Place::Redis(address) => RedisOptions {
            address,
            answer_within: store.answer_within,
            key_secret,
            clock: clock.clone(),
            pinned: None,
            local_refusals: true,
            long_quotas,
        }
        .start(),
        Place::Postgres(url) => {
            let options = PostgresOptions {
                url,
                answer_within: store.answer_within,
                key_secret,
                clock: clock.clone(),
                pinned: None,
                local_refusals: true,
                create: store.create,
                synchronous_commit: store.synchronous_commit,
                tls,
                long_quotas,
            };
            options.start()
        }
        Place::Mysql(url) => {
            let options = MysqlOptions {
                url,
                answer_within: store.answer_within,
                key_secret,
                clock: clock.clone(),
                pinned: None,
                local_refusals: true,
                create: store.create,
                tls,
                long_quotas,
            };
            options.start()
        }
    };
    let opened = opened.map_err(|error| error.to_string())?;
    // Otherwise the first requests would be granted from local shares, in addition to the grants of
    // the store.
    wait_for(async {
        opened.tried(FIRST_TRY_WITHIN).await;
        true
    })?;
    if store.audit == Audit::Refuse {
        refuse_what_loses_buckets(&opened)?;
    }
    Ok(Backend::Remote(opened.with_replicas(store.replicas)))
}

/// Changes the limits while the store stays the same. The audit checks whether limits of a day or
/// longer are now among them and, if it refuses, whether the store has changed. The error is the
/// refusal; then nothing has changed.
pub(super) fn change_limits(
    settings: Option<&Store>,
    store: &Backend,
    before: &[Arc<Limit>],
    limits: &[Arc<Limit>],
) -> Result<(), String> {
    let (Some(settings), Some(store)) = (settings, store.remote()) else {
        return Ok(());
    };
    let (had, has) = (has_long_quotas(before), has_long_quotas(limits));
    let refuses = settings.audit == Audit::Refuse;
    if had == has && !refuses {
        return Ok(());
    }
    let audited = wait_for(store.audit_again(has, AUDIT_WITHIN))?;
    let outcome = if audited {
        no_refusal(store)
    } else {
        let told =
            "the shared store did not answer: its settings are not audited for the new limits";
        tracing::warn!("{told}");
        // `when_down` handles a store that does not respond, and this reload may be meant to repair
        // it.
        if has && !had {
            Err(format!("{told} (audit = \"refuse\")"))
        } else {
            Ok(())
        }
    };
    if !refuses {
        return Ok(());
    }
    if outcome.is_err() && had != has {
        // A store that does not respond is not awaited again; it is audited once it does.
        let within = if audited {
            AUDIT_WITHIN
        } else {
            Duration::ZERO
        };
        wait_for(store.audit_again(had, within))?;
    }
    outcome
}

fn has_long_quotas(limits: &[Arc<Limit>]) -> bool {
    limits
        .iter()
        .any(|limit| limit.placement == Placement::Shared && period(limit) >= DAY)
}

/// Whether the gateway is ready with regard to the store: while any route can be served without it.
/// A route that cannot be served should not take the others away, on all gateways at once.
pub(super) fn standing(store: &RemoteStore, policy: &Policy) -> Standing {
    let words = without_store(&policy.limits);
    let Some(why) = why_not(store) else {
        let Some(why) = why_not_all(store) else {
            return Standing::Holds;
        };
        return Standing::Strained(format!("{why}; for buckets in its slots {words}"));
    };
    let (refused, all) = (
        policy
            .routes
            .iter()
            .filter(|route| needs_store(route, policy))
            .count(),
        policy.routes.len(),
    );
    match refused {
        0 => Standing::Strained(format!("{why}; {words}")),
        _ if refused == all => Standing::Fails(format!("{why}; {words}: every route answers 503")),
        _ => Standing::Strained(format!(
            "{why}; {words}: {refused} of {all} routes answer 503"
        )),
    }
}

/// Whether a route refuses its requests while the store does not respond.
fn needs_store(route: &Route, policy: &Policy) -> bool {
    let refuses = |limit: &Limit| {
        limit.placement == Placement::Shared
            && limit.when_down == WhenDown::Refuse
            && limit.mode == Mode::Enforce
            && limit.enforce_for >= WHOLE
    };
    route.limits.iter().any(|limit| {
        let rule = &policy.rules[limit.rule];
        // If a tier has numbers of its own and its callers pass, the route still works for some
        // callers.
        refuses(&rule.live) && rule.tiers.iter().all(|(_, limit)| refuses(limit))
    })
}

/// The state of the store for the status.
pub(super) fn status(
    settings: &Store,
    store: &RemoteStore,
    limits: &[Arc<Limit>],
) -> status::Store {
    let why_not = why_not(store);
    let finding = |finding: Finding| status::Finding {
        weight: finding.weight.label(),
        message: finding.message,
    };
    status::Store {
        kind: settings.kind.word(),
        answers: why_not.is_none(),
        when_down: why_not.is_some().then(|| without_store(limits)),
        why_not: why_not.or_else(|| why_not_all(store)),
        replicas: store.replicas(),
        audit: store.findings().into_iter().map(finding).collect(),
    }
}

/// The reason why the store does not respond; `None`: it does.
fn why_not(store: &RemoteStore) -> Option<String> {
    let health = store.health();
    match (health.up, health.last_error.is_empty()) {
        (true, _) => None,
        (false, false) => Some(health.last_error),
        (false, true) => Some("not connected yet".to_owned()),
    }
}

/// The reason why some masters of a cluster do not respond, while others do.
fn why_not_all(store: &RemoteStore) -> Option<String> {
    let health = store.health();
    let partly = health.up && health.down > 0;
    partly.then(|| {
        format!(
            "{} of {} masters do not answer: {}",
            health.down, health.servers, health.last_error
        )
    })
}

/// Describes how shared limits behave without their store.
fn without_store(limits: &[Arc<Limit>]) -> String {
    let mut rules: Vec<&str> = limits
        .iter()
        .filter(|limit| limit.placement == Placement::Shared)
        .map(|limit| match limit.when_down {
            WhenDown::LocalShare => "local_share",
            WhenDown::Allow => "allow",
            WhenDown::Refuse => "refuse",
        })
        .collect();
    rules.sort_unstable();
    rules.dedup();
    if rules.is_empty() {
        return "no limit lives there".to_owned();
    }
    format!("limits go on by when_down = {}", rules.join(", "))
}

/// Metrics of leases: grants, costs, and the largest number of idle units in them.
#[expect(clippy::cast_precision_loss, reason = "gauges to be read by people")]
pub(super) fn lease_samples(store: &RemoteStore, limits: &[Arc<Limit>], samples: &mut Samples) {
    let leased = || {
        limits
            .iter()
            .filter(|limit| limit.lease && limit.placement == Placement::Shared)
    };
    let Some(counters) = store.lease_counters().filter(|_| leased().next().is_some()) else {
        return;
    };
    let out = counters.out.load(Ordering::Relaxed);
    samples.gauge("store_leases_out", "Leases held now", &[], out as f64);
    for (name, help, count) in counters.named() {
        samples.counter(name, help, &[], count);
    }
    for (limit, terms) in
        leased().filter_map(|limit| Some((limit, Terms::of(&limit.algorithm).ok()?)))
    {
        let help = "Units of each bucket that may lie idle in leases, all gateways together";
        let mut labels = vec![("limit", &*limit.name)];
        labels.extend(limit.tier.as_deref().map(|tier| ("tier", tier)));
        if limit.role == Role::Live {
            samples.gauge("limit_lease_bound_units", help, &labels, terms.most as f64);
        }
    }
}

const DAY: Micros = Micros::from_secs(86_400);

/// The time in which a limit refills completely.
pub(super) fn period(limit: &Limit) -> Micros {
    match &limit.algorithm {
        Algorithm::TokenBucket(bucket) => bucket.quota().time_for(bucket.quota().burst),
        Algorithm::WarmUp(_) | Algorithm::InFlight(_) => Micros::ZERO,
        Algorithm::Interval(bucket) | Algorithm::FixedWindow(bucket) => bucket.quota().period,
        Algorithm::SlidingWindow(window) => window.quota().period,
        Algorithm::SlidingLog(log) => log.quota().period,
    }
}

/// The files of the store's TLS.
fn tls(store: &Store) -> Result<Tls, String> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
    let tls = Tls {
        ca: store.tls.ca.as_deref().map(read).transpose()?,
        client: store
            .tls
            .client
            .as_ref()
            .map(|(chain, key)| Ok::<_, String>((read(chain)?, read(key)?)))
            .transpose()?,
    };
    tls.check()?;
    Ok(tls)
}

/// The audit's refusals, as an error; the store's own thread logs the warnings.
fn refuse_what_loses_buckets(store: &RemoteStore) -> Result<(), String> {
    if !wait_for(store.ready(AUDIT_WITHIN))? {
        // If the store was audited and is refused, the audit has given the reason.
        if store.findings().is_empty() {
            let error = why_not(store).unwrap_or_default();
            tracing::warn!(%error, "the shared store did not answer at the start: its settings are not audited");
        }
    }
    no_refusal(store)
}

/// Waits for work that a store does on its own thread.
fn wait_for(done: impl Future<Output = bool> + Send) -> Result<bool, String> {
    // A separate thread, because the calling code may be inside a runtime, where blocking on a
    // future is not possible.
    let waited = std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()?;
            Ok::<_, std::io::Error>(runtime.block_on(done))
        });
        wait.join()
    });
    match waited {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the audit did not end well".to_owned()),
    }
}

fn no_refusal(store: &RemoteStore) -> Result<(), String> {
    let refusals: Vec<String> = store
        .findings()
        .into_iter()
        .filter(|finding| finding.weight == Weight::Refusal)
        .map(|finding| finding.message)
        .collect();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(format!("{} (audit = \"refuse\")", refusals.join("; ")))
}

/// The URL with the user and password that are configured separately.
fn with_credentials(store: &Store) -> String {
    let url = store.url.expose();
    if store.username.is_none() && store.password.is_none() {
        return url.to_owned();
    }
    if url.starts_with("unix:") || url.starts_with("redis+unix:") {
        return with_parameters(store, url);
    }
    // A URL without a scheme is invalid; its parser reports that.
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (known, hosts) = rest.split_once('@').unwrap_or(("", rest));
    let (known_user, known_password) = known.split_once(':').unwrap_or((known, ""));
    let user = store
        .username
        .as_deref()
        .map_or_else(|| known_user.to_owned(), encoded);
    let password = store
        .password
        .as_ref()
        .map_or_else(|| known_password.to_owned(), |one| encoded(one.expose()));
    let password = if password.is_empty() {
        password
    } else {
        format!(":{password}")
    };
    format!("{scheme}://{user}{password}@{hosts}")
}

/// A socket's address has them in its query.
fn with_parameters(store: &Store, url: &str) -> String {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let ours = [
        ("user", store.username.as_deref()),
        ("pass", store.password.as_ref().map(Secret::expose)),
    ];
    let replaced = |one: &str| {
        ours.iter()
            .any(|(name, value)| value.is_some() && one.split('=').next() == Some(name))
    };
    let mut parts: Vec<String> = query
        .split('&')
        .filter(|one| !one.is_empty() && !replaced(one))
        .map(str::to_owned)
        .collect();
    parts.extend(
        ours.iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?)))),
    );
    format!("{path}?{}", parts.join("&"))
}

/// `text` with everything but ASCII letters and digits percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
