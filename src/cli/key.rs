//! `tollgate key`: how a caller's buckets stand on running gateways, and changes by an operator.

use std::fmt::Write;
use std::process::ExitCode;

use super::args::{Change, Format, KeyReset, KeyShow, KeyVerb};
use super::fleet::{self, Told};
use super::{BAD, GOOD, load, print_out, why, wrong_use};
use crate::admin::keys::CallerBuckets;
use crate::admin::resets::Reset;

pub(super) fn key(verb: &KeyVerb) -> ExitCode {
    match verb {
        KeyVerb::Show(args) => show(args),
        KeyVerb::Reset(args) => reset(args),
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
fn path(identity: &str, values: &[String]) -> String {
    let mut path = format!("/api/v1/keys/{}", fleet::encoded(identity));
    for value in values {
        path.push('/');
        path.push_str(&fleet::encoded(value));
    }
    path
}

fn reset(args: &KeyReset) -> ExitCode {
    let gateways = match fleet::asked("key reset", &args.gateways) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let token = match token(&args.change) {
        Ok(token) => token,
        Err(error) => {
            eprintln!("tollgate key reset: {error}");
            return wrong_use();
        }
    };
    let mut body = serde_json::json!({
        "reason": args.change.reason,
        "dry_run": args.change.dry_run,
    });
    if let Some(limit) = &args.limit {
        body["limit"] = limit.as_str().into();
    }
    let path = path(&args.identity, &args.values) + "/reset";
    let (mut code, mut text, mut documents) = (GOOD, String::new(), Vec::new());
    for gateway in &gateways {
        match gateway.post::<Reset>(&path, token.as_deref(), &body.to_string()) {
            Told::Document(done) => {
                done_words(&mut text, &gateway.name, &done)
                    .expect("writing into a String cannot fail");
                documents.push(serde_json::json!({ "gateway": gateway.name, "reset": done }));
            }
            Told::Refused(why) | Told::Silent(why) => {
                eprintln!("tollgate key reset: {}: {why}", gateway.name);
                code = BAD;
            }
        }
    }
    let text = match args.format {
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
fn token(change: &Change) -> Result<Option<String>, String> {
    let token = match &change.token_file {
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
