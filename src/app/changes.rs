//! What differs between two configurations, in the lines by which `tollgate check` describes them: for
//! a reload and for `tollgate diff`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use tollgate_config::Config;
use tollgate_policy::Policy;
use tollgate_policy::routes::{Route, Target};

/// A line that only one of two configurations has, or (without a mark) a heading above such lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// `-`: the old one has it; `+`: the new one; a blank: both have the heading.
    pub(crate) mark: char,
    pub(crate) line: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.mark, self.line)
    }
}

/// The lines that only one of them has, below their headings, and the limits, routes and upstreams that differ
/// in what no line says. The order of lines says nothing: a target of `over_limit` in another place is
/// charged on other limits.
pub(crate) fn between(old: &Config, new: &Config) -> Vec<Change> {
    let (of_old, of_new) = (lines(old), lines(new));
    let only = |of: &[Line], other: &[Line], mark: char| -> Vec<(Line, char)> {
        let other: HashSet<&Line> = other.iter().collect();
        let only = of.iter().filter(|line| !other.contains(line));
        only.map(|line| (line.clone(), mark)).collect()
    };
    let mut below: BTreeMap<Vec<String>, Vec<Change>> = BTreeMap::new();
    let removed = only(&of_old, &of_new, '-');
    for (Line { under, text }, mark) in removed.into_iter().chain(only(&of_new, &of_old, '+')) {
        let change = Change { mark, line: text };
        below.entry(under).or_default().push(change);
    }
    let mut changes = Vec::new();
    let mut shown: Vec<String> = Vec::new();
    for (under, changed) in below {
        let pairs = under.iter().zip(&shown);
        let common = pairs.take_while(|(one, other)| one == other).count();
        changes.extend(under[common..].iter().map(|heading| Change {
            mark: ' ',
            line: heading.clone(),
        }));
        changes.extend(changed);
        shown = under;
    }
    changes.extend(unsaid(&old.policy, &new.policy));
    changes
}

/// A line of the description, and the headings above it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Line {
    under: Vec<String>,
    text: String,
}

fn lines(config: &Config) -> Vec<Line> {
    let report = tollgate_config::report(config);
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut under: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for text in report.lines().filter(|line| !line.trim().is_empty()) {
        under.retain(|heading| indent(heading) < indent(text));
        lines.push(Line {
            under: under.clone(),
            text: text.to_owned(),
        });
        // Other numbers make no other heading.
        under.extend(text.split(": ").next().map(str::to_owned));
    }
    lines
}

/// The limits, routes and upstreams of the same names whose settings differ where the description is silent.
fn unsaid(old: &Policy, new: &Policy) -> Vec<Change> {
    let before: HashMap<String, String> = all_settings(old).collect();
    let differ =
        all_settings(new).filter(|(name, now)| before.get(name).is_some_and(|then| then != now));
    let change = |(name, _)| Change {
        mark: '+',
        line: format!("{name}: other settings"),
    };
    differ.map(change).collect()
}

fn all_settings(policy: &Policy) -> impl Iterator<Item = (String, String)> {
    let limits = policy.rules.iter().map(|rule| {
        let units = (&rule.prices, &rule.settle, &rule.cost);
        let settings = format!("{:?}", (rule.live.memory, units));
        (format!("limit {}", rule.name), settings)
    });
    let routes = policy.routes.iter();
    let routes = routes.map(|route| (format!("route {}", route.name), settings(route)));
    let upstreams = policy.upstreams.iter();
    let upstreams = upstreams.map(|one| (format!("upstream {}", one.name), format!("{one:?}")));
    limits.chain(routes).chain(upstreams)
}

/// What a route does besides what its line says, without places in lists of the policy.
fn settings(route: &Route) -> String {
    let response = match &route.target {
        Target::Upstream(_) => None,
        own => Some(own),
    };
    let headers = (
        &route.pattern.headers,
        &route.request_headers,
        &route.response_headers,
    );
    let body = (&route.pattern.body, route.body_max, &route.refusal);
    let path = (&route.strip_prefix, &route.add_prefix);
    let over_limit: Vec<_> = route.over_limit.iter().map(|over| over.model).collect();
    format!("{:?}", (response, headers, body, path, over_limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::Timestamp;

    fn config(text: &str, secret: &str) -> Config {
        let environment = |_: &str| Some(secret.to_owned());
        tollgate_config::parse(text, "test", &environment, Timestamp::default())
            .expect("a valid file")
    }

    /// The URL of keys and the conditions of a route may have one; the route that differs in it is named.
    #[test]
    fn changes_have_no_secret_of_the_environment() {
        let file = |refresh: &str| {
            format!(
                "[identities.who]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
                 jwt = {{ keys = \"https://id.example.com/jwks?token=${{SECRET}}\", algorithms = [\"ES256\"], fetch = {{ refresh = \"{refresh}\" }} }}\n\
                 [limits.each]\nrate = \"1/s\"\nper = \"who\"\n\
                 [[routes]]\nmatch = {{ path = \"/a\", headers = {{ x-secret = \"${{SECRET}}\" }}, body = {{ \"json:key\" = \"${{SECRET}}\" }} }}\n\
                 upstream = \"builtin:echo\"\nlimits = [\"each\"]\n"
            )
        };
        let old = config(&file("10m"), "oldsecret");
        let new = config(&file("20m"), "newsecret");
        let changes = between(&old, &new);
        let lines: Vec<String> = changes.iter().map(Change::to_string).collect();
        let lines = lines.join("\n");
        assert!(lines.contains("https://id.example.com/jwks,"), "{lines}");
        let route = "+ route /a [x-secret] [json:key]: other settings";
        assert!(lines.contains(route), "{lines}");
        assert!(!lines.contains("oldsecret"), "{lines}");
        assert!(!lines.contains("newsecret"), "{lines}");
    }

    #[test]
    fn changes_of_what_a_response_settles_are_named() {
        let file = |path: &str| {
            format!(
                "[limits.each]\nrate = \"100/s\"\nper = \"address\"\n\
                 settle = {{ from = \"json:{path}\", estimate = 10, max = 20 }}\n\
                 [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"each\"]\n"
            )
        };
        let changes = between(&config(&file("used"), ""), &config(&file("spent"), ""));
        let lines: Vec<String> = changes.iter().map(Change::to_string).collect();
        assert!(
            lines.contains(&"+ limit each: other settings".to_owned()),
            "{lines:?}"
        );
        assert!(between(&config(&file("used"), ""), &config(&file("used"), "")).is_empty());
    }
}
