//! Conditions of `http-request` lines: one rate, addresses that are left out, and a path.

use super::section::{Line, Section};
use crate::draft::methods;
use crate::words::network;

/// A counter that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// `http_req_rate`, `gpc0_rate`, `http_err_rate`, `conn_cur`, …
    pub(super) what: String,
    /// `0` of `sc0`; `None`: `src_…`, which is looked up by the address.
    pub(super) number: Option<String>,
    /// The table, where it is named.
    pub(super) table: Option<String>,
    /// The most that is admitted.
    pub(super) most: u64,
}

/// What a condition says.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition {
    pub(super) counters: Vec<Counter>,
    /// Networks to which it does not apply.
    pub(super) exempt: Vec<String>,
    /// A pattern of a path.
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    pub(super) method: Option<String>,
}

/// Reads the terms behind `if` or `unless`.
pub(super) fn condition(line: &Line, section: &Section) -> Result<Condition, String> {
    let mut condition = Condition::default();
    if line.words.iter().any(|word| word == "unless") {
        return Err("`unless` is not understood".to_owned());
    }
    let Some(at) = line.words.iter().position(|word| word == "if") else {
        return Ok(condition);
    };
    let mut words = line.words[at + 1..].iter();
    while let Some(word) = words.next() {
        let (negated, word) = match word.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, word.as_str()),
        };
        match word {
            "||" | "or" => return Err("`or` is not understood".to_owned()),
            "{" => {
                let inner = words.by_ref().map(String::as_str);
                let inner: Vec<&str> = inner.take_while(|word| *word != "}").collect();
                condition.term(&inner, negated)?;
            }
            name => {
                let defined: Vec<&Line> = section.acl(name).collect();
                if defined.is_empty() {
                    return Err(format!("there is no acl `{name}`"));
                }
                for line in &defined {
                    let inner: Vec<&str> = line.words[2..].iter().map(String::as_str).collect();
                    // Several lines of one acl are alternatives: understood for addresses.
                    if defined.len() > 1 && (!negated || inner.first() != Some(&"src")) {
                        return Err(format!(
                            "the alternatives of acl `{name}` are not understood"
                        ));
                    }
                    condition.term(&inner, negated)?;
                }
            }
        }
    }
    Ok(condition)
}

impl Condition {
    fn term(&mut self, words: &[&str], negated: bool) -> Result<(), String> {
        let no = || {
            let not = if negated { "!" } else { "" };
            format!("`{not}{}` is not understood", words.join(" "))
        };
        let (fetch, values) = words.split_first().ok_or_else(no)?;
        let is_flag = |value: &&str| ["-i", "-m", "str", "beg", "ip", "int"].contains(value);
        let values = values.iter().copied();
        let values: Vec<&str> = values.filter(|value| !is_flag(value)).collect();
        if let Some((what, number, table)) = counter(fetch) {
            let number_of = |text: &str| text.parse::<u64>().ok();
            let most = match values[..] {
                ["gt", number] => number_of(number),
                ["ge", number] => number_of(number).and_then(|number| number.checked_sub(1)),
                _ => None,
            };
            let most = most.filter(|_| !negated).ok_or_else(no)?;
            self.counters.push(Counter {
                what,
                number,
                table,
                most,
            });
            return Ok(());
        }
        match (*fetch, negated) {
            ("src", true) if !values.is_empty() => {
                if !values.iter().all(|value| network(value).is_some()) {
                    return Err(no());
                }
                self.exempt.extend(values.into_iter().map(str::to_owned));
            }
            ("path_beg" | "path" | "path,lower", false) => {
                let [path] = values[..] else { return Err(no()) };
                if self.path.is_some() || path.contains(['{', '*']) || !path.starts_with('/') {
                    return Err(no());
                }
                let is_prefix = *fetch == "path_beg" || words.contains(&"beg");
                self.path = Some(match is_prefix {
                    true => format!("{}/**", path.trim_end_matches('/')),
                    false => path.to_owned(),
                });
            }
            ("hdr(host)" | "req.hdr(host)" | "hdr(Host)", false) => {
                let [host] = values[..] else { return Err(no()) };
                self.host = Some(host.to_owned());
            }
            ("method" | "METH_POST" | "METH_GET", false) => {
                self.method = Some(match *fetch {
                    "METH_POST" => "POST".to_owned(),
                    "METH_GET" => "GET".to_owned(),
                    _ => values.join("|"),
                });
            }
            _ => return Err(no()),
        }
        Ok(())
    }

    /// The pattern of the requests it is about.
    pub(super) fn pattern(&self) -> String {
        let method = methods(self.method.as_slice());
        let host = self.host.as_deref().unwrap_or_default();
        format!("{method}{host}{}", self.path.as_deref().unwrap_or("/**"))
    }
}

/// `sc_http_req_rate(0)`, `sc0_http_req_rate(table)`, `src_http_req_rate(table)`.
fn counter(fetch: &str) -> Option<(String, Option<String>, Option<String>)> {
    let (name, inside) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.strip_suffix(')')?),
        None => (fetch, ""),
    };
    let known = |what: &str| {
        what.ends_with("_rate")
            || what.ends_with("_cnt")
            || what.ends_with("_cur")
            || what.starts_with("gpc")
    };
    let table = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    if let Some(what) = name.strip_prefix("sc_").filter(|what| known(what)) {
        let (number, named) = inside.split_once(',').unwrap_or((inside, ""));
        return Some((what.to_owned(), Some(number.to_owned()), table(named)));
    }
    if let Some(what) = name.strip_prefix("src_").filter(|what| known(what)) {
        return Some((what.to_owned(), None, table(inside)));
    }
    let (number, what) = name.strip_prefix("sc")?.split_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && known(what)).then(|| (what.to_owned(), Some(number.to_owned()), table(inside)))
}
