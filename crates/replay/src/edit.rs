//! Changes to a configuration that leave its comments and its order as they are.

use tollgate_limit::printable::printable;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

use crate::suggest::Choice;

/// The limit as a table of its own, in shadow mode, with `evidence` as comments.
pub fn table(name: &str, per: &str, choice: &Choice, evidence: &[String]) -> String {
    let mut document = DocumentMut::new();
    let (per, identity) = scope(per);
    if let Some(source) = identity {
        add_caller(&mut document, source);
    }
    nested(&mut document, "limits")[name] = Item::Table(limit(per, choice, evidence));
    document.to_string().trim_start().to_owned()
}

/// The file with the limit in it, in shadow mode. A limit that is in force stays as it is, and `NAME_suggested` beside
/// it is only counted; one that is in shadow mode already gets the numbers.
pub fn written(
    text: &str,
    name: &str,
    per: &str,
    choice: &Choice,
    evidence: &[String],
) -> Result<(String, String), String> {
    let parsed = text.parse::<DocumentMut>();
    let mut document = parsed.map_err(|error| error.to_string())?;
    let mode = |name: &str| {
        let mode = document.get("limits")?.get(name)?.get("mode");
        let mode = mode.and_then(Item::as_str);
        Some(mode.unwrap_or("enforce").to_owned())
    };
    let suggested = format!("{name}_suggested");
    let (target, beside) = match (mode(name), mode(&suggested)) {
        (Some(mode), _) if mode == "shadow" => (name.to_owned(), None),
        (Some(_), Some(mode)) if mode != "shadow" => {
            return Err(format!(
                "limit `{suggested}` is in force already: rename it"
            ));
        }
        (Some(_), _) => (suggested, Some(name.to_owned())),
        (None, _) => (name.to_owned(), None),
    };
    let existing = document
        .get("limits")
        .and_then(|limits| limits.get(target.as_str()));
    if existing.is_some_and(|limit| limit.as_table_like().is_some()) {
        let limit = document["limits"][target.as_str()]
            .as_table_like_mut()
            .ok_or("`limits` is no table")?;
        numbers(limit, choice, evidence);
        return Ok((document.to_string(), target));
    }
    let template = beside
        .as_ref()
        .and_then(|name| document.get("limits")?.get(name)?.as_table_like());
    let (scope_name, identity) = scope(per);
    let mut made = limit(scope_name, choice, evidence);
    if let Some(template) = template {
        // Whose bucket it is, and what a request costs, are the same.
        for key in [
            "per",
            "cost",
            "settle",
            "count",
            "refund_on",
            "store",
            "when_down",
        ] {
            if let Some(item) = template.get(key) {
                made.insert(key, item.clone());
            }
        }
    } else if let Some(source) = identity {
        add_caller(&mut document, source);
    }
    nested(&mut document, "limits")[target.as_str()] = Item::Table(made);
    add_to_routes(&mut document, beside.as_deref(), &target);
    Ok((document.to_string(), target))
}

fn add_caller(document: &mut DocumentMut, source: &str) {
    let identities = nested(document, "identities");
    if !identities.contains_key("caller") {
        let mut caller = Table::new();
        caller["key"] = value(Array::from_iter([source]));
        caller["when_missing"] = value("use:address");
        identities["caller"] = Item::Table(caller);
    }
}

