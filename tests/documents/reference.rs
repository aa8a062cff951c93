//! The pages made from the code: every key of the file from the schema, the command line from its help, the metrics
//! from a scrape. `BLESS=1` writes them anew; read them before committing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::markdown::{Document, anchor_of, root};
use crate::session::Session;

#[test]
fn documents_reference_of_the_file_follows_the_schema() {
    let schema: Value = serde_json::from_str(&tollgate(&["schema"])).expect("a schema is JSON");
    let openings = std::fs::read_to_string(root().join("docs/tables.md")).expect("a page");
    let openings: BTreeMap<&str, &str> = openings
        .split("\n# ")
        .skip(1)
        .filter_map(|opening| opening.split_once("\n\n"))
        .collect();
    let (mut missing, mut described) = (Vec::new(), BTreeMap::new());
    // A type that several tables share is described in the first of these.
    let first = ["limits", "routes", "responses"];
    let mut tables: Vec<_> = properties(&schema).collect();
    tables.sort_by_key(|(name, _)| first.iter().position(|one| one == name).unwrap_or(9));
    for (name, about) in tables {
        let mut page = Page {
            root: &schema,
            missing: &mut missing,
            described: &mut described,
            name,
            opening: openings.get(name).expect("an opening in docs/tables.md"),
            text: String::new(),
        };
        page.table(name, about);
        let text = page.text;
        made(&format!("docs/src/reference/file/{name}.md"), &text);
    }
    assert!(
        missing.is_empty(),
        "the schema has no example of: {}",
        missing.join(", ")
    );
}

#[test]
fn documents_reference_of_the_command_line_follows_its_help() {
    let mut text = String::from(
        "# Command line\n\n\
         Exit codes: 0 good, 1 the answer is no, 2 wrong use. What was asked for goes to standard output, everything said about it \
         to standard error.\n\n",
    );
    command(&[], &mut text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    made(
        "docs/src/reference/cli.md",
        &format!("{}\n", lines.join("\n")),
    );
}

/// The help of a command, then that of each command inside it.
fn command(words: &[&str], text: &mut String) {
    let help = tollgate(&[words, &["--help"]].concat());
    let name = [&["tollgate"], words].concat().join(" ");
    let before = if words.is_empty() { "" } else { "\n" };
    _ = writeln!(
        text,
        "{before}## {name}\n\n```text\n{}\n```",
        help.trim_end()
    );
    let verbs = help.split("Commands:\n").nth(1).unwrap_or_default();
    let verbs = verbs.lines().take_while(|line| !line.is_empty());
    // A line further in goes on with the words of the verb above it.
    let verbs = verbs
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next());
    for verb in verbs.filter(|verb| *verb != "help") {
        command(&[words, &[verb]].concat(), text);
    }
}

