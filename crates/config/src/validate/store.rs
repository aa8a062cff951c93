use crate::raw::RawStore;
use crate::reading::{At, Context, Field, Mirror, Word as _, near_or};
use crate::settings::{Secret, Store, StoreKind, StoreTls, Topology};
use crate::values::certificates::pair;
use tollgate_limit::Micros;

/// `[store]`; `None` if there is none, or if it cannot be used (which was reported).
pub(crate) fn store(field: &Field<RawStore>, context: &mut Context<'_>) -> Option<Store> {
    let raw = field.get()?;
    if raw.url.is_absent() && raw.url_file.is_absent() {
        context
            .error("`store` needs `url`", raw.place, "`url` is missing")
            .help("write url = \"redis://127.0.0.1:6379/0\", or url = \"${REDIS_URL}\"");
    }
    if raw.key_secret.is_absent() && raw.key_secret_file.is_absent() {
        context
            .error("`store` needs `key_secret`", raw.place, "`key_secret` is missing")
            .note("keys in a shared store are keyed hashes, never raw: a reader of the store must not learn which callers there are")
            .help("write key_secret = \"${TOLLGATE_KEY_SECRET}\" and set the variable to the same value for every gateway: openssl rand -hex 32");
    }
    let kind = raw.kind.get();
    let url = url(raw, context);
    let topology = match (kind, &url) {
        (Some(kind), Some(url)) => topology(kind, url, raw, context),
        _ => None,
    };
    for (key, place) in raw.written(["create", "synchronous_commit"]) {
        let (store, why) = match (kind.map(|kind| kind.value), key) {
            (Some(StoreKind::Redis), "create") => ("Redis", "nothing needs to be created there"),
            (Some(StoreKind::Redis), _) => ("Redis", "its own `appendfsync` decides that"),
            (Some(StoreKind::Mysql), "synchronous_commit") => (
                "MariaDB and MySQL",
                "their own `innodb_flush_log_at_trx_commit` decides that",
            ),
            _ => continue,
        };
        context.error(format!("`{key}` means nothing for {store}"), place, why);
    }
    let tls = tls(raw, url.as_ref(), context);
    let password = context.secret("password", &raw.password, &raw.password_file);
    let key_secret = key_secret(raw, context);
    let answer_within = raw.answer_within().value;
    if let Some(place) = raw.answer_within.place()
        && answer_within > Micros::from_secs(1)
    {
        let title = "a request may wait for the store longer than a second";
        context
            .warning(title, place, "and with it the client")
            .help("20ms to 50ms are usual within a data centre");
    }
    Some(Store {
        kind: kind?.value,
        topology: topology?,
        url: url?.value,
        username: raw.username.get().map(|name| name.as_str().to_owned()),
        password: password.map(|at| at.value),
        answer_within,
        when_down: raw.when_down.get()?.value,
        replicas: raw.replicas().value,
        key_secret: key_secret?,
        synchronous_commit: raw.synchronous_commit().value,
        create: raw.create().value,
        audit: raw.audit().value,
        tls,
    })
}

/// The trusted authorities and our certificate for the store's TLS; an error with a URL without TLS.
fn tls(raw: &RawStore, url: Option<&At<Secret>>, context: &mut Context<'_>) -> StoreTls {
    let (certificate, key) = (&raw.client_certificate, &raw.client_key);
    let at = |key: &str| context.place(&format!("store.{key}"));
    let places = [at("ca_file"), at("client_certificate"), at("client_key")];
    pair(places[1], places[2], context);
    let scheme = url.and_then(|url| url.value.expose().split_once(':'));
    let clear = match scheme {
        Some((
            "redis" | "valkey" | "unix" | "redis+unix" | "redis+sentinel" | "redis+cluster",
            _,
        )) => Some("write rediss:// for TLS"),
        Some(("valkey+sentinel" | "valkey+cluster", _)) => Some("write valkeys+… for TLS"),
        Some(("mysql" | "mariadb", rest)) if rest.contains("ssl-mode=disabled") => {
            Some("write ssl-mode=required for TLS")
        }
        Some((_, rest)) if rest.contains("sslmode=disable") => {
            Some("write sslmode=require for TLS")
        }
        _ => None,
    };
    for (key, place) in ["ca_file", "client_certificate"].into_iter().zip(places) {
        if let (Some(place), Some(help)) = (place, clear) {
            let title = format!("`{key}` for a store without TLS");
            let label = "the URL says that nothing is encrypted";
            context.error(title, place, label).help(help);
        }
    }
    StoreTls {
        ca: raw.ca_file.get().map(|at| at.value.clone()),
        client: certificate
            .get()
            .zip(key.get())
            .map(|(certificate, key)| (certificate.value.clone(), key.value.clone())),
    }
}

