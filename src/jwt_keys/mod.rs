//! Fetches the keys that verify tokens, from the URL that an identity names, and hands them to the
//! policy in force. No request waits for it: a token by a key that is not there is refused at once,
//! and wakes the fetcher.
//!
//! Keys stay in force until others are fetched. They are kept in a file for the next start; without
//! any, the gateway starts, and tokens get 503.

mod fetch;

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
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
use crate::app::state_file::{beside, private, replace_whole};
use crate::own_thread::OwnThread;
use tollgate_gateway::forward::tls::client_config;
use tollgate_policy::Policy;
use tollgate_policy::identity::jwt::{JwtPolicy, KeysUrl, without_query};
use tollgate_store::clock::Clock;
use tollgate_telemetry::metrics::Samples;

/// The fetched keys of a gateway. Clones share them.
#[derive(Clone)]
pub(crate) struct JwtKeys(Arc<Kept>);

struct Kept {
    clock: Clock,
    state_file: Option<PathBuf>,
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
    /// Where its document is kept: the URL in a line, and the document.
    file: Option<PathBuf>,
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
    /// The document in force, and when it was fetched last: seconds since the Unix epoch, or 0 where
    /// it is that of the run before.
    document: Option<(Bytes, u64)>,
    /// Why the last attempt failed.
    failure: Option<String>,
    /// How many attempts in a row failed, and how many in all.
    in_a_row: u32,
    failures: u64,
}

impl JwtKeys {
    /// The keys for `policy`: those of the run before, otherwise fetched now, once.
    pub(crate) fn start(
        policy: &Arc<Policy>,
        state_file: Option<&Path>,
        clock: &Clock,
    ) -> Result<Self, String> {
        let keys = Self(Arc::new(Kept {
            clock: clock.clone(),
            state_file: state_file.map(Path::to_owned),
            running: Mutex::default(),
        }));
        let providers = keys.providers(policy)?;
        keys.0.running.lock().providers = providers;
        Ok(keys)
    }

    /// The providers for the policy of a reload.
    /// The error: keys cannot be fetched from a new provider; callers of the policy in force keep theirs.
    pub(crate) fn next(&self, policy: &Arc<Policy>) -> Result<Providers, String> {
        let providers = self.providers(policy)?;
        let was_tried = |one: &&Arc<Provider>| one.is_fetched.load(Ordering::Acquire);
        let lacking = |one: &Arc<Provider>| {
            let state = one.state.lock();
            let why = state
                .failure
                .as_ref()
                .filter(|_| state.document.is_none())?;
            let name = one.name();
            Some(format!(
                "`identities.{name}.jwt`: the keys cannot be fetched: {why}"
            ))
        };
        match providers.iter().filter(was_tried).find_map(lacking) {
            Some(why) => Err(why),
            None => Ok(providers),
        }
    }

    /// Fetches from these providers from now on, in place of those before.
    pub(crate) fn fetch(&self, providers: Providers) -> io::Result<()> {
        let mut running = self.0.running.lock();
        // The thread before must not put an older document in a file.
        *running = Running::default();
        if !providers.is_empty() {
            let all = Arc::clone(&providers);
            let work = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
                let mut tasks = JoinSet::new();
                all.iter()
                    .cloned()
                    .for_each(|one| _ = tasks.spawn(one.keep()));
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            running.thread = Some(OwnThread::start("jwt-keys", work)?);
        }
        running.providers = providers;
        Ok(())
    }

    pub(crate) fn in_force(&self) -> Providers {
        Arc::clone(&self.0.running.lock().providers)
    }

    /// The providers for a policy, which gets the keys that are known; those of others are fetched once.
    fn providers(&self, policy: &Arc<Policy>) -> Result<Providers, String> {
        let before = self.in_force();
        let mut list = Vec::new();
        for (index, identity) in policy.identities.iter().enumerate() {
            let jwt = identity.jwt.as_ref();
            let Some((jwt, from)) = jwt.and_then(|jwt| Some((jwt, jwt.fetched_from()?))) else {
                continue;
            };
            let ending = format!(".jwt-keys.{}", identity.name);
            let state_file = self.0.state_file.as_deref();
            let one = Arc::new(Provider {
                policy: Arc::clone(policy),
                identity: index,
                from: from.clone(),
                tls: client_config(&from.settings.tls, false)?,
                clock: self.0.clock.clone(),
                file: state_file.map(|file| beside(file, &ending)),
                is_fetched: AtomicBool::new(false),
                unknown_key: Arc::default(),
                state: Mutex::default(),
            });
            let same = |known: &&Arc<Provider>| {
                known.name() == one.name() && known.from.url == one.from.url
            };
            one.adopt(
                before
                    .iter()
                    .find(same)
                    .map(|known| known.state.lock().clone()),
            );
            jwt.on_unknown_key(Waker::from(Arc::clone(&one.unknown_key)));
            list.push(one);
        }
        fetch_missing(&list);
        Ok(list.into())
    }