#[test]
fn documents_reference_of_metrics_follows_a_scrape() {
    // A gateway that has everything that is counted.
    let page = Document::parse(Path::new("a gateway with every metric"), SCRAPED);
    let Some(session) = Session::finish(&page) else {
        return;
    };
    let scrape = session.read("metrics");
    let mut text = String::from(
        "# Metrics\n\n\
         `GET /metrics` of the [admin listener](admin.md) shows them: as OpenMetrics where the scraper asks for it, otherwise as \
         Prometheus text. No metric has a label for a key, and two alone have one for a caller: one that the file lists, \
         for 1,000 limits and callers at most. So their number does not grow with traffic. Counters \
         start at zero with each process. As OpenMetrics, the counters `tollgate_rejections_total` and `tollgate_limit_decisions_total` of refusals have \
         the `decision_id` of the last one as an exemplar, and its `trace_id`. `tollgate_connections_refused_total` has the label `reason` once it counts one. \
         With [`[server.acme]`](../do/acme.md) there are `tollgate_acme_orders_total` (label `result`), the orders of this gateway, and `tollgate_acme_last_order_good`, whether the last one did not fail.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    let mut named = 0;
    for help in scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
    {
        let (name, about) = help.split_once(' ').expect("a name and its help");
        let kind = scrape
            .lines()
            .find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")))
            .expect("a type");
        let labels = labels(&scrape, name);
        named += 1;
        _ = writeln!(text, "| `{name}` | {kind} | {labels} | {} |", cell(about));
    }
    assert!(named > 30, "{scrape}");
    made("docs/src/reference/metrics.md", &text);
}

/// A scrape as the page shows it, so that every name that other pages mention is held to it.
const SCRAPED: &str = r#"
<!-- file gateway.toml -->
```toml
[server]
listen = ["127.0.0.1:8080", "https://127.0.0.1:8443"]
certificates = [{ certificate = "site.pem", key = "site.key" }]

[admin]
listen = "127.0.0.1:9180"
webhook = { url = "http://127.0.0.1:3000/events", events = ["reload"] }

[store]
kind = "redis"
url = "redis://127.0.0.1:6379/0"
answer_within = "20ms"
when_down = "local_share"
key_secret = "${TOLLGATE_KEY_SECRET}"

[traces]
url = "http://127.0.0.1:3000/v1/traces"

[identities.tenant]
key = "jwt:tenant"
when_missing = "refuse"
jwt = { keys = "http://127.0.0.1:3000/keys", algorithms = ["ES256"] }

[limits.tenants]
rate = "100/minute"
per = "tenant"

[limits.total]
rate = "1000/second"
per = "everyone"
lease = true

[limits.partner]
rate = "100/minute"
per = "everyone"
store = "local"
follow_upstream = { least = "1/minute", obey_quota = true }
candidate = { rate = "50/minute" }

[limits.jobs]
in_flight = "adaptive"
per = "everyone"
store = "local"

[limits.tokens]
rate = "100/minute"
per = "everyone"
settle = { from = "json:cost", estimate = 1, max = 2 }

[upstreams.app]
servers = "http://127.0.0.1:3000"
health = { path = "/" }

[[routes]]
match = "/tenants"
upstream = "app"
limits = ["tenants"]

[[routes]]
match = "/gone"
upstream = "http://127.0.0.1:3001"

[[routes]]
match = "/**"
upstream = "app"
limits = ["total", "partner", "jobs", "tokens"]
```

```console
$ openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout site.key -out site.pem -subj /CN=localhost
...
$ export TOLLGATE_KEY_SECRET=sixteen-or-more-characters
$ tollgate run
$ curl -s http://127.0.0.1:8080/
hello
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8080/gone
502
$ curl -s -o /dev/null -w '%{http_code}\n' -H 'content-length: x' http://127.0.0.1:8080/
400
$ curl -s http://127.0.0.1:9180/metrics > metrics
```
"#;

/// The labels of a metric, in order, without those that every histogram has.
fn labels(scrape: &str, name: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    for line in scrape.lines().filter(|line| line.starts_with(name)) {
        let rest = &line[name.len()..];
        let suffixes = ["_bucket", "_sum", "_count", "_total"];
        let rest = suffixes
            .iter()
            .find_map(|suffix| rest.strip_prefix(suffix))
            .unwrap_or(rest);
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((inside, _)) = inside else {
            continue;
        };
        for label in inside.split("\",").filter_map(|pair| pair.split_once('=')) {
            let label = format!("`{}`", label.0);
            if label != "`le`" && !found.contains(&label) {
                found.push(label);
            }
        }
    }
    found.join(", ")
}

/// One page: a table of the file and the tables inside it.
struct Page<'p> {
    root: &'p Value,
    missing: &'p mut Vec<String>,
    /// Types that a page has described already, and where: a type is described once.
    described: &'p mut BTreeMap<String, String>,
    /// The page's name.
    name: &'p str,
    /// An example of the table, and where it is taught.
    opening: &'p str,
    text: String,
}

