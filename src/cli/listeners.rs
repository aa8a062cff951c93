//! The gateways that a subcommand asks: one, or a fleet given by several addresses.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::args::{ConfigFile, Format, Gateways, GatewaysAndFormat};
use super::gateway::{Addresses, Attempt, Attempts, Place, Whereabouts, no_response};
use super::token::{NOT_SENT, Token};
use super::{BAD, GOOD, document, print_out};
use super::{Ended, Stop};
use tollgate_limit::printable::percent_encoded;

/// One gateway as it was given.
pub(super) struct Gateway {
    pub(super) name: String,
    /// Its addresses, or why it has none; its name is looked up until the moment.
    look_up: Box<LookUp>,
    addresses: Addresses,
    timeout: Duration,
}

type LookUp = dyn Fn(Duration, Instant) -> Result<Vec<Place>, String> + Send + Sync;

/// The gateways whose admin listeners have these names, or the one that the configuration names.
/// Each may take `timeout` milliseconds for a response.
///
/// # Errors
/// Why one cannot be a listener. Whether its name has an address is found when it is asked.
pub(super) fn asked(
    admin: &[String],
    timeout: u64,
    config: &ConfigFile,
) -> Result<Vec<Gateway>, Stop> {
    let timeout = Duration::from_millis(timeout.max(1));
    let gateway = |(at, name): (Whereabouts, String)| Gateway {
        name,
        look_up: Box::new(move |patience, until| at.places(patience, until)),
        addresses: Addresses::default(),
        timeout,
    };
    if admin.is_empty() {
        let configured = Whereabouts::configured(config).map_err(Stop::Misuse)?;
        return Ok(vec![gateway(configured)]);
    }
    let find = |name: &String| {
        let name = name.trim();
        let at = Whereabouts::named(name).map_err(Stop::Misuse)?;
        Ok(gateway((at, name.to_owned())))
    };
    admin.iter().map(find).collect()
}

/// The gateways that `args` name.
///
/// # Errors
/// As [`asked`].
pub(super) fn asked_by(args: &Gateways) -> Result<Vec<Gateway>, Stop> {
    let config = ConfigFile::option(args.config.clone());
    asked(&args.listeners.admin, args.patience.timeout, &config)
}

impl Gateway {
    /// The status and the text at `path`; an address that gives none is named on standard error.
    pub(super) fn text(&self, verb: &str, path: &str) -> Option<(u16, String)> {
        let attempts = self.attempts();
        let attempts = attempts.inspect_err(|why| tell!("tollgate {verb}: {}: {why}", self.name));
        attempts.ok()?.find_map(|(place, attempt)| {
            place
                .get(path, &attempt)
                .inspect_err(|error| {
                    tell!(
                        "tollgate {verb}: {}",
                        no_response(&format!(" from {place}"), error)
                    );
                })
                .ok()
        })
    }

    /// Asks for the document at `path`; an error says why the gateway gives none.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.ask(|place, attempt| place.get(path, attempt))
    }

    /// The same with the token of an operator, at the addresses that it is sent to.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<&Token>,
    ) -> Result<T, String> {
        self.ask(|place, attempt| {
            let token = token.and_then(|token| token.for_place(place));
            place.read(path, token, attempt)
        })
    }

    /// Asks for a change; an error says why it is not made, or not known to be made. Only the first
    /// address that accepts a connection gets the token and the change.
    pub(super) fn change<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        token: Option<&Token>,
        body: &str,
    ) -> Result<T, String> {
        let mut reasons = Reasons::default();
        for (place, attempt) in self.attempts()? {
            let sent = token.and_then(|token| token.for_place(&place));
            if sent.is_none() && token.is_some() {
                reasons.add(&place, NOT_SENT.to_owned());
                continue;
            }
            match place.connect(&attempt) {
                Ok(connection) => {
                    let changed = connection.change(method, path, sent, body);
                    return changed
                        .map_err(|error| no_response("", &error))
                        .and_then(|(status, body)| document_of(status, &body));
                }
                Err(error) => reasons.add(&place, no_response("", &error)),
            }
        }
        Err(reasons.words())
    }

    fn ask<T: DeserializeOwned>(
        &self,
        ask: impl Fn(&Place, &Attempt) -> io::Result<(u16, String)>,
    ) -> Result<T, String> {
        let mut reasons = Reasons::default();
        for (place, attempt) in self.attempts()? {
            match ask(&place, &attempt) {
                Ok((status, body)) => return document_of(status, &body),
                Err(error) => reasons.add(&place, no_response("", &error)),
            }
        }
        Err(reasons.words())
    }

    /// The addresses, one after the other, as long as there is time: all together have the time of
    /// one gateway, with the look-up of its name.
    ///
    /// # Errors
    /// Why there is none.
    fn attempts(&self) -> Result<Attempts<'_>, String> {
        let (patience, until) = (self.timeout, Instant::now() + self.timeout);
        let look_up = || (self.look_up)(patience, until);
        self.addresses.attempts(patience, until, look_up)
    }
}

/// Why the addresses of a gateway give no response.
#[derive(Default)]
struct Reasons(Vec<(String, String)>);

impl Reasons {
    fn add(&mut self, place: &Place, why: String) {
        self.0.push((place.to_string(), why));
    }

    /// The reason of each address, or the one that they all have.
    fn words(self) -> String {
        let mut whys = self.0.iter().map(|(_, why)| why);
        if let Some(first) = whys.next()
            && whys.all(|why| why == first)
        {
            return first.clone();
        }
        let each = self.0.iter();
        let each: Vec<String> = each.map(|(place, why)| format!("{place}: {why}")).collect();
        each.join("; ")
    }
}

/// The first document that one of the gateways has.
///
/// # Errors
/// Every gateway's reason.
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

/// A part of a path, percent-encoded.
pub(super) fn encoded(part: &str) -> String {
    percent_encoded(part, |byte| {
        byte.is_ascii_alphanumeric() || b"-_~".contains(&byte)
    })
}

/// The document in a response, or why there is none.
fn document_of<T: DeserializeOwned>(status: u16, body: &str) -> Result<T, String> {
    if status != 200 {
        return Err(reason(body));
    }
    serde_json::from_str(body).map_err(|error| {
        format!(
            "its response cannot be read (is this an admin listener, and of the same version?): {error}"
        )
    })
}

/// The reason in a problem document, or the text itself.
fn reason(body: &str) -> String {
    let problem: Option<serde_json::Value> = serde_json::from_str(body).ok();
    problem
        .and_then(|problem| problem.get("detail")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| body.trim().to_owned())
}

#[cfg(test)]
mod tests;
