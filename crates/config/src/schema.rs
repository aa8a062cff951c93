//! The JSON Schema of the file, generated from the types that read it: `tollgate schema` prints it
//! for editors.

use serde_json::{Map, Value, json};

use super::raw::RawFile;
use super::reading::{Defs, Read};

/// The JSON Schema (draft 2020-12) of `gateway.toml`.
pub fn schema() -> Value {
    let mut defs = Defs::default();
    RawFile::schema(&mut defs);
    let mut schema = defs.0.remove("RawFile").unwrap_or_default();
    schema["$defs"] = Value::Object(defs.0);
    accept_variables(&mut schema);
    for (table, rule) in alternatives() {
        if let Some(Value::Object(table)) = schema.pointer_mut(&format!("/$defs/{table}")) {
            table.extend(rule);
        }
    }
    if let Value::Object(map) = &mut schema {
        map.insert("$schema".to_owned(), Value::from(DIALECT));
        map.insert("$id".to_owned(), Value::from(ID));
        map.insert("title".to_owned(), Value::from("Tollgate configuration"));
    }
    schema
}

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The identifier of this schema; it is not a URL.
const ID: &str = "urn:tollgate:gateway.schema.json";
const VARIABLE: &str = r"\$\{";

/// The keys of a table that exclude or require each other.
fn alternatives() -> Vec<(&'static str, Map<String, Value>)> {
    let rules = [
        (
            "RawLimit",
            json!({ "oneOf": [one("rate"), one("in_flight")] }),
        ),
        (
            "RawRoute",
            json!({ "oneOf": [one("upstream"), one("respond"), one("redirect")] }),
        ),
        (
            "RawStore",
            json!({ "allOf": [
            { "oneOf": [one("url"), one("url_file")] },
            { "oneOf": [one("key_secret"), one("key_secret_file")] },
        ] }),
        ),
        (
            "RawIdentity",
            json!({ "dependentRequired": { "callers": ["when_unknown"] } }),
        ),
        (
            "RawJwt",
            json!({ "oneOf": [one("keys"), one("secret"), one("secret_file")] }),
        ),
    ];
    let objects = rules.into_iter().filter_map(|(table, rule)| match rule {
        Value::Object(map) => Some((table, map)),
        _ => None,
    });
    objects.collect()
}

fn one(key: &str) -> Value {
    json!({ "required": [key] })
}

/// Every string, number and boolean of the file may be read from the environment: `"${VAR}"`.
fn accept_variables(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            match map.get("type").and_then(Value::as_str) {
                Some(kind @ ("integer" | "boolean")) => {
                    let kinds = json!([kind, "string"]);
                    map.insert("type".to_owned(), kinds);
                    map.insert("pattern".to_owned(), Value::from(VARIABLE));
                }
                Some("string") => {
                    if let Some(Value::String(pattern)) = map.get_mut("pattern") {
                        *pattern = format!("{pattern}|{VARIABLE}");
                    }
                    if let Some(words) = map.remove("enum") {
                        let mut choice = Map::new();
                        choice.insert("enum".to_owned(), words);
                        if let Some(about) = map.remove("enumDescriptions") {
                            choice.insert("enumDescriptions".to_owned(), about);
                        }
                        let any = json!([choice, { "pattern": VARIABLE }]);
                        map.insert("anyOf".to_owned(), any);
                    }
                }
                _ => {}
            }
            for (key, value) in map.iter_mut() {
                // These contain values, not schemas.
                if !matches!(key.as_str(), "default" | "examples" | "const") {
                    accept_variables(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(accept_variables),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
