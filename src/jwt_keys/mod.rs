//! Fetches the keys that verify tokens, from the URL that an identity names, and hands them to the
//! policy in force. No request waits for it: a token by a key that is not there is refused at once,
//! and wakes the fetcher.
//!
//! Keys stay in force until others are fetched. They are kept in a file for the next start; without
//! any, the gateway starts, and tokens get 503.

mod cached;
mod fetch;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::admin::Standing;
use crate::own_thread::OwnThread;
use cached::{CacheFile, Cached};
use tollgate_gateway::forward::tls::client_config;
use tollgate_policy::Policy;
use tollgate_policy::jwt::{JwtPolicy, KeysUrl};
use tollgate_policy::upstream::TlsFiles;
use tollgate_store::clock::Clock;
use tollgate_telemetry::metrics::Samples;

/// The fetched keys of a gateway. Clones share them.
#[derive(Clone)]
pub(crate) struct JwtKeys(Arc<Kept>);

struct Kept {
    clock: Clock,
    cache: Option<Arc<CacheFile>>,
    running: Mutex<Running>,
}

/// What is fetched for one policy, and the thread that does it; it ends when this is dropped.
#[derive(Default)]
struct Running {
    providers: Providers,
    thread: Option<OwnThread>,
}

/// The providers of the keys of a policy, one for each identity with such keys.
pub(crate) type Providers = Arc<[Arc<Provider>]>;

pub(crate) struct Provider {
    policy: Arc<Policy>,
    /// The index of the identity, whose tokens are verified by the keys.
    identity: usize,
    from: KeysUrl,
    tls: Arc<ClientConfig>,
    clock: Clock,
    cache: Option<Arc<CacheFile>>,
    /// Whether a start or a reload has fetched already.
    is_fetched: AtomicBool,
    unknown_key: Arc<UnknownKey>,
    state: Mutex<State>,
}

/// Woken by a token whose key is not there. The policy holds it, so it holds no policy.
#[derive(Default)]
struct UnknownKey(Notify);

#[derive(Clone, Default)]
struct State {
    /// The document in force, and when it was fetched last: seconds since the Unix epoch.
    document: Option<(Bytes, u64)>,
    /// Why the last attempt failed.
    failure: Option<String>,
    /// How many attempts in a row failed.
    failures: u32,
    fetched: u64,
    failed: u64,
}

