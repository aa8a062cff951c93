//! The JSON Schema of the file, generated from the types that read it: `tollgate schema` prints it
//! for editors.

use serde_json::{Map, Value, json};

use super::raw::RawFile;
use super::reader::{Key, Read};

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

#[derive(Default)]
pub(crate) struct Defs(Map<String, Value>);

impl Defs {
    /// A reference to the schema of the table `name`.
    pub(crate) fn table(&mut self, name: &str, about: &[&str], keys: &[Key]) -> Value {
        if !self.0.contains_key(name) {
            // In place before its keys are: a table may contain itself.
            self.0.insert(name.to_owned(), Value::Null);
            let schema = self.definition(about, keys);
            self.0.insert(name.to_owned(), schema);
        }
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    fn definition(&mut self, about: &[&str], keys: &[Key]) -> Value {
        let mut properties = Map::new();
        for key in keys {
            let mut schema = (key.schema)(self);
            schema["description"] = sentence(key.about).into();
            for written in [key.default, key.example].into_iter().flatten() {
                debug_assert!(
                    (key.accepts)(written),
                    "`{written}` is no value of `{}`",
                    key.name
                );
            }
            if let Some(default) = key.default {
                schema["default"] = json_of(default);
            }
            if let Some(example) = key.example.or(key.default) {
                schema["examples"] = json!([json_of(example)]);
            }
            properties.insert(key.name.to_owned(), schema);
        }
        let mut schema = json!({
            "type": "object",
            "description": sentence(about),
            "properties": properties,
            "additionalProperties": false,
        });
        let required: Vec<&str> = keys
            .iter()
            .filter(|key| key.required.is_some())
            .map(|key| key.name)
            .collect();
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }
}

/// The lines of a doc comment as one text.
pub(crate) fn sentence(lines: &[&str]) -> String {
    let words = lines
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

fn json_of(toml: &str) -> Value {
    let table: Option<toml::Table> = toml::from_str(&format!("value = {toml}")).ok();
    table
        .and_then(|table| serde_json::to_value(table.get("value")?).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
