//! `tollgate key`: how a caller's buckets stand on running gateways.

use std::fmt::Write;
use std::process::ExitCode;

use super::args::{Format, KeyShow, KeyVerb};
use super::fleet::{self, Told};
use super::{BAD, GOOD, print_out, why};
use crate::admin::keys::CallerBuckets;

pub(super) fn key(verb: &KeyVerb) -> ExitCode {
    match verb {
        KeyVerb::Show(args) => show(args),
    }
}

fn show(args: &KeyShow) -> ExitCode {
    let gateways = match fleet::asked("key show", &args.gateways) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let values = args.values.iter().map(|value| fleet::encoded(value));
    let path = std::iter::once(fleet::encoded(&args.identity)).chain(values);
    let path = format!("/api/v1/keys/{}", path.collect::<Vec<_>>().join("/"));
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
