//! `tollgate key`: how a caller's buckets stand on running gateways, and changes by an operator.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::{Change, Format, Gateways, KeyReset, KeyShow, KeyVerb};
use super::fleet::{self, Told};
use super::{BAD, GOOD, load, overrides, print_out, why, wrong_use};
use crate::admin::keys::CallerBuckets;
use crate::admin::resets::Reset;

pub(super) fn key(verb: &KeyVerb) -> ExitCode {
    match verb {
        KeyVerb::Show(args) => show(args),
        KeyVerb::Reset(args) => reset(args),
        KeyVerb::Raise(args) => overrides::raise(args),
        KeyVerb::Block(args) => overrides::block(args),
        KeyVerb::Lift(args) => overrides::lift(args),
    }
}

fn show(args: &KeyShow) -> ExitCode {
    let gateways = match fleet::asked("key show", &args.gateways) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let path = path(&args.identity, &args.values);
    let mut code = GOOD;
    let mut documents = Vec::new();
    for gateway in &gateways {
        match gateway.get::<CallerBuckets>(&path) {
            Told::Document(document) => documents.push((gateway.name.clone(), document)),
            Told::Refused(why) | Told::Silent(why) => {
                eprintln!("tollgate key show: {}: {why}", gateway.name);
                code = BAD;
            }
        }
    }
    let text = match args.format {
        Format::Human => words(&documents),
        Format::Json => {
            let told: Vec<_> = documents
                .iter()
                .map(|(gateway, document)| serde_json::json!({ "gateway": gateway, "caller": document }))
                .collect();
            serde_json::to_string_pretty(&told).expect("text, numbers and lists are JSON")
        }
    };
    if !text.is_empty() {
        print_out(&text);
    }
    code
}

/// The path of a caller's buckets.
pub(super) fn path(identity: &str, values: &[String]) -> String {
    let mut path = format!("/api/v1/keys/{}", fleet::encoded(identity));
    for value in values {
        path.push('/');
        path.push_str(&fleet::encoded(value));
    }
    path
}

fn reset(args: &KeyReset) -> ExitCode {
    let mut body = change_body(&args.change);
    if let Some(limit) = &args.limit {
        body["limit"] = limit.as_str().into();
    }
    let asked = Asked {
        verb: "key reset",
        method: "POST",
        path: path(&args.identity, &args.values) + "/reset",
        body,
        member: "reset",
    };
    asked.of_each(&args.gateways, &args.change, args.format, done_words)
}

/// A change that each gateway is asked for.
pub(super) struct Asked {
    pub(super) verb: &'static str,
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: serde_json::Value,
    /// The member of a JSON output that has a gateway's response.
    pub(super) member: &'static str,
}

/// The members that every change has.
pub(super) fn change_body(change: &Change) -> serde_json::Value {
    serde_json::json!({ "reason": change.reason, "dry_run": change.dry_run })
}

impl Asked {
    /// Asks each gateway for the change; `words` says what one has done.
    pub(super) fn of_each<T: DeserializeOwned + Serialize>(
        &self,
        gateways: &Gateways,
        change: &Change,
        format: Format,
        words: impl Fn(&mut String, &str, &T) -> std::fmt::Result,
    ) -> ExitCode {
        let gateways = match fleet::asked(self.verb, gateways) {
            Ok(gateways) => gateways,
            Err(code) => return code,
        };
        let token = match token(change.token_file.as_deref()) {
            Ok(token) => token,
            Err(error) => {
                tell!("tollgate {}: {error}", self.verb);
                return wrong_use();
            }
        };
        let (mut code, mut text, mut documents) = (GOOD, String::new(), Vec::new());
        let body = self.body.to_string();
        for gateway in &gateways {
            match gateway.change::<T>(self.method, &self.path, token.as_deref(), &body) {
                Told::Document(done) => {
                    words(&mut text, &gateway.name, &done)
                        .expect("writing into a String cannot fail");
                    documents
                        .push(serde_json::json!({ "gateway": gateway.name, self.member: done }));
                }
                Told::Refused(why) | Told::Silent(why) => {
                    tell!("tollgate {}: {}: {why}", self.verb, gateway.name);
                    code = BAD;
                }
            }
        }
        let text = match format {
            Format::Human => text,
            Format::Json => {
                serde_json::to_string_pretty(&documents).expect("text, numbers and lists are JSON")
            }
        };
        if !text.is_empty() {
            print_out(&text);
        }
        code
    }
}

fn done_words(to: &mut String, gateway: &str, done: &Reset) -> std::fmt::Result {
    let verb = if done.dry_run {
        "would be filled"
    } else {
        "filled"
    };
    writeln!(to, "gateway    {gateway}")?;
    writeln!(
        to,
        "key        {} ({} in logs)",
        done.key.key, done.key.name
    )?;
    for bucket in &done.buckets {
        writeln!(to, "limit      {} ({}): {verb}", bucket.limit, bucket.store)?;
        writeln!(to, "           before: {}", why::now(&bucket.before))?;
        if !done.dry_run {
            writeln!(to, "           after: {}", why::now(&bucket.after))?;
        }
    }
    Ok(())
}

/// The operator's token: from a file, or from the environment.
pub(super) fn token(file: Option<&Path>) -> Result<Option<String>, String> {
    let token = match file {
        Some(file) => Some(
            std::fs::read_to_string(file)
                .map_err(|error| format!("--token-file {}: {error}", file.display()))?,
        ),
        None => load::environment("TOLLGATE_TOKEN"),
    };
    let token = token.map(|token| token.trim().to_owned());
    match token {
        Some(token) if token.is_empty() || token.bytes().any(|byte| !byte.is_ascii_graphic()) => {
            Err("the token is empty, or has characters that no header takes".to_owned())
        }
        token => Ok(token),
    }
}

fn words(documents: &[(String, CallerBuckets)]) -> String {
    let mut text = String::new();
    for (gateway, told) in documents {
        tell(&mut text, gateway, told).expect("writing into a String cannot fail");
    }
    text
}

fn tell(to: &mut String, gateway: &str, told: &CallerBuckets) -> std::fmt::Result {
    let tier = told
        .tier
        .as_ref()
        .map_or_else(String::new, |tier| format!(", tier {tier}"));
    writeln!(to, "gateway    {gateway}")?;
    writeln!(
        to,
        "key        {} ({} in logs){tier}",
        told.key.key, told.key.name
    )?;
    for bucket in &told.buckets {
        writeln!(to, "limit      {} ({})", bucket.limit, bucket.store)?;
        writeln!(to, "           {}", bucket.words)?;
        writeln!(to, "           now: {}", why::now(&bucket.now))?;
        if let Some(overridden) = &bucket.overridden {
            writeln!(to, "           override: {}", overridden.words())?;
        }
    }
    for partly in &told.partly {
        writeln!(
            to,
            "limit      {}: for each {}",
            partly.limit,
            partly.per.join(" and ")
        )?;
        for refused in &partly.refused {
            writeln!(
                to,
                "           {} ({} in logs): refused since {}, {} requests lost; now: {}",
                refused.key.key,
                refused.key.name,
                refused.since,
                refused.count,
                why::now(&refused.now)
            )?;
        }
        if partly.refused.is_empty() {
            writeln!(
                to,
                "           none of its buckets with this key was refused of late"
            )?;
        }
    }
    if told.buckets.is_empty() && told.partly.is_empty() {
        writeln!(to, "limits     none is by {}", told.identity)?;
    }
    Ok(())
}
