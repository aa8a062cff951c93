//! Reports as one HTML file: a template with the report's data, and the script that draws them. Nothing is loaded, only
//! that script is executed (by its hash), and it makes no markup from what a log holds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::log::Survey;
use crate::outcome::Outcome;
use crate::report::document;
use crate::suggest::Suggestion;
use tollgate_limit::Micros;
use tollgate_limit::printable::printable;
use tollgate_limit::words::span;

const TEMPLATE: &str = include_str!("html/report.html");
const SCRIPT: &str = include_str!("html/report.js");

pub fn replay(survey: &Survey, outcome: &Outcome, limit: Option<(&str, &Suggestion)>) -> String {
    let mut data = json!({ "replay": document(survey, outcome) });
    data["replay"]["series"] = json!(outcome.series);
    data["replay"]["step"] = span(Micros(outcome.step)).into();
    if let Some((name, suggestion)) = limit {
        data["limit"] = name.into();
        data["suggestion"] = pictured(survey, suggestion);
    }
    page("Tollgate replay", &data)
}

pub fn suggestion(survey: &Survey, suggestion: &Suggestion) -> String {
    let data = json!({ "suggestion": pictured(survey, suggestion) });
    page("Tollgate suggest", &data)
}

fn pictured(survey: &Survey, suggestion: &Suggestion) -> Value {
    let map = &suggestion.map;
    let rates: Vec<&str> = map.rates.iter().map(|rate| &*rate.text).collect();
    let nearest = suggestion.nearest.iter();
    let nearest = nearest.map(|(key, bursts)| json!({ "key": key, "bursts": bursts }));
    let mut document = suggestion.document(survey, "");
    document["nearest"] = nearest.collect();
    document["map"] = json!({ "rates": rates, "bursts": map.bursts, "refused": map.refused });
    document
}

fn page(title: &str, data: &Value) -> String {
    // In JSON these characters are in texts only, where their escapes mean the same.
    let data = printable(&data.to_string()).replace('<', "\\u003c");
    TEMPLATE
        .replacen("{title}", title, 1)
        .replacen("{hash}", &STANDARD.encode(Sha256::digest(SCRIPT)), 1)
        .replacen("{script}", SCRIPT, 1)
        .replacen("{data}", &data, 1)
}
