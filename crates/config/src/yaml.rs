//! YAML as a tree whose nodes know their places. Aliases and merge keys are followed; size and depth
//! are bounded.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle};

const DEEPEST: usize = 64;
/// The most nodes of all documents that are read together, those that aliases repeat counted again.
pub const MOST: usize = 400_000;
const WIDEST: usize = 5_000;

#[derive(Clone, Debug)]
pub struct Node {
    pub file: Rc<str>,
    /// Its line, or that of its key, from 1.
    pub line: usize,
    /// The column in that line, in characters, from 1.
    pub column: usize,
    pub value: Value,
    /// Whether a reader asked for it by its key.
    pub is_read: Cell<bool>,
}

/// A value: all scalars are texts.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<(String, Node)>),
}

/// Why a text is not YAML that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    pub line: usize,
    pub column: usize,
    pub what: String,
    /// Whether the text is not wrong but larger than any configuration.
    pub too_much: bool,
}

impl Node {
    pub fn into_map(self) -> Option<Vec<(String, Self)>> {
        match self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(list) => list.iter().map(Self::size).sum(),
            Value::Map(map) => map.iter().map(|(_, node)| node.size()).sum::<usize>(),
            _ => 0,
        }
    }

    /// A member of a map; a member that is null is absent.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let found = self.entries().iter().find(|(known, _)| known == key);
        let found = found.map(|(_, node)| node);
        found
            .filter(|node| !matches!(node.value, Value::Null))
            .inspect(|node| node.is_read.set(true))
    }

    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The entries of a map; none if it is not one.
    pub fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Map(map) => map,
            _ => &[],
        }
    }

    /// The items of a list; a scalar is a list of itself.
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(list) => list,
            Value::Text(_) => std::slice::from_ref(self),
            _ => &[],
        }
    }

    /// The items of a list within maps; none if it is absent.
    pub fn items_at(&self, path: &[&str]) -> &[Self] {
        self.at(path).map_or(&[], Self::items)
    }

    /// The entries of a map within maps; none if it is absent.
    pub fn entries_at(&self, path: &[&str]) -> &[(String, Self)] {
        self.at(path).map_or(&[], Self::entries)
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn text_at(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    pub fn is_true(&self, key: &str) -> bool {
        self.text_at(key).and_then(boolean) == Some(true)
    }
}

/// A boolean as YAML 1.1 writes it.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "on" => Some(true),
        "false" | "False" | "FALSE" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Appends the documents of `text`, the file `name`. `left`: how many more nodes are read ([`MOST`]).
pub fn read(
    name: &str,
    text: &str,
    left: &mut usize,
    documents: &mut Vec<Node>,
) -> Result<(), YamlError> {
    let file: Rc<str> = name.into();
    let mut anchors: HashMap<usize, Node> = HashMap::new();
    let mut stack: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let marker = error.marker();
            YamlError::at((marker.line(), marker.col() + 1), error.info())
        })?;
        let place = (span.start.line(), span.start.col() + 1);
        let node = |value| Node {
            file: Rc::clone(&file),
            line: place.0,
            column: place.1,
            value,
            is_read: Cell::new(false),
        };
        let (done, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
                let value = if is_null {
                    Value::Null
                } else {
                    Value::Text(text.into_owned())
                };
                (node(value), anchor)
            }
            Event::Alias(anchor) => match anchors.get(&anchor) {
                Some(known) => {
                    spend(left, known.size(), place)?;
                    (known.clone(), 0)
                }
                None => return Err(YamlError::at(place, "an alias within its own anchor")),
            },
            Event::SequenceStart(anchor, _) => {
                open(&mut stack, node(Value::List(Vec::new())), anchor)?;
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open(&mut stack, node(Value::Map(Vec::new())), anchor)?;
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match stack.pop() {
                Some(open) => (open.node, open.anchor),
                None => continue,
            },
            _ => continue,
        };
        spend(left, 1, place)?;
        if anchor > 0 {
            spend(left, done.size(), place)?;
            anchors.insert(anchor, done.clone());
        }
        match stack.last_mut() {
            Some(around) => around.add(done, place)?,
            None => documents.push(done),
        }
    }
    Ok(())
}

impl YamlError {
    fn at(place: (usize, usize), what: impl Into<String>) -> Self {
        Self {
            line: place.0,
            column: place.1,
            what: what.into(),
            too_much: false,
        }
    }
}

/// A collection under way: its place, its anchor, what it holds, and for a mapping the key that
/// waits for its value, and the keys that merges have brought.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<(String, (usize, usize))>,
    merged: HashSet<String>,
}

fn spend(left: &mut usize, nodes: usize, place: (usize, usize)) -> Result<(), YamlError> {
    *left = left.checked_sub(nodes).ok_or_else(|| YamlError {
        too_much: true,
        ..YamlError::at(
            place,
            format!("the YAML has more than {MOST} values, aliases counted"),
        )
    })?;
    Ok(())
}

fn open(stack: &mut Vec<Open>, node: Node, anchor: usize) -> Result<(), YamlError> {
    if stack.len() >= DEEPEST {
        return Err(YamlError::at(
            (node.line, node.column),
            format!("nested deeper than {DEEPEST} levels"),
        ));
    }
    stack.push(Open {
        node,
        anchor,
        key: None,
        merged: HashSet::new(),
    });
    Ok(())
}

impl Open {
    fn add(&mut self, node: Node, place: (usize, usize)) -> Result<(), YamlError> {
        let too_wide = || {
            let what = format!("a mapping of more than {WIDEST} keys");
            Err(YamlError::at(place, what))
        };
        match &mut self.node.value {
            Value::List(list) => list.push(node),
            Value::Map(map) if map.len() >= WIDEST => return too_wide(),
            Value::Map(map) => match self.key.take() {
                None => {
                    let Value::Text(key) = node.value else {
                        return Err(YamlError::at(place, "a key that is no text"));
                    };
                    self.key = Some((key, (node.line, node.column)));
                }
                Some((key, _)) if key == "<<" => {
                    // What is written in the mapping itself goes first.
                    let from = match node.value {
                        Value::Map(entries) => vec![entries],
                        Value::List(list) => list.into_iter().filter_map(Node::into_map).collect(),
                        _ => Vec::new(),
                    };
                    for (key, node) in from.into_iter().flatten() {
                        if map.len() >= WIDEST {
                            return too_wide();
                        }
                        if !map.iter().any(|(known, _)| *known == key) {
                            self.merged.insert(key.clone());
                            map.push((key, node));
                        }
                    }
                }
                Some((key, (line, column))) => {
                    // A reader looks for a value where its key is.
                    let node = Node {
                        line,
                        column,
                        ..node
                    };
                    match map.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, value)) if self.merged.remove(&key) => *value = node,
                        // Readers differ in which of the two counts.
                        Some(_) => {
                            let what = format!("the key `{key}` is written twice");
                            return Err(YamlError::at((line, column), what));
                        }
                        None => map.push((key, node)),
                    }
                }
            },
            Value::Null | Value::Text(_) => {}
        }
        Ok(())
    }
}
