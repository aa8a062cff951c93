//! `[store]`.

use super::Context;
use crate::problem::{Problem, nearest};
use crate::raw::{self, RawStore};
use crate::reader::Field;
use crate::scalar::Text;
use crate::settings::{Secret, Store, StoreKind, StoreTls, Topology};
use crate::source::At;
use tollgate_limit::{Micros, WhenDown};

/// Converts the mirror's value.
pub(crate) const fn when_down(raw: raw::WhenDown) -> WhenDown {
    match raw {
        raw::WhenDown::LocalShare => WhenDown::LocalShare,
        raw::WhenDown::Allow => WhenDown::Allow,
        raw::WhenDown::Refuse => WhenDown::Refuse,
    }
}

/// `[store]`; `None` if there is none, or if it cannot be used (which was reported).
pub(crate) fn store(field: &Field<RawStore>, context: &mut Context<'_>) -> Option<Store> {
    let raw = field.get()?;
    required(raw, context);
    let kind = raw.kind.get();
    let url = url(raw, context);
    let topology = match (kind, &url) {
        (Some(kind), Some(url)) => topology(kind, url, raw, context),
        _ => None,
    };
    let redis = kind.is_some_and(|kind| kind.value == StoreKind::Redis);
    for (key, place, why) in [
        (
            "create",
            raw.create.place(),
            "nothing needs to be created there",
        ),
        (
            "synchronous_commit",
            raw.synchronous_commit.place(),
            "its own `appendfsync` decides that",
        ),
    ] {
        if let (Some(place), true) = (place, redis) {
            context.push(Problem::error(format!("`{key}` means nothing for Redis")).at(place, why));
        }
    }
    let tls = tls(raw, url.as_ref(), context);
    let password = context
        .secret("password", &raw.password, &raw.password_file)
        .map(|at| at.value);
    let key_secret = key_secret(raw, context);
    let replicas = context
        .count(&raw.replicas(), 10_000)
        .and_then(|number| u32::try_from(number).ok());
    let answer_within = context.time(raw.answer_within());
    if let Some(place) = raw.answer_within.place()
        && answer_within > Micros::from_secs(1)
    {
        let problem = Problem::warning("a request may wait for the store longer than a second")
            .at(place, "and with it the caller");
        context.push(problem.help("20ms to 50ms are usual within a data centre"));
    }
    Some(Store {
        kind: kind?.value,
        topology: topology?,
        url: url?.value,
        username: raw.username.get().map(|name| name.as_str().to_owned()),
        password,
        answer_within,
        when_down: when_down(raw.when_down.get()?.value),
        replicas,
        key_secret: key_secret?,
        synchronous_commit: raw.synchronous_commit().value,
        create: raw.create().value,
        audit: raw.audit().value,
        tls,
    })
}

/// The trusted authorities and our certificate for the store's TLS; an error with a URL without
/// TLS.
fn tls(raw: &At<RawStore>, url: Option<&At<Secret>>, context: &mut Context<'_>) -> StoreTls {
    let client = pair(&raw.client_certificate, &raw.client_key, context);
    let ca = raw
        .ca_file
        .get()
        .and_then(|file| context.readable(file, "authorities are read from here"));
    let scheme = url
        .map(|url| url.value.expose())
        .and_then(|url| url.split_once(':'));
    let clear = match scheme {
        Some((
            "redis" | "valkey" | "unix" | "redis+unix" | "redis+sentinel" | "redis+cluster",
            _,
        )) => Some("write rediss:// for TLS"),
        Some(("valkey+sentinel" | "valkey+cluster", _)) => Some("write valkeys+… for TLS"),
        Some((_, rest)) if rest.contains("sslmode=disable") => {
            Some("write sslmode=require for TLS")
        }
        _ => None,
    };
    for (key, place) in [
        ("ca_file", raw.ca_file.place()),
        ("client_certificate", raw.client_certificate.place()),
    ] {
        if let (Some(place), Some(help)) = (place, clear) {
            let problem = Problem::error(format!("`{key}` for a store without TLS"));
            context.push(
                problem
                    .at(place, "the URL says that nothing is encrypted")
                    .help(help),
            );
        }
    }
    StoreTls { ca, client }
}

/// Keys that a store requires.
fn required(raw: &At<RawStore>, context: &mut Context<'_>) {
    if raw.kind.is_absent() {
        let problem =
            Problem::error("[store] does not say what it is").at(raw.place, "`kind` is missing");
        context.push(problem.help(
            "write kind = \"redis\" or kind = \"postgres\"; leave [store] out to keep everything in the process",
        ));
    }
    if raw.url.is_absent() && raw.url_file.is_absent() {
        let problem =
            Problem::error("[store] does not say where it is").at(raw.place, "`url` is missing");
        context.push(
            problem.help("write url = \"redis://127.0.0.1:6379/0\", or url = \"${REDIS_URL}\""),
        );
    }
    if raw.when_down.is_absent() {
        let problem = Problem::error("[store] does not say what happens when it does not answer")
            .at(raw.place, "`when_down` is missing");
        context.push(problem.help(
            "when_down = \"local_share\" enforces this gateway's part of each limit, \"allow\" admits, \"refuse\" answers 503; no default is right for both a login and a search",
        ));
    }
    if raw.key_secret.is_absent() && raw.key_secret_file.is_absent() {
        let problem =
            Problem::error("[store] needs a `key_secret`").at(raw.place, "`key_secret` is missing");
        context.push(
            problem
                .note("keys in a shared store are keyed hashes, never raw: whoever reads the store must not learn who calls")
                .help("write key_secret = \"${TOLLGATE_KEY_SECRET}\" and set the variable to the same value for every gateway: openssl rand -hex 32"),
        );
    }
}

