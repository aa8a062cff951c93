//! The key of a zone as a scope: variables, and the `geo` and `map` by which addresses are left out.

use super::directive::Directive;
use crate::draft::{Difference, by_method, clients, either, upstream};
use crate::words::network;

#[derive(Clone, Debug, Default)]
pub(crate) struct Key {
    pub(crate) per: Vec<String>,
    pub(crate) when_missing: &'static str,
    pub(crate) by_server: bool,
    /// Whether it is always empty, so that it limits no request.
    pub(crate) is_empty: bool,
    pub(crate) exempt: Vec<String>,
    pub(crate) differences: Vec<Difference>,
}

/// A `geo` or `map`: the variable it reads, its entries, and the value of all others.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    is_geo: bool,
    from: String,
    entries: Vec<(String, String)>,
    other: String,
}

pub(crate) fn tables(http: &[&Directive]) -> Vec<Table> {
    let mut tables = Vec::new();
    for directive in http.iter().flat_map(|block| &block.block) {
        let is_geo = directive.name == "geo";
        if !is_geo && directive.name != "map" {
            continue;
        }
        let (from, name) = match &directive.args[..] {
            [name] if is_geo => ("$remote_addr", name.as_str()),
            [from, name] => (from.as_str(), name.as_str()),
            _ => continue,
        };
        let mut table = Table {
            name: name.to_owned(),
            is_geo,
            from: from.to_owned(),
            entries: Vec::new(),
            other: String::new(),
        };
        for entry in &directive.block {
            let value = entry.arg(0).to_owned();
            match entry.name.as_str() {
                "default" => table.other = value,
                key => table.entries.push((key.to_owned(), value)),
            }
        }
        tables.push(table);
    }
    tables
}

/// Reads a key such as `$binary_remote_addr` or `$http_x_api_key$server_name`.
pub(crate) fn key(text: &str, tables: &[Table]) -> Result<Key, String> {
    if let Some(table) = tables.iter().find(|table| table.name == text) {
        return match or_address(table) {
            Some(key) => Ok(key),
            None => exempting(table, tables),
        };
    }
    let mut key = Key {
        is_empty: text.is_empty(),
        ..Key::default()
    };
    for name in variables(text) {
        let part = match name.as_str() {
            "server_name" => {
                key.by_server = true;
                continue;
            }
            "binary_remote_addr" | "remote_addr" => "address".to_owned(),
            "host" | "http_host" => {
                key.differences
                    .push(upstream("hosts that no route names share one bucket here"));
                "host".to_owned()
            }
            "request_method" => {
                key.differences.push(by_method());
                "method".to_owned()
            }
            "remote_user" => "basic".to_owned(),
            "ssl_client_s_dn" => "client_certificate".to_owned(),
            name => source(name).ok_or_else(|| {
                let set = tables.iter().any(|table| table.name == format!("${name}"));
                let from = if set {
                    ", which a `map` or `geo` sets,"
                } else {
                    ""
                };
                format!("the key `${name}`{from} has no counterpart")
            })?,
        };
        key.per.push(part);
    }
    key.per.dedup();
    let is_source = |per: &String| !matches!(per.as_str(), "address" | "host" | "method");
    if key.per.iter().any(is_source) {
        // An empty key is not limited; one of several parts is empty only when all are.
        key.when_missing = match key.per.iter().any(|per| per == "address") {
            true => "use:address",
            false => "skip",
        };
        let is_text = |piece: &str| {
            let piece = piece.trim_start_matches('{');
            let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            end.is_some_and(|end| !matches!(&piece[end..], "" | "}"))
        };
        let has_text = !text.starts_with('$') || text.split('$').skip(1).any(is_text);
        if key.when_missing == "skip" && has_text {
            key.differences.push(clients(
                "a request that lacks a part of the key is not limited here; NGINX counts it by the text around it",
            ));
        } else if key.when_missing == "skip" && key.per.len() > 1 {
            key.differences.push(either(
                "a request that lacks a part of the key is not limited here; NGINX counts it by the other parts",
            ));
        }
    }
    if key.per.is_empty() {
        key.per.push("everyone".to_owned());
    }
    Ok(key)
}

