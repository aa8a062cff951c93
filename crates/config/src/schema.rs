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
        for (key, value) in rule.as_object().into_iter().flatten() {
            schema["$defs"][table][key] = value.clone();
        }
    }
    schema["$schema"] = Value::from(DIALECT);
    schema["$id"] = Value::from(ID);
    schema["title"] = Value::from("Tollgate configuration");
    schema
}

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The identifier of this schema; it is not a URL.
const ID: &str = "urn:tollgate:gateway.schema.json";
const VARIABLE: &str = r"\$\{";

/// The keys of a table that exclude or require each other.
fn alternatives() -> [(&'static str, Value); 5] {
    let one_of = |keys: &[&str]| {
        let required = keys.iter().map(|key| json!({ "required": [key] }));
        json!({ "oneOf": required.collect::<Vec<_>>() })
    };
    let store = [["url", "url_file"], ["key_secret", "key_secret_file"]];
    let callers = json!({ "dependentRequired": { "callers": ["when_unknown"] } });
    [
        ("RawLimit", one_of(&["rate", "in_flight"])),
        ("RawRoute", one_of(&["upstream", "respond", "redirect"])),
        (
            "RawStore",
            json!({ "allOf": store.map(|keys| one_of(&keys)) }),
        ),
        ("RawIdentity", callers),
        (
            "RawJwt",
            one_of(&["keys", "discovery", "secret", "secret_file"]),
        ),
    ]
}

/// Every string, number and boolean of the file may be read from the environment: `"${VAR}"`.
fn accept_variables(schema: &mut Value) {
    match schema["type"].as_str().map(str::to_owned).as_deref() {
        Some(kind @ ("integer" | "boolean")) => {
            schema["type"] = json!([kind, "string"]);
            schema["pattern"] = json!(VARIABLE);
        }
        Some("string") => {
            if let Some(pattern) = schema["pattern"].as_str() {
                schema["pattern"] = json!(format!("{pattern}|{VARIABLE}"));
            }
            let Some(map) = schema.as_object_mut() else {
                return;
            };
            let words = ["enum", "enumDescriptions"].map(|key| map.remove_entry(key));
            if words[0].is_some() {
                let choice: Map<String, Value> = words.into_iter().flatten().collect();
                schema["anyOf"] = json!([choice, { "pattern": VARIABLE }]);
            }
        }
        _ => {}
    }
    match schema {
        Value::Object(map) => {
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