fn key_secret(raw: &At<RawStore>, context: &mut Context<'_>) -> Option<Secret> {
    let secret = context.secret("key_secret", &raw.key_secret, &raw.key_secret_file)?;
    if secret.value.expose().len() < KEY_SECRET_LEAST {
        let label = format!("{} characters", secret.value.expose().len());
        let problem = Problem::error(format!(
            "`key_secret` is shorter than {KEY_SECRET_LEAST} characters"
        ))
        .at(secret.place, label);
        context.push(problem.help("make one: openssl rand -hex 32"));
        return None;
    }
    Some(secret.value)
}

fn url(raw: &At<RawStore>, context: &mut Context<'_>) -> Option<At<Secret>> {
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
                let problem = Problem::error("a password stands in clear in the file").secret();
                let problem = problem.at(url.part(start, end), "a secret does not belong here");
                context.push(problem.help("read the URL from the environment: url = \"${STORE_URL}\"; or from a file of its own: url_file = \"…\""));
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

/// The topology from the URL's scheme, checked against the kind.
fn topology(
    kind: &At<StoreKind>,
    url: &At<Secret>,
    raw: &At<RawStore>,
    context: &mut Context<'_>,
) -> Option<Topology> {
    if raw.url.get().is_some_and(|url| url.assumed) {
        return Some(Topology::Single);
    }
    let text = url.value.expose();
    let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
    let (known, topology) = match scheme {
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" => {
            (StoreKind::Redis, Topology::Single)
        }
        "redis+sentinel" | "rediss+sentinel" | "valkey+sentinel" | "valkeys+sentinel" => {
            (StoreKind::Redis, Topology::Sentinel)
        }
        "redis+cluster" | "rediss+cluster" | "valkey+cluster" | "valkeys+cluster" => {
            (StoreKind::Redis, Topology::Cluster)
        }
        "postgres" | "postgresql" => (StoreKind::Postgres, Topology::Single),
        _ => {
            const KNOWN: [&str; 9] = [
                "redis",
                "rediss",
                "valkey",
                "valkeys",
                "unix",
                "redis+sentinel",
                "redis+cluster",
                "postgres",
                "postgresql",
            ];
            let near = nearest(scheme, KNOWN);
            let label = near.map_or_else(
                || {
                    "redis://, rediss://, unix:, redis+sentinel://, redis+cluster:// and postgres:// are known"
                        .to_owned()
                },
                |near| format!("did you mean `{near}`?"),
            );
            context.push(
                Problem::error(format!("`{scheme}` is no store's scheme")).at(url.place, label),
            );
            return None;
        }
    };
    if known != kind.value {
        let name = if kind.value == StoreKind::Redis {
            "redis"
        } else {
            "postgres"
        };
        let problem = Problem::error(format!("a `{scheme}` URL for a store of kind \"{name}\""))
            .at(url.place, "this is of another kind");
        context.push(problem.at(kind.place, "the kind"));
        return None;
    }
    if topology == Topology::Sentinel
        && text
            .split_once("://")
            .is_none_or(|(_, rest)| rest.split_once('/').is_none_or(|(_, name)| name.is_empty()))
    {
        let place = raw.url.place().unwrap_or(url.place);
        let problem = Problem::error("a Sentinel URL needs the name of the master")
            .at(place, "the part after `/` is missing");
        context.push(problem.help("write redis+sentinel://a:26379,b:26379,c:26379/mymaster"));
        return None;
    }
    Some(topology)
}

/// A certificate and its key: both or neither.
pub(crate) fn pair(
    certificate: &Field<Text>,
    key: &Field<Text>,
    context: &mut Context<'_>,
) -> Option<(std::path::PathBuf, std::path::PathBuf)> {
    match (certificate.get(), key.get()) {
        (Some(certificate), Some(key)) => {
            let certificate = context.readable(certificate, "the certificate is read from here");
            let key = context.readable(key, "the private key is read from here");
            certificate.zip(key)
        }
        (Some(alone), None) if key.is_absent() => {
            context.push(
                Problem::error("a client certificate without its key")
                    .at(alone.place, "`client_key` is missing"),
            );
            None
        }
        (None, Some(alone)) if certificate.is_absent() => {
            context.push(
                Problem::error("a client key without its certificate")
                    .at(alone.place, "`client_certificate` is missing"),
            );
            None
        }
        _ => None,
    }
}

/// Shorter secrets can be guessed from a stolen key name.
const KEY_SECRET_LEAST: usize = 16;
