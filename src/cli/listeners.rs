//! The gateways that a subcommand asks: one, or a fleet given by several addresses.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::args::{ConfigFile, Format, Gateways, GatewaysAndFormat};
use super::gateway::{Place, Request, Whereabouts, no_response, within};
use super::token::{NOT_SENT, Token};
use super::{BAD, GOOD, document, print_out};
use super::{Ended, Stop};
use tollgate_limit::printable::percent_encoded;

pub(super) struct Gateway {
    pub(super) name: String,
    /// Its addresses, or why it has none; its name is looked up until the moment.
    look_up: Box<LookUp>,
    /// The addresses that were found, unless none of them took the last connection: several
    /// questions are asked of one process.
    found: Mutex<Option<Vec<Place>>>,
    timeout: Duration,
}

type LookUp = dyn Fn(Duration, Instant) -> Result<Vec<Place>, String> + Send + Sync;

/// The gateways whose admin listeners have these names, or the one that the configuration names.
/// Each may take `timeout` milliseconds for a response.
/// The error: why one cannot be a listener. Whether its name has an address is found when it is asked.
pub(super) fn asked(
    admin: &[String],
    timeout: u64,
    config: &ConfigFile,
) -> Result<Vec<Gateway>, Stop> {
    let timeout = Duration::from_millis(timeout.max(1));
    let gateway = |(at, name): (Whereabouts, String)| Gateway {
        name,
        look_up: Box::new(move |patience, until| at.places(patience, until)),
        found: Mutex::default(),
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

pub(super) fn asked_by(args: &Gateways) -> Result<Vec<Gateway>, Stop> {
    let config = ConfigFile::option(args.config.clone());
    asked(&args.listeners.admin, args.patience.timeout, &config)
}

impl Gateway {
    /// The status and the text at `path`.
    pub(super) fn text(&self, path: &str) -> Result<(u16, String), String> {
        self.ask(&Request::read(path), None)
    }

    /// Asks for the document at `path`; an error says why the gateway gives none.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.read(path, None)
    }

    /// The same with the token of an operator, at the addresses that it is sent to.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<&Token>,
    ) -> Result<T, String> {
        let (status, body) = self.ask(&Request::read(path), token)?;
        document_of(status, &body)
    }

    /// Asks for a change; an error says why it is not made, or not known to be made.
    pub(super) fn change<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        token: Option<&Token>,
        body: &str,
    ) -> Result<T, String> {
        let request = Request {
            method,
            path,
            change: Some(body),
        };
        let (status, body) = self.ask(&request, token)?;
        document_of(status, &body)
    }

    /// Asks the first address that takes a connection. All together have the time of one gateway,
    /// with the look-up of its name.
    fn ask(&self, request: &Request<'_>, token: Option<&Token>) -> Result<(u16, String), String> {
        let until = Instant::now() + self.timeout;
        let found = self.found.lock().take();
        let places = found.map_or_else(|| (self.look_up)(self.timeout, until), Ok)?;
        let whole = within(self.timeout);
        let late = if places.len() > 1 { "in time" } else { &whole };
        let mut reasons = Reasons::default();
        for (place, left) in places.iter().zip((1..=places.len()).rev()) {
            let sent = token.and_then(|token| token.for_place(place));
            if request.change.is_some() && token.is_some() && sent.is_none() {
                reasons.add(place, NOT_SENT.to_owned());
                continue;
            }
            // An address that drops packets leaves time for the next ones. Zero would be no limit.
            let rest = until.saturating_duration_since(Instant::now());
            let share =
                (rest / u32::try_from(left).unwrap_or(u32::MAX)).max(Duration::from_millis(1));
            match place.connect(share, until) {
                Ok(connection) => {
                    let response = connection.ask(request, sent);
                    *self.found.lock() = Some(places.clone());
                    let doubt = match request.change {
                        Some(_) => "; the change may have been made",
                        None => "",
                    };
                    match response {
                        Ok(response) => return Ok(response),
                        Err(error) => reasons.add(place, no_response(&error, &whole) + doubt),
                    }
                    break;
                }
                Err(error) => reasons.add(place, no_response(&error, late)),
            }
        }
        Err(reasons.words())
    }
}

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