impl Page<'_> {
    fn table(&mut self, name: &str, about: &Value) {
        let (title, inner) = match self.inside(about) {
            Inside::Table(inner) => (format!("[{name}]"), inner),
            Inside::Named(inner) => (format!("[{name}.NAME]"), inner),
            Inside::List(inner) => (format!("[[{name}]]"), inner),
            Inside::Nothing => (name.to_owned(), about),
        };
        // tiers.NAME.LIMIT: names within names.
        let inner = match self.inside(inner) {
            Inside::Named(more) => more,
            _ => inner,
        };
        _ = writeln!(self.text, "# {title}\n\n{}\n", description(about));
        _ = writeln!(self.text, "{}\n", self.opening.trim_end());
        match self.inside(about) {
            Inside::Nothing => self.line(about, false, name),
            _ => {
                self.overview(inner);
                self.keys(inner, "");
            }
        }
        let text = self.text.trim_end().len();
        self.text.truncate(text);
        self.text.push('\n');
    }

    /// The keys of the table itself, each on a line.
    fn overview(&mut self, of: &Value) {
        let rows = tables(self.root, of).into_iter().flat_map(|table| {
            properties(table).map(move |(key, about)| (key, about, is_required(table, key)))
        });
        self.text
            .push_str("| key | required | default | meaning |\n|---|---|---|---|\n");
        for (key, about, required) in rows {
            let (written, default) = match required {
                true => ("yes", String::new()),
                false if is_table_of_defaults(self.root, about) => ("", String::new()),
                false => ("", default(about)),
            };
            _ = writeln!(
                self.text,
                "| [`{key}`](#{}) | {written} | {} | {} |",
                anchor_of(key),
                cell(if default == "none" { "" } else { &default }),
                cell(&sentence(&without_default(about))),
            );
        }
        self.text.push('\n');
    }

    fn keys(&mut self, of: &Value, prefix: &str) {
        let root = self.root;
        for table in tables(root, of) {
            // What this table has itself is described here, and not in one of its keys.
            for (key, about) in properties(table) {
                if let Some(kind) = reference(about) {
                    let here = self.place(prefix, key);
                    self.described.entry(kind).or_insert(here);
                }
            }
            for (key, about) in properties(table) {
                let shown = format!("{prefix}{key}");
                _ = writeln!(self.text, "## {shown}\n\n{}\n", without_default(about));
                self.line(about, is_required(table, key), key);
                if let Some(kind) = reference(about) {
                    let there = &self.described[&kind];
                    if *there != self.place(prefix, key) {
                        _ = writeln!(self.text, "Its keys are [described here]({there}).\n");
                        continue;
                    }
                }
                match self.inside(about) {
                    Inside::Table(inner) | Inside::List(inner) => {
                        self.keys(inner, &format!("{shown}."));
                    }
                    Inside::Named(inner) => {
                        self.keys(inner, &format!("{shown}.NAME."));
                    }
                    Inside::Nothing => {}
                }
            }
        }
    }

    /// Where a key is described.
    fn place(&self, prefix: &str, key: &str) -> String {
        format!("{}.md#{}", self.name, anchor_of(&format!("{prefix}{key}")))
    }

    /// Type, default and example of a key.
    fn line(&mut self, about: &Value, required: bool, key: &str) {
        let examples = about.get("examples").and_then(Value::as_array);
        let example = match examples.and_then(|examples| examples.first()) {
            Some(value) => format!("`{key} = {}`", inline(value)),
            // A table whose keys have examples.
            None if !matches!(self.inside(about), Inside::Nothing) => "below".to_owned(),
            None => {
                self.missing.push(format!("{}: {key}", self.name));
                "none".to_owned()
            }
        };
        let default = match required {
            true => "none: it must be written".to_owned(),
            false if is_table_of_defaults(self.root, about) => {
                "that of each of its keys".to_owned()
            }
            false => default(about),
        };
        let kind = kind(self.root, about);
        _ = writeln!(
            self.text,
            "- Type: {kind}\n- Default: {default}\n- Example: {example}"
        );
        for (word, meaning) in words(about) {
            _ = writeln!(self.text, "- {}: {meaning}", code(&inline(word)));
        }
        self.text.push('\n');
    }

    fn inside<'v>(&self, about: &'v Value) -> Inside<'v>
    where
        Self: 'v,
    {
        if let Some(items) = about.get("items") {
            return match self.inside(items) {
                Inside::Nothing if has_tables(items) => Inside::List(items),
                Inside::Nothing => Inside::Nothing,
                _ => Inside::List(items),
            };
        }
        if about.get("properties").is_some() || about.get("$ref").is_some() {
            return Inside::Table(about);
        }
        if let Some(more) = about
            .get("additionalProperties")
            .filter(|more| more.is_object())
        {
            return Inside::Named(more);
        }
        let any = about.get("anyOf").and_then(Value::as_array);
        any.into_iter()
            .flatten()
            .map(|one| self.inside(one))
            .find(|one| !matches!(one, Inside::Nothing))
            .map_or(Inside::Nothing, |one| match one {
                Inside::Table(_) => Inside::Table(about),
                other => other,
            })
    }
}