/// The file laid out evenly: one blank around `=`, one blank line between tables; comments stay.
pub fn formatted(text: &str) -> Result<String, String> {
    let values = |text: &str| {
        text.parse::<toml::Table>()
            .map_err(|error| error.to_string())
    };
    let meant = values(text)?;
    let mut lines: Vec<String> = Vec::new();
    // Only blanks at the ends of lines, blank lines and those around `=` change, so that the meaning cannot.
    let spans = multi_line(text);
    for (number, line) in text.lines().enumerate() {
        if spans.iter().any(|span| span.contains(&number)) {
            lines.push(line.to_owned());
            continue;
        }
        let line = line.trim();
        let is_header = line.starts_with('[');
        let is_blank = line.is_empty();
        if is_blank && lines.last().is_none_or(String::is_empty) {
            continue;
        }
        if is_header {
            // A header stands apart, with the comments that belong to it.
            let comments = lines
                .iter()
                .rev()
                .take_while(|line| line.starts_with('#'))
                .count();
            let before = lines.len() - comments;
            if before > 0 && !lines[before - 1].is_empty() {
                lines.insert(before, String::new());
            }
        }
        lines.push(evenly(line));
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let mut laid_out = lines.join("\n");
    laid_out.push('\n');
    let is_same = values(&laid_out).is_ok_and(|values| values == meant);
    Ok(if is_same { laid_out } else { text.to_owned() })
}

/// Lines that belong to values of several lines: strings with three quotes, arrays.
fn multi_line(text: &str) -> Vec<std::ops::Range<usize>> {
    let Ok(document) = toml_edit::Document::parse(text) else {
        return Vec::new();
    };
    let mut spans = Vec::new();
    gather(document.as_table(), &mut spans);
    let line = |at: usize| text[..at].matches('\n').count();
    let lines = spans
        .into_iter()
        .map(|span| line(span.start)..line(span.end) + 1);
    lines.filter(|lines| lines.len() > 1).collect()
}

fn gather(table: &Table, spans: &mut Vec<std::ops::Range<usize>>) {
    for (_, item) in table {
        match item {
            Item::Table(table) => gather(table, spans),
            Item::ArrayOfTables(tables) => tables.iter().for_each(|table| gather(table, spans)),
            Item::Value(value) => spans.extend(value.span()),
            Item::None => {}
        }
    }
}

/// One blank around the `=` of `key = value`, where the key is bare.
fn evenly(line: &str) -> String {
    let Some((key, rest)) = line.split_once('=') else {
        return line.to_owned();
    };
    let bare = key.trim_end();
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if bare.is_empty() || !bare.chars().all(is_bare) {
        return line.to_owned();
    }
    format!("{bare} = {}", rest.trim_start())
}

/// What `per` says, and where the key stands if an identity is needed.
fn scope(per: &str) -> (&str, Option<&str>) {
    match per {
        "address" | "everyone" => (per, None),
        source if source.contains(':') || source == "bearer" || source == "basic" => {
            ("caller", Some(source))
        }
        identity => (identity, None),
    }
}

fn limit(per: &str, choice: &Choice, evidence: &[String]) -> Table {
    let mut limit = Table::new();
    limit["rate"] = value(choice.rate.as_str());
    limit["burst"] = value(signed(choice.burst));
    limit["per"] = value(per);
    limit["mode"] = value("shadow");
    if let Some(mut key) = limit.key_mut("rate") {
        key.leaf_decor_mut().set_prefix(comments(evidence));
    }
    limit
}

fn numbers(limit: &mut dyn TableLike, choice: &Choice, evidence: &[String]) {
    let replace = |limit: &mut dyn TableLike, key: &str, new: Value| match limit
        .get_mut(key)
        .and_then(Item::as_value_mut)
    {
        Some(old) => {
            // A comment after the value on its line stays.
            let decor = old.decor().clone();
            *old = new;
            *old.decor_mut() = decor;
        }
        None => {
            limit.insert(key, Item::Value(new));
        }
    };
    replace(limit, "rate", choice.rate.as_str().into());
    replace(limit, "burst", signed(choice.burst).into());
    if let Some(mut key) = limit.key_mut("rate") {
        let before = key
            .leaf_decor()
            .prefix()
            .and_then(|prefix| prefix.as_str())
            .unwrap_or_default()
            .to_owned();
        let kept: String = before
            .lines()
            .filter(|line| !line.starts_with(MARK))
            .map(|line| format!("{line}\n"))
            .collect();
        key.leaf_decor_mut()
            .set_prefix(format!("{kept}{}", comments(evidence)));
    }
}

fn comments(evidence: &[String]) -> String {
    let line = |line: &String| format!("{MARK}{}\n", printable(line));
    evidence.iter().map(line).collect()
}

/// Puts `target` beside `limit` in every route that has it; into every route where no limit is named.
fn add_to_routes(document: &mut DocumentMut, limit: Option<&str>, target: &str) {
    let Some(routes) = document
        .get_mut("routes")
        .and_then(Item::as_array_of_tables_mut)
    else {
        return;
    };
    for route in routes.iter_mut() {
        let answers = route.contains_key("respond");
        match route.get_mut("limits").and_then(Item::as_array_mut) {
            Some(limits) => {
                let has = |name: &str| limits.iter().any(|item| names(item, name));
                if !has(target) && limit.is_none_or(has) {
                    limits.push(target);
                }
            }
            None if limit.is_none() && !answers => {
                route["limits"] = value(Array::from_iter([target]));
            }
            None => {}
        }
    }
}

fn names(item: &Value, name: &str) -> bool {
    item.as_str() == Some(name)
        || item
            .as_inline_table()
            .and_then(|table| table.get("limit"))
            .and_then(Value::as_str)
            == Some(name)
}

fn nested<'d>(document: &'d mut DocumentMut, name: &str) -> &'d mut Table {
    let item = document.entry(name).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    if !item.is_table() {
        // `limits = { … }` on one line becomes a table, which means the same.
        let inline = std::mem::take(item).into_table().unwrap_or_default();
        *item = Item::Table(inline);
    }
    item.as_table_mut().expect("made a table above")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The beginning of a comment that a suggestion wrote, by which the next one replaces it.
const MARK: &str = "# suggest: ";
