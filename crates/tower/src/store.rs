//! A shared store that is named in code.

use std::time::Duration;

use tollgate_config::quoted;

pub use tollgate_limit::WhenDown;

/// The store that several instances of a service share: `[store]` in the file.
///
/// The build needs the feature `redis`, `postgres` or `mysql`, and `tls` for encrypted connections.
///
/// ```
/// use tollgate_tower::{Store, WhenDown};
///
/// let store = Store::redis("redis://127.0.0.1:6379/0", "a secret of all instances", WhenDown::LocalShare);
/// ```
#[derive(Clone)]
pub struct Store {
    kind: &'static str,
    url: String,
    key_secret: String,
    when_down: WhenDown,
    answer_within: Option<Duration>,
}

impl Store {
    /// Buckets in Redis or Valkey. `key_secret`: the secret with which names of buckets are hashed,
    /// the same for all that share them. `when_down`: how requests are treated while the store does
    /// not respond.
    pub fn redis(url: &str, key_secret: &str, when_down: WhenDown) -> Self {
        Self::new("redis", url, key_secret, when_down)
    }

    /// Buckets in PostgreSQL; the arguments are those of [`Store::redis`].
    pub fn postgres(url: &str, key_secret: &str, when_down: WhenDown) -> Self {
        Self::new("postgres", url, key_secret, when_down)
    }

    /// Buckets in MariaDB or MySQL; the arguments are those of [`Store::redis`].
    pub fn mysql(url: &str, key_secret: &str, when_down: WhenDown) -> Self {
        Self::new("mysql", url, key_secret, when_down)
    }

    fn new(kind: &'static str, url: &str, key_secret: &str, when_down: WhenDown) -> Self {
        Self {
            kind,
            url: url.to_owned(),
            key_secret: key_secret.to_owned(),
            when_down,
            answer_within: None,
        }
    }

    /// The longest that a request waits for the store.
    #[must_use]
    pub fn answer_within(mut self, most: Duration) -> Self {
        self.answer_within = Some(most);
        self
    }

    /// Appends the store as a table of the file; its secrets are variables ([`Store::variable`]).
    pub(super) fn write(&self, out: &mut String) {
        let when_down = match self.when_down {
            WhenDown::LocalShare => "local_share",
            WhenDown::Allow => "allow",
            WhenDown::Refuse => "refuse",
        };
        out.push_str(&format!(
            "[store]\nkind = \"{}\"\nurl = \"${{{URL}}}\"\nkey_secret = \"${{{KEY_SECRET}}}\"\nwhen_down = \"{when_down}\"\n",
            self.kind,
        ));
        if let Some(most) = self.answer_within {
            let text = quoted(&format!("{}us", most.as_micros()));
            out.push_str(&format!("answer_within = {text}\n"));
        }
        out.push('\n');
    }

    /// The value of a variable in the written table.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        match name {
            URL => Some(self.url.clone()),
            KEY_SECRET => Some(self.key_secret.clone()),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Store {
    /// Does not print the address, which may contain a password, or the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("kind", &self.kind)
            .field("when_down", &self.when_down)
            .finish_non_exhaustive()
    }
}

const URL: &str = "TOLLGATE_BUILDER_STORE_URL";
const KEY_SECRET: &str = "TOLLGATE_BUILDER_KEY_SECRET";