enum Inside<'v> {
    Table(&'v Value),
    Named(&'v Value),
    List(&'v Value),
    Nothing,
}

fn has_tables(about: &Value) -> bool {
    about.get("$ref").is_some()
        || about
            .get("anyOf")
            .and_then(Value::as_array)
            .is_some_and(|any| any.iter().any(has_tables))
}

/// The tables that a schema may be, through references and alternatives.
fn tables<'v>(root: &'v Value, about: &'v Value) -> Vec<&'v Value> {
    if let Some(target) = target(root, about) {
        return tables(root, target);
    }
    if about.get("properties").is_some() {
        return vec![about];
    }
    let any = about.get("anyOf").and_then(Value::as_array);
    let any = any.into_iter().flatten().chain(about.get("items"));
    let mut found = Vec::new();
    // One table or a list of them: it is told once.
    for table in any.flat_map(|one| tables(root, one)) {
        if !found.contains(&table) {
            found.push(table);
        }
    }
    found
}

/// The type that a key refers to, itself or as an alternative or an item of a list.
fn reference(about: &Value) -> Option<String> {
    if let Some(name) = about.get("$ref").and_then(Value::as_str) {
        return Some(name.to_owned());
    }
    let any = about.get("anyOf").and_then(Value::as_array);
    any.into_iter()
        .flatten()
        .chain(about.get("items"))
        .chain(about.get("additionalProperties"))
        .find_map(reference)
}

fn target<'v>(root: &'v Value, about: &Value) -> Option<&'v Value> {
    let reference = about.get("$ref")?.as_str()?;
    root.pointer(reference.trim_start_matches('#'))
}

fn properties(of: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let known = of.get("properties").and_then(Value::as_object);
    known
        .into_iter()
        .flatten()
        .map(|(key, about)| (key.as_str(), about))
}

fn description(about: &Value) -> String {
    let text = about.get("description").and_then(Value::as_str);
    let text = text.unwrap_or_default().replace('\n', " ");
    assert!(!text.is_empty(), "a key has no description: {about}");
    // Placeholders like {name} and options like <x> are text.
    text.replace('<', "&lt;")
}

