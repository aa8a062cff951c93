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
    let file: Rc<str> = source.name.as_str().into();
    let line = |at: usize| {
        1 + source.text[..at]
            .bytes()
            .filter(|byte| *byte == b'\n')
            .count()
    };
    let table = DeTable::parse(&source.text).map_err(|error| {
        let at = error
            .span()
            .map_or(0, |span| span.start.min(source.text.len()));
        let at = (0..=at)
            .rev()
            .find(|at| source.text.is_char_boundary(*at))
            .unwrap_or(0);
        let place = Place {
            file: source.name.clone(),
            line: line(at),
        };
        ImportError::broken(place, error.message())
    })?;
    let lines = Lines::new(&source.text);
    Ok(Node {
        value: Value::Map(map(table.get_ref(), &file, &lines, 0)),
        file,
        line: 1,
        column: 1,
    })
}

/// Where lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(breaks.map(|(at, _)| at).collect())
    }

    fn line(&self, at: usize) -> usize {
        1 + self.0.partition_point(|end| *end < at)
    }
}

fn map(table: &DeTable<'_>, file: &Rc<str>, lines: &Lines, depth: usize) -> Vec<(String, Node)> {
    let entries = table.iter().map(|(key, value)| {
        let line = lines.line(key.span().start);
        let value = self::value(value.get_ref(), file, lines, line, depth + 1);
        (
            key.get_ref().to_string(),
            Node {
                file: Rc::clone(file),
                line,
                column: 1,
                value,
            },
        )
    });
    entries.collect()
}

/// `toml` bounds the nesting of what it reads; so does this.
fn value(value: &DeValue<'_>, file: &Rc<str>, lines: &Lines, line: usize, depth: usize) -> Value {
    if depth > 100 {
        return Value::Null;
    }
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Text(number.to_string()),
        DeValue::Float(number) => Value::Text(number.to_string()),
        DeValue::Boolean(is) => Value::Text(is.to_string()),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Table(table) => Value::Map(map(table, file, lines, depth)),
        DeValue::Array(array) => {
            let items = array.iter().map(|item| {
                let line = line.max(lines.line(item.span().start));
                let value = self::value(item.get_ref(), file, lines, line, depth + 1);
                Node {
                    file: Rc::clone(file),
                    line,
                    column: 1,
                    value,
                }
            });
            Value::List(items.collect())
        }
    }
}
