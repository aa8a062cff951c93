//! Converts settings of the configuration to those of modules that do not know the configuration.

use std::sync::Arc;

use http::StatusCode;

use crate::acme;
use tollgate_config::Config;
use tollgate_config::settings::{
    self, ClientCertificates, DecideProtocol, Listener, LogFormat, LogKeys,
};
use tollgate_gateway::proxy_defaults::{BODY_GRACE, ProxyDefaults, Via};
use tollgate_gateway::{Challenges, DecideSettings, PlainHttp, Snapshot};
use tollgate_limiter::Limiter;
use tollgate_net::listener::{Address, Bound, Listen};
use tollgate_net::server;
use tollgate_net::tls::{CertificateFiles, ServerTls, TlsSettings};
use tollgate_store::Backend;
use tollgate_store::local::ColdStart;
use tollgate_telemetry::Metrics;
use tollgate_telemetry::access::{self, KeyNames};

pub(super) fn listen(listener: &Listener, tls: Option<&Arc<ServerTls>>) -> Listen {
    match listener {
        Listener::Tcp {
            address,
            tls: encrypted,
        } => Listen {
            address: Address::Tcp(*address),
            tls: tls.filter(|_| *encrypted).cloned(),
        },
        Listener::Unix(path) => Listen {
            address: Address::Unix(path.clone()),
            tls: None,
        },
    }
}

pub(super) fn workers(server: &settings::Server) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    server.workers.unwrap_or_else(cores).max(1)
}

pub(super) fn server(config: &Config) -> server::Settings {
    let settings::Server {
        timeouts,
        bounds,
        proxy_protocol,
        ..
    } = &config.server;
    server::Settings {
        header_read: timeouts.header_read.into(),
        tls_handshake: timeouts.tls_handshake.into(),
        body_idle: timeouts.body_idle.into(),
        keep_alive: timeouts.keep_alive.into(),
        header_bytes: bounds.header_bytes,
        headers: bounds.headers,
        connections: bounds.connections,
        connections_per_address: bounds.connections_per_address,
        ipv6_prefix: config.policy.address.ipv6_prefix,
        streams: bounds.http2_streams,
        connect_protocol: !config.server.upgrades.is_empty(),
        proxy_protocol: *proxy_protocol,
        trusted_proxies: config.policy.address.trusted_proxies.clone(),
        awake: server::AWAKE,
        target_bytes: server::TARGET_BYTES,
    }
}

/// The same for the listeners for decisions: the trusted peers are proxies, whose many connections
/// are not bounded by address.
pub(super) fn decide_server(config: &Config) -> server::Settings {
    let trusted = config.decide.as_ref().map(|decide| decide.trusted.clone());
    server::Settings {
        connections_per_address: None,
        connect_protocol: false,
        proxy_protocol: false,
        trusted_proxies: trusted.unwrap_or_default(),
        ..server(config)
    }
}

/// The listeners for decisions over gRPC, and those over HTTP.
pub(super) fn by_protocol(bound: Vec<Bound>, config: &Config) -> (Vec<Bound>, Vec<Bound>) {
    let listeners = config.decide.iter().flat_map(|decide| &decide.listen);
    let is_grpc = listeners.map(|one| one.protocol == DecideProtocol::Grpc);
    let (grpc, http): (Vec<_>, Vec<_>) = bound.into_iter().zip(is_grpc).partition(|one| one.1);
    let bound = |list: Vec<(Bound, bool)>| list.into_iter().map(|(bound, _)| bound).collect();
    (bound(grpc), bound(http))
}

pub(super) fn snapshot(
    config: &Config,
    limiter: Limiter<Backend>,
    metrics: &Metrics,
    challenges: &Challenges,
) -> Snapshot {
    let (policy, server) = (Arc::clone(&config.policy), &config.server);
    let is_plain = server.redirect_to_https || server.acme.is_some();
    let plain = || PlainHttp::new(challenges.clone(), server.redirect_to_https);
    Snapshot::new(policy, limiter, metrics, defaults_of(server))
        .deciding(deciding(config))
        .plain(is_plain.then(plain))
}

