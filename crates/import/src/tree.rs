//! What YAML and TOML are read into: values that know their lines, and whether an importer has read them.

use std::cell::Cell;
use std::rc::Rc;

use toml::de::{DeTable, DeValue};

use crate::draft::{Draft, either};
use crate::words::{is_of_address, is_of_limiting};
use crate::{ImportError, Place, SourceFile};
use tollgate_config::yaml::{MOST, YamlError, read};
pub(crate) use tollgate_config::yaml::{Node, Value};

impl Draft {
    /// Says of each unread member of a construct that was read that it is not imported. `defaults`:
    /// members that say what holds without them.
    pub(crate) fn unread_members(&mut self, node: &Node, defaults: &[(&str, &str)]) {
        for (key, member) in node.entries() {
            let is_default =
                |(known, value): &(&str, &str)| known == key && member.text() == Some(*value);
            if !defaults.iter().any(is_default) {
                self.unread_member(key, member, true);
            }
        }
    }

    /// Says of everything unread in a file that speaks of limiting that it is not imported.
    pub(crate) fn unread(&mut self, node: &Node) {
        if node
            .text_at("kind")
            .is_some_and(|kind| WORKLOADS.contains(&kind))
        {
            return;
        }
        for (key, member) in node.entries() {
            self.unread_member(key, member, false);
        }
        if let Value::List(items) = &node.value {
            for item in items {
                match item.text() {
                    Some(_) if !node.is_read.get() => self.unread_member("", item, false),
                    _ => self.unread(item),
                }
            }
        }
    }

    fn unread_member(&mut self, key: &str, member: &Node, is_of_construct: bool) {
        if member.is_read.get() {
            return self.unread(member);
        }
        if matches!(member.value, Value::Null) || NO_LIMITS.contains(&key) {
            return;
        }
        let speaks = |is_of: fn(&str) -> bool| is_of(key) || member.text().is_some_and(is_of);
        let place = Place::of(member);
        let what = match (key, member.text()) {
            ("", text) => text.unwrap_or_default().to_owned(),
            (_, Some(text)) => format!("{key}: {text}"),
            (_, None) => key.to_owned(),
        };
        if speaks(is_of_address) {
            let words =
                format!("`{what}` ({place}) says where addresses come from and is not read");
            self.differ_by_address(either(words));
        } else if is_of_construct || speaks(is_of_limiting) {
            self.not_imported(&place, &what, "it is not read");
        } else {
            self.unread(member);
        }
    }
}

/// Marks a value with all it holds as read: the report says what became of it.
pub(crate) fn is_said(node: &Node) {
    node.is_read.set(true);
    node.entries()
        .iter()
        .for_each(|(_, member)| is_said(member));
    if let Value::List(items) = &node.value {
        items.iter().for_each(is_said);
    }
}

/// Members that speak of limits and mean those of memory, or repeat the whole file.
const NO_LIMITS: [&str; 2] = [
    "resources",
    "kubectl.kubernetes.io/last-applied-configuration",
];
const WORKLOADS: [&str; 9] = [
    "CronJob",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "LimitRange",
    "Pod",
    "ResourceQuota",
    "StatefulSet",
];

pub(crate) fn documents(sources: &[SourceFile]) -> Result<Vec<Node>, ImportError> {
    let mut documents = Vec::new();
    let mut left = MOST;
    for source in sources {
        read(&source.name, &source.text, &mut left, &mut documents)
            .map_err(|error| not_read(&source.name, error))?;
    }
    Ok(documents)
}

pub(crate) fn not_read(file: &str, error: YamlError) -> ImportError {
    if error.too_much {
        return ImportError::TooMuch(error.what);
    }
    let place = Place {
        file: file.to_owned(),
        line: error.line,
    };
    ImportError::broken(place, error.what)
}

pub(crate) fn toml(source: &SourceFile) -> Result<Node, ImportError> {
    let breaks = source.text.bytes().enumerate();
    let breaks = breaks.filter(|(_, byte)| *byte == b'\n');
    let file = File {
        name: source.name.as_str().into(),
        breaks: breaks.map(|(at, _)| at).collect(),
    };
    let table = DeTable::parse(&source.text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        ImportError::broken(source.place(file.line(at)), error.message())
    })?;
    Ok(file.node(1, Value::Map(file.map(table.get_ref(), 0))))
}

struct File {
    name: Rc<str>,
    breaks: Vec<usize>,
}

impl File {
    fn line(&self, at: usize) -> usize {
        1 + self.breaks.partition_point(|end| *end < at)
    }

    fn node(&self, line: usize, value: Value) -> Node {
        Node {
            file: Rc::clone(&self.name),
            line,
            column: 1,
            value,
            is_read: Cell::new(false),
        }
    }

    fn map(&self, table: &DeTable<'_>, depth: usize) -> Vec<(String, Node)> {
        let entries = table.iter().map(|(key, value)| {
            let line = self.line(key.span().start);
            let value = self.value(value.get_ref(), line, depth + 1);
            (key.get_ref().to_string(), self.node(line, value))
        });
        entries.collect()
    }

    /// `toml` bounds the nesting of what it reads; so does this.
    fn value(&self, value: &DeValue<'_>, line: usize, depth: usize) -> Value {
        if depth > 100 {
            return Value::Null;
        }
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => Value::Text(number.to_string()),
            DeValue::Float(number) => Value::Text(number.to_string()),
            DeValue::Boolean(is) => Value::Text(is.to_string()),
            DeValue::Datetime(time) => Value::Text(time.to_string()),
            DeValue::Table(table) => Value::Map(self.map(table, depth)),
            DeValue::Array(array) => {
                let items = array.iter().map(|item| {
                    let line = line.max(self.line(item.span().start));
                    self.node(line, self.value(item.get_ref(), line, depth + 1))
                });
                Value::List(items.collect())
            }
        }
    }
}
