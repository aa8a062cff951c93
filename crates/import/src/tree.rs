//! What YAML and TOML are read into: values that know their lines. Here is how TOML is.

use std::rc::Rc;

use toml::de::{DeTable, DeValue};

use crate::{ImportError, Place, Source};
pub(crate) use tollgate_config::yaml::{Node, Value};

/// What messages call the place of a node.
pub(crate) trait Placed {
    /// Its file and line.
    fn place(&self) -> Place;
}

impl Placed for Node {
    fn place(&self) -> Place {
        Place {
            file: self.file.to_string(),
            line: self.line,
        }
    }
}

/// A TOML file as a tree.
pub(crate) fn toml(source: &Source) -> Result<Node, ImportError> {
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

/// A file's name, and where its lines end.
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