/// The source of an identity that a variable reads.
fn source(variable: &str) -> Option<String> {
    let named = |prefix: &str| {
        let name = variable.strip_prefix(prefix);
        name.filter(|name| !name.is_empty())
    };
    if let Some(header) = named("http_") {
        return Some(format!("header:{}", header.replace('_', "-")));
    }
    let of = |prefix: &str, kind: &str| Some(format!("{kind}{}", named(prefix)?));
    of("cookie_", "cookie:").or_else(|| of("arg_", "query:"))
}

/// The idiom of a key or else the address: `map $http_x $key { "" $binary_remote_addr; default $http_x; }`.
fn or_address(table: &Table) -> Option<Key> {
    let source = source(table.from.strip_prefix('$')?)?;
    let when_missing = match &table.entries[..] {
        [(from, to)] if from.is_empty() && is_address(to) => "use:address",
        [(from, to)] if from.is_empty() && to.is_empty() => "skip",
        _ => return None,
    };
    (table.other == table.from).then(|| Key {
        per: vec![source],
        when_missing,
        ..Key::default()
    })
}

/// The idiom that leaves addresses out: a table gives an empty key to some of them, and all others their own.
fn exempting(table: &Table, tables: &[Table]) -> Result<Key, String> {
    let no = || {
        format!(
            "the key `{}` is set by a `map` or `geo` that has no counterpart",
            table.name
        )
    };
    let of = |value: &str| {
        let entry = table.entries.iter().find(|(key, _)| key == value);
        entry.map_or(table.other.as_str(), |(_, value)| value.as_str())
    };
    // Networks that are limited as all others are.
    let mut limited: Vec<String> = Vec::new();
    let (exempt, kept): (Vec<String>, &str) = if is_address(&table.from) {
        let others = table.entries.iter().filter(|(_, value)| !value.is_empty());
        limited.extend(others.map(|(key, _)| key.clone()));
        let listed = table.entries.iter().filter(|(_, value)| value.is_empty());
        if table
            .entries
            .iter()
            .any(|(_, value)| !value.is_empty() && *value != table.other)
        {
            return Err(no());
        }
        (listed.map(|(key, _)| key.clone()).collect(), &table.other)
    } else {
        let geo = tables
            .iter()
            .find(|geo| geo.is_geo && geo.name == table.from && is_address(&geo.from));
        let geo = geo.ok_or_else(no)?;
        let kept = of(&geo.other);
        let mut exempt = Vec::new();
        for (network, value) in &geo.entries {
            match of(value) {
                "" => exempt.push(network.clone()),
                other if other == kept => limited.push(network.clone()),
                _ => return Err(no()),
            }
        }
        (exempt, kept)
    };
    let nets = |texts: &[String]| {
        let nets = texts.iter().map(|text| network(text));
        nets.collect::<Option<Vec<_>>>()
    };
    let free = nets(&exempt).ok_or_else(no)?;
    let limited = nets(&limited).ok_or_else(no)?;
    // The narrowest network of a `geo` holds; `exempt` has no exceptions.
    let is_within = |inner: &ipnet::IpNet| free.iter().any(|outer| outer.contains(inner));
    if kept.is_empty() || !kept.starts_with('$') || limited.iter().any(is_within) {
        return Err(no());
    }
    // The value of a table is no other table: that bounds the recursion.
    let key = key(kept, &[])?;
    Ok(Key { exempt, ..key })
}

fn is_address(variable: &str) -> bool {
    matches!(variable, "$remote_addr" | "$binary_remote_addr")
}

/// The variables of a text, without `$`.
fn variables(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for piece in text.split('$').skip(1) {
        let piece = piece.strip_prefix('{').unwrap_or(piece);
        let end = piece
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(piece.len());
        names.push(piece[..end].to_owned());
    }
    names
}