    pub(crate) fn samples(&self, to: &mut Samples) {
        for one in self.in_force().iter() {
            let (labels, state) = ([("identity", one.name())], one.state.lock().clone());
            let help = "Attempts to fetch the keys of an identity's tokens that failed";
            to.counter("jwt_keys_failures", help, &labels, state.failures);
            let help = "When the keys of an identity's tokens were fetched last: seconds since the Unix epoch; 0: not by this process";
            let at = state.document.map_or(0, |(_, at)| at);
            to.gauge(
                "jwt_keys_fetched_timestamp_seconds",
                help,
                &labels,
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
        let no_route_is_served = providers.first().is_some_and(|one| {
            let mut routes = 0..one.policy.routes.len();
            let is_refused = |route| one.policy.identities_of(route).iter().any(lacks);
            !routes.is_empty() && routes.all(is_refused)
        });
        let standing = |one: &Arc<Provider>| one.standing(no_route_is_served);
        let all = providers.iter();
        all.map(|one| (format!("jwt keys {}", one.name()), standing(one)))
            .collect()
    }
}

/// Fetches once from each provider that is new and whose keys are not known, all at the same time;
/// waits for the slowest, within its time.
fn fetch_missing(providers: &[Arc<Provider>]) {
    let is_new = |one: &&Arc<Provider>| one.state.lock().in_a_row == 0 && one.lacks_keys();
    let missing: Vec<_> = providers.iter().filter(is_new).cloned().collect();
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
    // The keys are fetched later if there is no thread. Otherwise it is awaited here.
    if let Err(error) = fetched {
        tracing::warn!(%error, "keys are not fetched before the first request");
    }
}

impl Wake for UnknownKey {
    fn wake(self: Arc<Self>) {
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

    /// Takes over what the provider before knew, if it was the same URL, or the document of the run before.
    fn adopt(&self, before: Option<State>) {
        let mut state = before.unwrap_or_default();
        let kept = || Some((self.kept()?, 0));
        // Other algorithms may be accepted now.
        let is_good = |(document, _): &(Bytes, u64)| self.jwt().replace_keys(document).is_ok();
        state.document = state.document.or_else(kept).filter(is_good);
        *self.state.lock() = state;
    }

    /// The document of the run before.
    fn kept(&self) -> Option<Bytes> {
        let mut content = String::new();
        let file = private().read(true).open(self.file.as_ref()?).ok()?;
        let most = 2 * fetch::DOCUMENT_MAX as u64;
        file.take(most).read_to_string(&mut content).ok()?;
        let (url, document) = content.split_once('\n')?;
        (self.from.url == *url).then(|| Bytes::copy_from_slice(document.as_bytes()))
    }

    /// Fetches again and again: before the keys are old, and when a token names one that is not there.
    async fn keep(self: Arc<Self>) {
        let settings = &self.from.settings;
        let refresh = Duration::from(settings.refresh);
        if !self.is_fetched.load(Ordering::Acquire) {
            self.attempt().await;
        }
        loop {
            let wait = match self.state.lock().in_a_row {
                // Many gateways that started together do not ask together.
                0 => refresh.mul_f64(0.9 + fastrand::f64() * 0.1),
                failed => refresh
                    .min(BACKOFF_MAX)
                    .min(BACKOFF * (1 << (failed - 1).min(6))),
            };
            let quiet = Duration::from(settings.unknown_kid).min(wait);
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
        let late = |_| {
            Err(format!(
                "{}: no response in {timeout:?}",
                without_query(&self.from.url)
            ))
        };
        let taken = fetched
            .unwrap_or_else(late)
            .and_then(|document| self.take(document));
        let mut state = self.state.lock();
        let (identity, in_a_row) = (self.name(), state.in_a_row);
        match taken {
            Ok(()) => {
                if in_a_row > 0 {
                    tracing::info!(identity, "the keys of its tokens are fetched again");
                }
                (state.failure, state.in_a_row) = (None, 0);
            }
            Err(why) => {
                // The first failure is logged; the others are only counted.
                if in_a_row == 0 {
                    let has_keys = state.document.is_some();
                    tracing::warn!(
                        identity,
                        why,
                        has_keys,
                        "the keys of its tokens cannot be fetched: those that it has stay, and without any its tokens get 503"
                    );
                }
                state.in_a_row = in_a_row.saturating_add(1);
                state.failures += 1;
                state.failure = Some(why);
            }
        }
    }

    /// Puts a document in force, if it is another one.
    fn take(&self, document: Bytes) -> Result<(), String> {
        let (url, identity) = (&self.from.url, self.name());
        let known = self.state.lock().document.clone();
        if known.is_none_or(|(known, _)| known != document) {
            let keys = self.jwt().replace_keys(&document);
            let keys = keys.map_err(|why| format!("{}: {why}", without_query(url)))?;
            tracing::info!(identity, keys, "new keys of its tokens are in force");
            let content = [url.to_string().as_bytes(), b"\n", &document].concat();
            let written = self
                .file
                .as_ref()
                .map(|file| replace_whole(file, |new| new.write_all(&content)));
            if let Some(Err(error)) = written {
                tracing::warn!(identity, %error, "the keys cannot be kept for the next start");
            }
        }
        let at = self.clock.wall().as_micros() / 1_000_000;
        self.state.lock().document = Some((document, at));
        Ok(())
    }

    fn standing(&self, no_route_is_served: bool) -> Standing {
        let state = self.state.lock().clone();
        let with_reason = |words: &str| match &state.failure {
            Some(why) => format!("{words}: {why}"),
            None => words.to_owned(),
        };
        let Some((_, at)) = state.document else {
            let words = with_reason("there are none, so tokens get 503");
            return match no_route_is_served {
                true => Standing::Fails(words),
                false => Standing::Strained(words),
            };
        };
        let at = jiff::Timestamp::from_second(at.cast_signed()).unwrap_or_default();
        let words = match at.as_second() {
            0 => with_reason("those of the run before"),
            _ => with_reason(&format!("those fetched at {at}")),
        };
        match state.failure {
            Some(_) => Standing::Strained(words),
            None => Standing::HoldsWith(words),
        }
    }
}

/// The wait after an attempt that failed; it doubles with each.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