fn key_secret(raw: &RawStore, context: &mut Context<'_>) -> Option<Secret> {
    let secret = context.secret("key_secret", &raw.key_secret, &raw.key_secret_file)?;
    let fits = context.is_long("key_secret", &secret, "make one: openssl rand -hex 32");
    fits.then_some(secret.value)
}

fn url(raw: &RawStore, context: &mut Context<'_>) -> Option<At<Secret>> {
    if let (Some(url), true) = (raw.url.get(), raw.url_file.is_absent()) {
        let written = url.as_str();
        let password = written.find("://").and_then(|start| {
            let authority = &written[start + 3..];
            let authority = &authority[..authority.find('/').unwrap_or(authority.len())];
            let (user, _) = authority.rsplit_once('@')?;
            let colon = user.find(':')?;
            (colon + 1 < user.len()).then_some((start + 3 + colon + 1, start + 3 + user.len()))
        });
        match password.or_else(|| password_parameter(written)) {
            // The rest of the URL may be in the file.
            Some((start, end)) if !url.is_from_environment(start, end) => {
                let title = "a password is written in clear in the file";
                context.in_clear(title, url.part(start, end)).help("read the URL from the environment: url = \"${STORE_URL}\"; or from a file of its own: url_file = \"…\"");
                return None;
            }
            _ => return Some(url.with(Secret::new(written))),
        }
    }
    context.secret("url", &raw.url, &raw.url_file)
}

/// The position of a password among the parameters of an address:
/// `unix:/run/redis.sock?user=u&pass=p`.
fn password_parameter(written: &str) -> Option<(usize, usize)> {
    let mut start = written.find('?')? + 1;
    for part in written[start..].split('&') {
        if let Some((name, value)) = part.split_once('=')
            && ["pass", "password", "sslpassword"].contains(&name)
            && !value.is_empty()
        {
            return Some((start + name.len() + 1, start + part.len()));
        }
        start += part.len() + 1;
    }
    None
}

/// The schemes of stores, without the `s` of TLS.
const SCHEMES: [(&str, StoreKind, Topology); 12] = [
    ("redis", StoreKind::Redis, Topology::Single),
    ("valkey", StoreKind::Redis, Topology::Single),
    ("unix", StoreKind::Redis, Topology::Single),
    ("redis+unix", StoreKind::Redis, Topology::Single),
    ("redis+sentinel", StoreKind::Redis, Topology::Sentinel),
    ("valkey+sentinel", StoreKind::Redis, Topology::Sentinel),
    ("redis+cluster", StoreKind::Redis, Topology::Cluster),
    ("valkey+cluster", StoreKind::Redis, Topology::Cluster),
    ("postgres", StoreKind::Postgres, Topology::Single),
    ("postgresql", StoreKind::Postgres, Topology::Single),
    ("mysql", StoreKind::Mysql, Topology::Single),
    ("mariadb", StoreKind::Mysql, Topology::Single),
];

/// The topology from the URL's scheme, checked against the kind.
fn topology(
    kind: &At<StoreKind>,
    url: &At<Secret>,
    raw: &RawStore,
    context: &mut Context<'_>,
) -> Option<Topology> {
    if raw.url.get().is_some_and(|url| url.assumed) {
        return Some(Topology::Single);
    }
    let text = url.value.expose();
    let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
    let plain = scheme
        .replacen("rediss", "redis", 1)
        .replacen("valkeys", "valkey", 1);
    let known = SCHEMES
        .iter()
        .find(|(name, ..)| *name == scheme || (*name == plain && !scheme.ends_with("+unix")));
    let Some((_, known, topology)) = known else {
        let names = SCHEMES.iter().map(|(name, ..)| *name);
        let otherwise = "redis://, rediss://, unix:, redis+sentinel://, redis+cluster://, postgres:// and mysql:// are known";
        let label = near_or(scheme, names.chain(["rediss", "valkeys"]), otherwise);
        context.error(format!("`{scheme}` is no store's scheme"), url.place, label);
        return None;
    };
    if *known != kind.value {
        let title = format!(
            "a `{scheme}` URL for a store of kind \"{}\"",
            kind.value.word()
        );
        context
            .error(title, url.place, "this is of another kind")
            .at(kind.place, "the kind");
        return None;
    }
    let master = text
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'));
    if *topology == Topology::Sentinel && master.is_none_or(|(_, name)| name.is_empty()) {
        let title = "a Sentinel URL needs the name of the master";
        let place = raw.url.place().unwrap_or(url.place);
        context
            .error(title, place, "the part after `/` is missing")
            .help("write redis+sentinel://a:26379,b:26379,c:26379/mymaster");
        return None;
    }
    Some(*topology)
}
