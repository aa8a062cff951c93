//! The gateways that a subcommand asks: one, or a fleet given by several addresses.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::{ConfigFile, Format, Gateways, GatewaysAndFormat};
use super::gateway::{Gateway, Place};
use super::{BAD, GOOD, colour, document, load, print_out};
use super::{Ended, Stop};
use tollgate_limit::printable::percent_encoded;

/// The gateways whose admin listeners have these names, or the one that the configuration names.
/// Each may take `timeout` milliseconds for a response.
/// The error: why one cannot be a listener.
pub(super) fn asked(
    admin: &[String],
    timeout: u64,
    config: &ConfigFile,
) -> Result<Vec<Gateway>, Stop> {
    let gateway = |name: String, place: Place| Gateway {
        name,
        place,
        timeout: Duration::from_millis(timeout.max(1)),
        found: Mutex::default(),
    };
    if admin.is_empty() {
        let place = configured(config).map_err(Stop::Misuse)?;
        return Ok(vec![gateway(place.to_string(), place)]);
    }
    let names = admin.iter().map(|name| name.trim());
    names
        .map(|name| {
            let place = Place::named(name).map_err(Stop::Misuse)?;
            Ok(gateway(name.to_owned(), place))
        })
        .collect()
}

/// The listener that the configuration names.
fn configured(config: &ConfigFile) -> Result<Place, String> {
    match load::admin_listener(config) {
        Ok(Some(listener)) => Ok(Place::from(listener)),
        Ok(None) => Err("the configuration switches the admin listener off; \
             if the gateway has one, name it with --admin"
            .to_owned()),
        Err(error) => Err(format!(
            "the configuration does not say where the admin listener is; \
             name it with --admin\n{}",
            error.render(colour())
        )),
    }
}

pub(super) fn asked_by(args: &Gateways) -> Result<Vec<Gateway>, Stop> {
    let config = ConfigFile::option(args.config.clone());
    asked(&args.listeners.admin, args.patience.timeout, &config)
}

pub(super) fn first<T: DeserializeOwned>(
    verb: &str,
    gateways: &[Gateway],
    path: &str,
) -> Result<T, Stop> {
    let mut reasons = Vec::new();
    for gateway in gateways {
        match gateway.get(path) {
            Ok(document) => return Ok(document),
            Err(why) => reasons.push(format!("{}: {why}", gateway.name)),
        }
    }
    Err(reasons.join(&format!("\ntollgate {verb}: ")).into())
}

/// Asks every gateway by `ask`, and prints the documents: in the words that `words` writes, or as
/// JSON with each under `member`. A gateway that has none is named on standard error.
pub(super) fn ask_each<T: Serialize>(
    verb: &str,
    member: &str,
    asked: &GatewaysAndFormat,
    mut ask: impl FnMut(&Gateway) -> Result<T, String>,
    words: impl Fn(&mut String, &str, &T) -> fmt::Result,
) -> Ended {
    let gateways = asked_by(&asked.gateways)?;
    let (mut code, mut text, mut documents) = (GOOD, String::new(), Vec::new());
    for gateway in &gateways {
        match ask(gateway) {
            Ok(document) => {
                words(&mut text, &gateway.name, &document)
                    .expect("writing into a String cannot fail");
                documents.push(serde_json::json!({ "gateway": gateway.name, member: document }));
            }
            Err(why) => {
                tell!("tollgate {verb}: {}: {why}", gateway.name);
                code = BAD;
            }
        }
    }
    let text = match asked.format {
        Format::Human => text,
        Format::Json => document::written(&documents),
    };
    if !text.is_empty() {
        print_out(&text);
    }
    Ok(code)
}

pub(super) fn encoded(part: &str) -> String {
    percent_encoded(part, |byte| {
        byte.is_ascii_alphanumeric() || b"-_~".contains(&byte)
    })
}
