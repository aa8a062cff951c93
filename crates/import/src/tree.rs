//! What YAML and TOML are read into: values that know their lines.

use std::rc::Rc;

use toml::de::{DeTable, DeValue};

use crate::{ImportError, Place, Source};

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) file: Rc<str>,
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// A value: all scalars are texts.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    pub(crate) fn place(&self) -> Place {
        Place {
            file: self.file.to_string(),
            line: self.line,
        }
    }

    pub(crate) fn into_map(self) -> Option<Vec<(String, Node)>> {
        match self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// How many values it holds, itself counted.
    pub(crate) fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(list) => list.iter().map(Self::size).sum(),
            Value::Map(map) => map.iter().map(|(_, node)| node.size()).sum::<usize>(),
            _ => 0,
        }
    }

    /// A member of a map; a member that is null is absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let found = self.entries().iter().find(|(known, _)| known == key);
        found
            .map(|(_, node)| node)
            .filter(|node| !matches!(node.value, Value::Null))
    }

    /// A member of maps within maps.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(crate) fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Map(map) => map,
            _ => &[],
        }
    }

    /// The items of a list; a scalar is a list of itself.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(list) => list,
            Value::Text(_) => std::slice::from_ref(self),
            _ => &[],
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn text_at(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        let yes = ["true", "True", "TRUE", "yes", "on"];
        self.text_at(key).is_some_and(|text| yes.contains(&text))
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
                    value,
                }
            });
            Value::List(items.collect())
        }
    }
}