/// The settings of decisions; the defaults where there is no listener for them.
fn deciding(config: &Config) -> DecideSettings {
    let Some(decide) = &config.decide else {
        return DecideSettings::default();
    };
    let status = StatusCode::from_u16(decide.refuse_status).ok();
    DecideSettings {
        trusted: decide.trusted.clone(),
        refuse_status: status.filter(|status| *status != StatusCode::TOO_MANY_REQUESTS),
        permits: decide.permits,
        permit_expiry: decide.permit_expiry,
    }
}

/// Settings that apply to requests of every route.
fn defaults_of(server: &settings::Server) -> ProxyDefaults {
    ProxyDefaults {
        body_max: server.bounds.body,
        body_idle: server.timeouts.body_idle,
        body_rate: server.bounds.body_rate,
        body_grace: BODY_GRACE,
        requests: server.bounds.requests,
        held_bodies: server.bounds.held_bodies,
        upgrades: server.upgrades.clone(),
        upgrade_idle: server.timeouts.upgrade_idle,
        via: server.via.as_deref().map(Via::new),
        egress: server.egress,
    }
}

/// `None`: no listener uses TLS.
pub(super) fn tls(server: &settings::Server) -> Option<TlsSettings> {
    if !server
        .listen
        .iter()
        .any(|one| matches!(one, Listener::Tcp { tls: true, .. }))
    {
        return None;
    }
    let certificates = server.certificates.iter().map(|one| CertificateFiles {
        chain: one.certificate.clone(),
        key: one.key.clone(),
        hosts: one.hosts.clone(),
    });
    // The certificate that the gateway ordered: one file has the chain and the key.
    let ordered = server.acme.as_ref().and_then(acme::shown);
    let ordered = ordered.map(|file| CertificateFiles {
        chain: file.clone(),
        key: file,
        hosts: Vec::new(),
    });
    Some(TlsSettings {
        certificates: certificates.chain(ordered).collect(),
        client_ca: server.client_ca.clone(),
        client_required: server.client_certificates == ClientCertificates::Required,
    })
}

pub(super) fn cold_start(server: &settings::Server) -> ColdStart {
    match server.cold_start {
        settings::ColdStart::Full => ColdStart::Full,
        settings::ColdStart::Empty => ColdStart::Empty,
    }
}

/// `None`: there is no access log.
pub(super) fn access_log(log: &settings::Log, names: KeyNames) -> Option<access::Options> {
    let to = match &log.access {
        settings::AccessLog::Off => return None,
        settings::AccessLog::Stdout => access::Destination::Stdout,
        settings::AccessLog::Stderr => access::Destination::Stderr,
        settings::AccessLog::File(path) => access::Destination::File(path.clone()),
    };
    let format = match log.format {
        LogFormat::Json => access::Format::Json,
        LogFormat::Combined => access::Format::Combined,
    };
    let keys = match log.keys {
        LogKeys::Plain => access::Keys::Plain,
        // The hash distinguishes callers within the life of a process; the random secret prevents
        // guessing keys from it.
        LogKeys::Hashed => access::Keys::Hashed(names),
    };
    Some(access::Options {
        to,
        format,
        keys,
        sample: log.sample,
        query: log.query,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_for_tests_of_the_crates_are_those_of_a_file_that_says_nothing() {
        let file = "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
        let now = tollgate_limit::Timestamp::default();
        let config = tollgate_config::parse(file, "test.toml", &|_| None, now).expect("a file");
        assert_eq!(server(&config), server::Settings::default());
        // The mark in `Via` is random.
        let of = |settings: ProxyDefaults| {
            format!(
                "{:?}",
                ProxyDefaults {
                    via: None,
                    ..settings
                }
            )
        };
        assert_eq!(
            of(defaults_of(&config.server)),
            of(ProxyDefaults::default())
        );
    }
}