impl JwtKeys {
    /// The keys for `policy`: those of the file beside the state file, otherwise fetched now, once.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn start(
        policy: &Arc<Policy>,
        state_file: Option<&Path>,
        clock: &Clock,
    ) -> Result<Self, String> {
        let keys = Self(Arc::new(Kept {
            clock: clock.clone(),
            cache: state_file.map(|file| Arc::new(CacheFile::of(file))),
            running: Mutex::default(),
        }));
        let providers = keys.providers(policy)?;
        fetch_missing(&providers);
        keys.0.running.lock().providers = providers;
        Ok(keys)
    }

    /// The providers for the policy of a reload. Those that are new have been fetched from.
    ///
    /// # Errors
    /// If keys cannot be fetched from a new provider: callers of the policy in force keep theirs.
    pub(crate) fn next(&self, policy: &Arc<Policy>) -> Result<Providers, String> {
        let providers = self.providers(policy)?;
        fetch_missing(&providers);
        let lacking =
            |one: &&Arc<Provider>| one.is_fetched.load(Ordering::Acquire) && one.lacks_keys();
        match providers.iter().find(lacking) {
            Some(one) => Err(format!(
                "`identities.{}.jwt`: the keys cannot be fetched: {}",
                one.name(),
                one.state.lock().failure.as_deref().unwrap_or_default()
            )),
            None => Ok(providers),
        }
    }

    /// Fetches from these providers from now on, in place of those before.
    ///
    /// # Errors
    /// If no thread can be made.
    pub(crate) fn fetch(&self, providers: Providers) -> io::Result<()> {
        let mut running = self.0.running.lock();
        // The thread before must not put an older document in the file.
        *running = Running::default();
        if !providers.is_empty() {
            let all = Arc::clone(&providers);
            running.thread = Some(OwnThread::start(
                "jwt-keys",
                move |mut stopped| async move {
                    let mut tasks = JoinSet::new();
                    for one in all.iter() {
                        tasks.spawn(Arc::clone(one).keep());
                    }
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                },
            )?);
        }
        running.providers = providers;
        Ok(())
    }

    /// The providers in force.
    pub(crate) fn in_force(&self) -> Providers {
        Arc::clone(&self.0.running.lock().providers)
    }

    fn providers(&self, policy: &Arc<Policy>) -> Result<Providers, String> {
        let before = self.in_force();
        let mut list = Vec::new();
        for (index, identity) in policy.identities.iter().enumerate() {
            let Some(jwt) = &identity.jwt else { continue };
            let Some(from) = jwt.fetched_from() else {
                continue;
            };
            let files = TlsFiles {
                ca: from.settings.ca_file.clone(),
                ..TlsFiles::default()
            };
            let one = Arc::new(Provider {
                policy: Arc::clone(policy),
                identity: index,
                from: from.clone(),
                tls: client_config(&files, false)?,
                clock: self.0.clock.clone(),
                cache: self.0.cache.clone(),
                is_fetched: AtomicBool::new(false),
                unknown_key: Arc::default(),
                state: Mutex::default(),
            });
            let known = before.iter().find(|known| known.name() == one.name());
            one.adopt(known.map(|known| &**known));
            jwt.on_unknown_key(Waker::from(Arc::clone(&one.unknown_key)));
            list.push(one);
        }
        Ok(list.into())
    }

    pub(crate) fn samples(&self, to: &mut Samples) {
        for one in self.in_force().iter() {
            let (name, state) = (one.name(), one.state.lock().clone());
            let help = "Attempts to fetch the keys of an identity's tokens";
            for (result, count) in [("fetched", state.fetched), ("failed", state.failed)] {
                to.counter(
                    "jwt_keys_fetches",
                    help,
                    &[("identity", name), ("result", result)],
                    count,
                );
            }
            let help = "When the keys of an identity's tokens were fetched last: seconds since the Unix epoch; 0: there are none";
            let at = state.document.map_or(0, |(_, at)| at);
            to.gauge(
                "jwt_keys_fetched_timestamp_seconds",
                help,
                &[("identity", name)],
                at as f64,
            );
        }
    }

    /// A condition for each provider. The gateway is not ready if every route needs keys that it does
    /// not have.
    pub(crate) fn conditions(&self) -> Vec<(String, Standing)> {
        let providers = self.in_force();
        let lacks = |identity: &usize| {
            let mut all = providers.iter();
            all.any(|one| one.identity == *identity && one.lacks_keys())
        };
        let is_lame = providers.first().is_some_and(|one| {
            let mut routes =
                (0..one.policy.routes.len()).map(|route| one.policy.identities_of(route));
            routes.all(|identities| identities.iter().any(lacks))
        });
        let condition =
            |one: &Arc<Provider>| (format!("jwt keys {}", one.name()), one.standing(is_lame));
        providers.iter().map(condition).collect()
    }
}

/// Fetches once from each provider whose keys are not known, all at the same time; waits for the
/// slowest, within its time.
fn fetch_missing(providers: &Providers) {
    let missing = |one: &&Arc<Provider>| {
        !one.is_fetched.load(Ordering::Acquire)
            && one.state.lock().failures == 0
            && one.lacks_keys()
    };
    let missing: Vec<_> = providers.iter().filter(missing).cloned().collect();
    if missing.is_empty() {
        return;
    }
    let fetched = OwnThread::start("jwt-keys", move |_| async move {
        let mut tasks = JoinSet::new();
        for one in missing {
            tasks.spawn(async move {
                one.attempt().await;
                one.is_fetched.store(true, Ordering::Release);
            });
        }
        tasks.join_all().await;
    });
    // The thread ends by itself; the keys are fetched later if there is none.
    if let Err(error) = fetched {
        tracing::warn!(%error, "keys are not fetched before the first request");
    }
}

impl Wake for UnknownKey {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

impl Provider {
    fn name(&self) -> &str {
        &self.policy.identities[self.identity].name
    }

    fn jwt(&self) -> &JwtPolicy {
        let jwt = self.policy.identities[self.identity].jwt.as_ref();
        jwt.expect("a provider is made for an identity with keys")
    }

    fn lacks_keys(&self) -> bool {
        self.state.lock().document.is_none()
    }

