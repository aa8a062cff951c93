//! Definitions of the JSON Schema, each made of the keys that a table declares.

use serde_json::{Map, Value, json};

use super::reader::Key;

#[derive(Default)]
pub(crate) struct Defs(pub(crate) Map<String, Value>);

impl Defs {
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
