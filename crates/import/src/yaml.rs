//! YAML as a tree whose nodes know their lines. Aliases and merge keys are followed; size and depth are bounded.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::tree::{Node, Value};
use crate::{ImportError, Place, Source};

/// The deepest nesting.
const DEEPEST: usize = 64;
/// The most nodes of all documents, those that aliases repeat counted again.
const MOST: usize = 400_000;
/// The most keys of one mapping.
const WIDEST: usize = 5_000;

/// All documents of all files.
pub(crate) fn documents(sources: &[Source]) -> Result<Vec<Node>, ImportError> {
    let mut documents = Vec::new();
    let mut left = MOST;
    for source in sources {
        read(source, &mut left, &mut documents)?;
    }
    Ok(documents)
}

/// A collection under way: its place, its anchor, what it holds, and for a mapping the key that waits for its value.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<(String, usize)>,
}

fn read(source: &Source, left: &mut usize, documents: &mut Vec<Node>) -> Result<(), ImportError> {
    let file: Rc<str> = source.name.as_str().into();
    let at = |line: usize| Place {
        file: source.name.clone(),
        line,
    };
    let mut anchors: HashMap<usize, Node> = HashMap::new();
    let mut stack: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(&source.text) {
        let (event, span) =
            event.map_err(|error| ImportError::broken(at(error.marker().line()), error.info()))?;
        let line = span.start.line();
        let node = |value| Node {
            file: Rc::clone(&file),
            line,
            value,
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
                    spend(left, known.size())?;
                    (known.clone(), 0)
                }
                None => {
                    return Err(ImportError::broken(
                        at(line),
                        "an alias within its own anchor",
                    ));
                }
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
        spend(left, 1)?;
        if anchor > 0 {
            spend(left, done.size())?;
            anchors.insert(anchor, done.clone());
        }
        match stack.last_mut() {
            Some(around) => around.add(done, &at(line))?,
            None => documents.push(done),
        }
    }
    Ok(())
}

fn spend(left: &mut usize, nodes: usize) -> Result<(), ImportError> {
    *left = left.checked_sub(nodes).ok_or_else(|| {
        ImportError::TooMuch(format!(
            "the YAML has more than {MOST} values, aliases counted"
        ))
    })?;
    Ok(())
}

fn open(stack: &mut Vec<Open>, node: Node, anchor: usize) -> Result<(), ImportError> {
    if stack.len() >= DEEPEST {
        let place = node.place();
        return Err(ImportError::broken(
            place,
            format!("nested deeper than {DEEPEST} levels"),
        ));
    }
    stack.push(Open {
        node,
        anchor,
        key: None,
    });
    Ok(())
}

impl Open {
    fn add(&mut self, node: Node, place: &Place) -> Result<(), ImportError> {
        match &mut self.node.value {
            Value::List(list) => list.push(node),
            Value::Map(map) if map.len() >= WIDEST => {
                let what = format!("a mapping of more than {WIDEST} keys");
                return Err(ImportError::broken(place.clone(), what));
            }
            Value::Map(map) => match self.key.take() {
                None => {
                    let Value::Text(key) = node.value else {
                        return Err(ImportError::broken(place.clone(), "a key that is no text"));
                    };
                    self.key = Some((key, node.line));
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
                            let what = format!("a mapping of more than {WIDEST} keys");
                            return Err(ImportError::broken(place.clone(), what));
                        }
                        if !map.iter().any(|(known, _)| *known == key) {
                            map.push((key, node));
                        }
                    }
                }
                Some((key, line)) => {
                    let mut node = node;
                    // A key's line is where its reader looks for it.
                    node.line = line;
                    match map.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, value)) => *value = node,
                        None => map.push((key, node)),
                    }
                }
            },
            Value::Null | Value::Text(_) => {}
        }
        Ok(())
    }
}