    /// Takes over what is known of the identity: from the provider before, if it is the same URL,
    /// otherwise from the file.
    fn adopt(&self, before: Option<&Self>) {
        let url = self.from.url.to_string();
        let mut state = before.map_or_else(State::default, |before| before.state.lock().clone());
        if before.is_some_and(|before| before.from.url != self.from.url) {
            (state.document, state.failure, state.failures) = (None, None, 0);
        }
        if state.document.is_none() {
            let cached = self
                .cache
                .as_ref()
                .and_then(|cache| cache.find(self.name()));
            let cached = cached.filter(|cached| cached.url == url);
            state.document = cached.map(|cached| (Bytes::from(cached.document), cached.at));
        }
        // Other algorithms may be accepted now.
        let in_force = |(document, _): &(Bytes, u64)| self.jwt().replace_keys(document).is_ok();
        state.document = state.document.filter(in_force);
        *self.state.lock() = state;
    }

    /// Fetches again and again: before the keys are old, and when a token names one that is not there.
    async fn keep(self: Arc<Self>) {
        let settings = &self.from.settings;
        let unknown_kid = Duration::from(settings.unknown_kid);
        if !self.is_fetched.load(Ordering::Acquire) {
            self.attempt().await;
        }
        loop {
            let failures = self.state.lock().failures;
            let refresh = Duration::from(settings.refresh);
            let wait = match failures {
                // Many gateways that started together do not ask together.
                0 => refresh.mul_f64(0.9 + fastrand::f64() * 0.1),
                _ => refresh.min(
                    BACKOFF
                        .saturating_mul(1 << (failures - 1).min(6))
                        .min(BACKOFF_MAX),
                ),
            };
            let quiet = unknown_kid.min(wait);
            tokio::time::sleep(quiet).await;
            tokio::select! {
                () = tokio::time::sleep(wait - quiet) => {}
                () = self.unknown_key.0.notified() => {}
            }
            self.attempt().await;
        }
    }

    async fn attempt(&self) {
        let timeout = Duration::from(self.from.settings.timeout);
        let fetched = tokio::time::timeout(timeout, fetch::keys(&self.from, &self.tls)).await;
        let late = || Err(format!("{}: no response in {timeout:?}", self.from.url));
        let taken = fetched
            .unwrap_or_else(|_| late())
            .and_then(|document| self.take(document));
        let mut state = self.state.lock();
        let identity = self.name();
        match taken {
            Ok(()) => {
                if state.failures > 0 {
                    tracing::info!(identity, "the keys of its tokens are fetched again");
                }
                (state.failure, state.failures) = (None, 0);
                state.fetched += 1;
            }
            Err(why) => {
                // The first one is told; the others are counted.
                if state.failures == 0 {
                    let in_force = match state.document {
                        Some(_) => "those in force stay",
                        None => "there are none, so tokens get 503",
                    };
                    tracing::warn!(
                        identity,
                        why,
                        "the keys of its tokens cannot be fetched: {in_force}"
                    );
                }
                state.failures = state.failures.saturating_add(1);
                state.failed += 1;
                state.failure = Some(why);
            }
        }
    }

    /// Puts a document in force, if it is another one.
    fn take(&self, document: Bytes) -> Result<(), String> {
        let (url, identity) = (self.from.url.to_string(), self.name());
        let at = self.clock.wall().as_micros() / 1_000_000;
        let is_new = {
            let state = self.state.lock();
            !state
                .document
                .as_ref()
                .is_some_and(|(known, _)| *known == document)
        };
        if is_new {
            let keys = self.jwt().replace_keys(&document);
            let keys = keys.map_err(|why| format!("{url}: {why}"))?;
            tracing::info!(identity, keys, "new keys of its tokens are in force");
            if let Some(cache) = &self.cache {
                let document = String::from_utf8_lossy(&document).into_owned();
                cache.keep(identity, Cached { url, at, document });
            }
        }
        self.state.lock().document = Some((document, at));
        Ok(())
    }

    fn standing(&self, is_lame: bool) -> Standing {
        let state = self.state.lock().clone();
        let why = state.failure;
        let Some((_, at)) = state.document else {
            let why = why.unwrap_or_else(|| "they have not been fetched yet".to_owned());
            return match is_lame {
                true => {
                    Standing::Fails(format!("there are none, so every route answers 503: {why}"))
                }
                false => Standing::Strained(format!("there are none, so tokens get 503: {why}")),
            };
        };
        let seconds = i64::try_from(at).unwrap_or_default();
        let at = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        match why {
            None => Standing::HoldsWith(format!("fetched at {at}")),
            Some(why) => Standing::Strained(format!("those fetched at {at} are in force: {why}")),
        }
    }
}

/// The wait after an attempt that failed; it doubles with each.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
