//! Opens what a configuration names, for `check`, a start and a reload alike: what one of them
//! accepts, the others do.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::mapped;
use super::state_file::directory;
use crate::acme;
use tollgate_config::settings::{AccessLog, Listener};
use tollgate_config::{Config, Unopened};
use tollgate_gateway::forward::tls;
use tollgate_net::tls::{ServerTls, TlsError};
use tollgate_policy::identity::jwt::JwtPolicy;
use tollgate_policy::upstream::Upstream;

/// What cannot be opened. Nothing is written: permissions are those of the gateway's user, who may
/// be another one.
pub(crate) fn unopened(config: &Config) -> Vec<Unopened> {
    let mut list = Vec::new();
    let mut report = |key: String, what: String| list.push(Unopened { key, what });
    if let Some(settings) = mapped::tls(&config.server)
        && let Err(error) = ServerTls::load(&settings)
    {
        report(key_of_server(config, &error), error.to_string());
    }
    for upstream in &config.policy.upstreams {
        if let Err(error) = tls::check(upstream) {
            report(key_of_upstream(upstream, &error), error.to_string());
        }
    }
    for identity in &config.policy.identities {
        let fetched = identity.jwt.as_ref().and_then(JwtPolicy::fetched_from);
        let made = fetched.map(|from| tls::client_config(&from.settings.tls, false));
        if let Some(Err(what)) = made {
            let key = format!("identities.{}.jwt.fetch.ca_file", identity.name);
            report(key, what);
        }
    }
    for (key, listener) in listeners(config) {
        if let Listener::Unix(path) = listener
            && let Err(what) = is_place_of_socket(path)
        {
            report(key, what);
        }
    }
    let access = match &config.log.access {
        AccessLog::File(path) => Some(path),
        AccessLog::Off | AccessLog::Stdout | AccessLog::Stderr => None,
    };
    for (key, file) in [
        ("log.access", access),
        ("admin.audit", config.admin.audit.as_ref()),
        ("server.state_file", config.server.state_file.as_ref()),
    ] {
        if let Some(Err(what)) = file.map(|file| is_place_of_file(file)) {
            report(key.to_owned(), what);
        }
    }
    if let Some(acme) = &config.server.acme
        && let Err(what) = is_directory(&acme.state)
    {
        report("server.acme.state".to_owned(), what);
    }
    let authority = config.server.acme.as_ref().map(acme::authority_tls);
    if let Some(Err(what)) = authority.map(|files| tls::client_config(&files, false)) {
        report("server.acme.ca_file".to_owned(), what);
    }
    if config.traces.is_some() && cfg!(not(feature = "otlp")) {
        let what = "this program was built without the feature `otlp`";
        report("traces".to_owned(), what.to_owned());
    }
    list
}

/// The key that names the file of a certificate towards clients.
fn key_of_server(config: &Config, error: &TlsError) -> String {
    let certificates = config.server.certificates.iter().enumerate();
    let named = certificates.flat_map(|(index, one)| {
        let key = move |key| format!("server.certificates[{index}].{key}");
        [
            (key("certificate"), &one.certificate),
            (key("key"), &one.key),
        ]
    });
    let mut named = named
        .filter(|(key, file)| **file == error.file && key.ends_with(".key") == error.is_of_key);
    named
        .next()
        .map_or_else(|| "server.client_ca".to_owned(), |(key, _)| key)
}

/// The key that names the file of a certificate towards an upstream.
fn key_of_upstream(upstream: &Upstream, error: &TlsError) -> String {
    let files = &upstream.tls;
    let of_certificate = files
        .certificate
        .as_ref()
        .is_some_and(|file| file.path == error.file);
    let key = if error.is_of_key {
        "client_key"
    } else if of_certificate {
        "client_certificate"
    } else {
        "ca_file"
    };
    format!("upstreams.{}.{key}", upstream.name)
}

fn listeners(config: &Config) -> impl Iterator<Item = (String, &Listener)> {
    let public = config.server.listen.iter().enumerate();
    let public = public.map(|(at, one)| (format!("server.listen[{at}]"), one));
    let deciding = config
        .decide
        .iter()
        .flat_map(|decide| decide.listen.iter().enumerate());
    let deciding = deciding.map(|(at, one)| (format!("decide.listen[{at}]"), &one.listener));
    let admin = config
        .admin
        .listen
        .iter()
        .map(|one| ("admin.listen".to_owned(), one));
    public.chain(deciding).chain(admin)
}

fn is_place_of_socket(path: &Path) -> Result<(), String> {
    has_directory(path)?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let longer = path.display();
        return Err(format!(
            "`{longer}`: the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes"
        ));
    }
    match path.symlink_metadata() {
        Ok(found) if !found.file_type().is_socket() => Err(format!(
            "`{}`: a file that is no socket is in the way",
            path.display()
        )),
        _ => Ok(()),
    }
}

fn is_place_of_file(path: &Path) -> Result<(), String> {
    has_directory(path)?;
    match path.is_dir() {
        true => Err(format!("`{}` is a directory", path.display())),
        false => Ok(()),
    }
}

fn has_directory(path: &Path) -> Result<(), String> {
    is_directory(directory(path))
}

fn is_directory(directory: &Path) -> Result<(), String> {
    match directory.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("`{}` is no directory", directory.display())),
        Err(error) => Err(format!("`{}`: {error}", directory.display())),
    }
}

/// The longest path in an address (unix(7)), without the zero at its end.
const SOCKET_PATH_MAX: usize = 107;