/// The words that a key may be, with what each means.
fn words(about: &Value) -> Vec<(&Value, &str)> {
    let list = |of: &'static str| about.get(of).and_then(Value::as_array);
    if let (Some(words), Some(meanings)) = (list("enum"), list("enumDescriptions")) {
        let meanings = meanings.iter().filter_map(Value::as_str);
        return words.iter().zip(meanings).collect();
    }
    let any = list("anyOf").into_iter().flatten();
    let mut found = Vec::new();
    // One word or a list of them: each is told once.
    for word in any.chain(about.get("items")).flat_map(words) {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

/// The type of a key in words.
fn kind(root: &Value, about: &Value) -> String {
    if let Some(words) = about.get("enum").and_then(Value::as_array) {
        let words: Vec<String> = words.iter().map(|word| code(&inline(word))).collect();
        return words.join(" or ");
    }
    if let Some(word) = about.get("const") {
        return code(&inline(word));
    }
    if let Some(any) = about.get("anyOf").and_then(Value::as_array) {
        let mut kinds: Vec<String> = Vec::new();
        // What is only a pattern stands for a value from the environment, which any key may have.
        for one in any.iter().filter(|one| !is_pattern(one)) {
            let one = kind(root, one);
            if !kinds.contains(&one) {
                kinds.push(one);
            }
        }
        return kinds.join(", or ");
    }
    if about.get("$ref").is_some() || about.get("properties").is_some() {
        return match target(root, about) {
            Some(to) if to.get("properties").is_none() => kind(root, to),
            _ => "table".to_owned(),
        };
    }
    if let Some(items) = about.get("items") {
        return format!("list of: {}", kind(root, items));
    }
    let more = about.get("additionalProperties");
    if let Some(more) = more.filter(|more| more.is_object()) {
        return format!("table with names of your own, each: {}", kind(root, more));
    }
    match about.get("type") {
        Some(Value::Array(kinds)) => {
            let first = kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "string");
            first.unwrap_or("string").to_owned()
        }
        kind => kind.and_then(Value::as_str).unwrap_or("any").to_owned(),
    }
}

fn is_pattern(about: &Value) -> bool {
    about
        .as_object()
        .is_some_and(|about| about.keys().all(|key| key == "pattern" || key == "type"))
        && about.get("pattern").and_then(Value::as_str) == Some(r"\$\{")
}

fn is_required(table: &Value, key: &str) -> bool {
    let required = table.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|one| one == key))
}

/// Whether a key is a table whose keys all have defaults, so that leaving it out means these.
fn is_table_of_defaults(root: &Value, about: &Value) -> bool {
    let Some(keys) = target(root, about).filter(|table| table.get("properties").is_some()) else {
        return false;
    };
    about.get("default").is_none()
        && properties(keys).all(|(key, about)| !is_required(keys, key) && default(about) != "none")
}

/// The default, as the schema has it or, where it depends on something, as the description says it.
fn default(about: &Value) -> String {
    if let Some(value) = about.get("default").filter(|value| !value.is_null()) {
        return code(&inline(value));
    }
    let text = description(about);
    match text.split_once("Default: ") {
        Some((_, rest)) => sentence(rest).trim_end_matches('.').to_owned(),
        None => "none".to_owned(),
    }
}

/// The description without its sentence about the default, which has a line of its own.
fn without_default(about: &Value) -> String {
    let text = description(about);
    match text.split_once("Default: ") {
        Some((before, rest)) => format!("{before}{}", rest[sentence(rest).len()..].trim_start())
            .trim_end()
            .to_owned(),
        None => text,
    }
}

/// The first sentence of a text.
fn sentence(text: &str) -> String {
    let mut quoted = false;
    let end = text.char_indices().find(|(at, letter)| {
        quoted ^= *letter == '`';
        let next = text[at + letter.len_utf8()..].chars().next();
        !quoted && *letter == '.' && next.is_none_or(|next| next == ' ')
    });
    text[..end.map_or(text.len(), |(at, _)| at + 1)].to_owned()
}

/// A value as TOML writes it on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let pairs = table.iter().map(|(key, value)| {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
                let key = match key.bytes().all(plain) {
                    true => key.clone(),
                    false => format!("\"{key}\""),
                };
                format!("{key} = {}", inline(value))
            });
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(inline).collect();
            format!("[{}]", list.join(", "))
        }
        other => other.to_string(),
    }
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// What the program prints.
pub(crate) fn tollgate(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(words)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_ADMIN")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Holds a page to what the code makes now; with `BLESS` set, writes it.
fn made(path: &str, text: &str) {
    const NOTE: &str =
        "<!-- Made from the code by `BLESS=1 cargo test --test documents`; do not edit. -->\n";
    current(Path::new(path), &format!("{NOTE}\n{text}"));
}

/// Holds a page to this text; with `BLESS` set, writes it.
pub(crate) fn current(path: &Path, text: &str) {
    let file = root().join(path);
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    if there != text && std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, text).expect("written");
        return;
    }
    assert!(
        there == text,
        "{} is not what it is made from: run BLESS=1 cargo test --test documents, and read what changed",
        path.display()
    );
}
