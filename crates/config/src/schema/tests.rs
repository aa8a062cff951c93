use super::*;
use crate::parse;
use crate::reading::Env;
use tollgate_limit::Timestamp;

/// The schema of a key, through references and alternatives.
fn find<'s>(root: &'s Value, at: &'s Value, key: &str) -> Option<&'s Value> {
    if let Some(reference) = at.get("$ref").and_then(Value::as_str) {
        return root
            .pointer(reference.trim_start_matches('#'))
            .and_then(|target| find(root, target, key));
    }
    for any in at
        .get("anyOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if let Some(found) = find(root, any, key) {
            return Some(found);
        }
    }
    if let Some(items) = at.get("items") {
        return find(root, items, key);
    }
    let known = at
        .get("properties")
        .and_then(|properties| properties.get(key));
    known.or_else(|| {
        at.get("additionalProperties")
            .filter(|more| more.is_object())
    })
}

fn check(root: &Value, schema: &Value, value: &toml::Value, path: &str) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let path = format!("{path}.{key}");
                let schema = find(root, schema, key)
                    .unwrap_or_else(|| panic!("the schema does not know {path}"));
                check(root, schema, value, &path);
            }
        }
        toml::Value::Array(list) => list
            .iter()
            .for_each(|value| check(root, schema, value, path)),
        _ => {}
    }
}

#[test]
fn the_schema_knows_every_key_of_the_shipped_file() {
    let text = include_str!("../../../../gateway.toml");
    let value: toml::Value = toml::from_str(text).expect("the shipped file is TOML");
    check(&schema(), &schema(), &value, "");
}

/// Every key of every table the schema describes, as a dotted path with `NAME` for the user's own names.
fn keys(root: &Value, schema: &Value, path: &str, depth: usize, found: &mut Vec<String>) {
    if depth > 12 {
        return;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = root
            .pointer(reference.trim_start_matches('#'))
            .expect("a reference inside the schema");
        return keys(root, target, path, depth + 1, found);
    }
    for any in schema
        .get("anyOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        keys(root, any, path, depth + 1, found);
    }
    if let Some(items) = schema.get("items") {
        keys(root, items, path, depth + 1, found);
    }
    for (key, value) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = format!("{path}.{key}");
        found.push(path.clone());
        keys(root, value, &path, depth + 1, found);
    }
    if let Some(more) = schema
        .get("additionalProperties")
        .filter(|more| more.is_object())
    {
        keys(root, more, &format!("{path}.NAME"), depth + 1, found);
    }
}

#[test]
fn the_parser_knows_every_key_of_the_schema() {
    let schema = schema();
    let mut found = Vec::new();
    keys(&schema, &schema, "", 0, &mut found);
    assert!(found.len() > 150, "{}", found.len());
    let lists = ["routes", "tests"];
    let nothing: Env<'_> = &|_| None;
    for path in found {
        let parts: Vec<&str> = path.split('.').skip(1).collect();
        // No key accepts a date, so a known key gives a type error and an unknown key is
        // reported as unknown.
        let (last, tables) = parts.split_last().expect("a path has a part");
        let mut text = String::new();
        let mut name = String::new();
        for (depth, table) in tables.iter().enumerate() {
            name = if depth == 0 {
                (*table).to_owned()
            } else {
                format!("{name}.{table}")
            };
            if depth == 0 && lists.contains(table) {
                text.push_str(&format!("[[{name}]]\n"));
            }
        }
        let inside = if tables.is_empty() {
            String::new()
        } else if lists.contains(&tables[0]) {
            tables[1..].iter().map(|part| format!("{part}.")).collect()
        } else {
            tables.iter().map(|part| format!("{part}.")).collect()
        };
        text.push_str(&format!("{inside}{last} = 2026-01-01\n"));
        let said = parse(&text, "x", nothing, Timestamp::default())
            .expect_err(&text)
            .lines()
            .join("\n");
        assert!(!said.contains("unknown key"), "{path}: {said}");
    }
}

#[test]
fn every_key_has_a_description_and_an_example() {
    fn walk(value: &Value, path: &str) {
        for (key, schema) in value
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let has = |what: &str| schema.get(what).is_some();
            assert!(has("description"), "{path}.{key} has no description");
            assert!(has("examples"), "{path}.{key} has no example");
        }
        for (key, inner) in value.as_object().into_iter().flatten() {
            walk(inner, &format!("{path}/{key}"));
        }
    }
    walk(&schema(), "");
}

/// The schema file for editors, which `gateway.toml` names in its first line. `BLESS=1`
/// regenerates it.
#[test]
fn the_committed_schema_is_the_schema_of_this_version() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gateway.schema.json");
    let current = format!("{:#}\n", schema());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file, &current).expect("a writable directory");
    }
    let committed = std::fs::read_to_string(file).expect("the schema is part of the repository");
    assert!(
        committed == current,
        "gateway.schema.json is not current: BLESS=1 cargo test -p tollgate-config schema"
    );
    let shipped = include_str!("../../../../gateway.toml");
    assert!(shipped.starts_with("#:schema ./gateway.schema.json\n"));
}

#[test]
fn variables_are_values_of_every_number_word_and_switch() {
    let schema = schema();
    let key = |path: &str| schema.pointer(path).cloned().unwrap_or_default();
    let workers = key("/$defs/Bounds/properties/connections");
    assert_eq!(workers["type"], serde_json::json!(["integer", "string"]));
    assert_eq!(workers["default"], serde_json::json!(10_000));
    let mode = key("/$defs/RawLimit/properties/mode/anyOf/0/enum");
    assert_eq!(mode, serde_json::json!(["enforce", "shadow", "off"]));
    assert_eq!(key("/$defs/RawLimit/required"), serde_json::json!(["per"]));
}
