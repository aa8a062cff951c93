//! The tables of `gateway.toml`, as a draft has them.

use std::fmt::{Display, Write};

use crate::draft::{Counting, Identity, Named, Route, Target};
use crate::words::{duration, plain};

#[derive(Default)]
pub(super) struct Toml(pub(super) String);

impl Toml {
    pub(super) fn line(&mut self, text: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{text}");
    }

    fn set(&mut self, key: &str, value: impl Display) {
        self.line(format_args!("{key} = {value}"));
    }

    /// A text, unless it is empty.
    fn text(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.set(key, quoted(text));
        }
    }

    /// A list, unless it is empty.
    pub(super) fn list<T: AsRef<str>>(&mut self, key: &str, texts: &[T]) {
        if !texts.is_empty() {
            self.set(key, list(texts));
        }
    }

    pub(super) fn identity(&mut self, identity: &Identity) {
        self.line("[identities.consumer]");
        match &identity.keys[..] {
            [key] => self.text("key", key),
            keys => self.set("key", format_args!("{{ first_of = {} }}", list(keys))),
        }
        self.text("when_missing", identity.when_missing);
        if identity.callers.is_empty() {
            return;
        }
        let unknown = match identity.when_missing {
            "refuse" => "refuse",
            _ => "use:address",
        };
        self.text("when_unknown", unknown);
        self.line("\n[identities.consumer.callers]");
        for caller in &identity.callers {
            let name = quoted(&caller.name);
            let own = |(limit, rate): &(String, String)| format!("{limit} = {}", quoted(rate));
            let limits: Vec<String> = caller.limits.iter().map(own).collect();
            let limits = match limits.join(", ") {
                limits if limits.is_empty() => limits,
                limits => format!(", limits = {{ {limits} }}"),
            };
            let key = format!("\"sha256:{}\"", caller.digest);
            self.set(&key, format_args!("{{ name = {name}{limits} }}"));
        }
    }

    pub(super) fn limit(&mut self, named: &Named) {
        let limit = &named.limit;
        for comment in &named.comments {
            self.line(format_args!("# {}", plain(comment, 500)));
        }
        self.line(format_args!("[limits.{}]", named.name));
        if limit.counting == Counting::InFlight {
            self.set("in_flight", limit.amount);
        } else {
            self.text("rate", &limit.rate());
        }
        if let Some(burst) = limit.burst {
            self.set("burst", burst);
        }
        let (algorithm, align) = match limit.counting {
            Counting::TokenBucket | Counting::InFlight => ("", ""),
            Counting::ClockWindow => ("fixed_window", "clock"),
            Counting::CalendarMonth => ("fixed_window", "calendar"),
        };
        self.text("algorithm", algorithm);
        if !align.is_empty() {
            self.line(format_args!("window = {{ align = \"{align}\" }}"));
        }
        if limit.max_wait > 0 {
            self.text("max_wait", &duration(limit.max_wait));
        }
        match &limit.per[..] {
            [per] => self.set("per", quoted(per)),
            per => self.set("per", list(per)),
        }
        self.text("when_missing", limit.when_missing);
        if limit.shadow {
            self.text("mode", "shadow");
        }
    }

    pub(super) fn upstream(&mut self, name: &str, servers: &[(String, u64)]) {
        self.line(format_args!("[upstreams.{name}]"));
        let server = |(url, weight): &(String, u64)| match weight {
            1 => quoted(url),
            weight => format!("{{ url = {}, weight = {weight} }}", quoted(url)),
        };
        let servers: Vec<String> = servers.iter().map(server).collect();
        self.line(format_args!("servers = [{}]", servers.join(", ")));
    }

    pub(super) fn route(&mut self, route: &Route) {
        match &route.place {
            Some(place) => {
                let place = plain(&place.to_string(), 200);
                self.line(format_args!("[[routes]]  # {place}"));
            }
            None => self.line("[[routes]]"),
        }
        self.pattern(route);
        match &route.target {
            Target::Upstream(url) => self.set("upstream", quoted(url)),
            Target::Unknown => {
                self.line("upstream = \"builtin:echo\"               # put your upstream here")
            }
            Target::Respond(status, body) => {
                let body = quoted(body);
                self.line(format_args!(
                    "respond = {{ status = {status}, body = {body} }}"
                ));
            }
            Target::Redirect(status, to) => {
                let to = quoted(to);
                self.line(format_args!(
                    "redirect = {{ to = {to}, status = {status} }}"
                ));
            }
        }
        self.text("strip_prefix", &route.strip_prefix);
        self.text("add_prefix", &route.add_prefix);
        self.set("limits", list(&route.limits));
    }

    fn pattern(&mut self, route: &Route) {
        if route.headers.is_empty() {
            return self.set("match", quoted(&route.pattern));
        }
        let slash = route.pattern.find('/').unwrap_or_default();
        let (host, path) = route.pattern.split_at(slash);
        let host = match host {
            "" => String::new(),
            host => format!("host = {}, ", quoted(host)),
        };
        let header =
            |(name, value): &(String, String)| format!("{} = {}", quoted(name), quoted(value));
        let headers: Vec<String> = route.headers.iter().map(header).collect();
        let (path, headers) = (quoted(path), headers.join(", "));
        self.line(format_args!(
            "match = {{ {host}path = {path}, headers = {{ {headers} }} }}"
        ));
    }
}

fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

/// A TOML string with exactly this value: nothing in it is read as a variable.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::String(text.replace("${", "$${")).to_string();
    json.replace('\u{7f}', "\\u007f")
}
