//! Forms made of others: optional values, short forms, lists, and tables of the user's own names.

use std::ops::RangeInclusive;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::defs::Defs;
use super::reader::{Node, Read, Table, mismatch};
use super::source::{At, Place};

impl<T: Read> Read for At<T> {
    type Value = At<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let value = T::read(node, context)?;
        Some(At {
            value,
            place: node.place,
        })
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }
}

impl<T: Read> Read for Option<T> {
    type Value = Option<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        T::read(node, context).map(Some)
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }

    fn absent() -> Option<Self::Value> {
        Some(None)
    }

    fn outside(value: &Self::Value, range: &RangeInclusive<u64>) -> Option<String> {
        T::outside(value.as_ref()?, range)
    }
}

/// An entry of a list whose other entries are used even if it cannot be read (`None`).
pub(crate) struct OrBroken<T>(T);

impl<T: Read> Read for OrBroken<T> {
    type Value = Option<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        Some(T::read(node, context))
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum ShortOr<S, T> {
    Short(S),
    Table(T),
}

impl<S: Read, T: Read> Read for ShortOr<S, T> {
    type Value = ShortOr<S::Value, T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        match node.value {
            DeValue::Table(_) => T::read(node, context).map(ShortOr::Table),
            _ => S::read(node, context).map(ShortOr::Short),
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [S::schema(defs), T::schema(defs)] })
    }
}

pub(crate) struct OneOrMany<T>(T);

impl<T: Read> Read for OneOrMany<T> {
    type Value = Vec<At<T::Value>>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        if matches!(node.value, DeValue::Array(_)) {
            return Vec::<At<T>>::read(node, context);
        }
        context.or_list = true;
        let one = At::<T>::read(node, context);
        context.or_list = false;
        one.map(|one| vec![one])
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [T::schema(defs), Vec::<T>::schema(defs)] })
    }
}

impl<T: Read> Read for Vec<T> {
    type Value = Vec<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let DeValue::Array(array) = node.value else {
            mismatch(node, "a list", node.value, context);
            return None;
        };
        let last = context.keys.pop().unwrap_or_default();
        let read: Vec<Option<T::Value>> = array
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let place = Place::new(node.place.file, value.span());
                let value = value.get_ref();
                context.inside(&format!("{last}[{index}]"), place, |context| {
                    T::read(Node { value, place }, context)
                })
            })
            .collect();
        context.keys.push(last);
        read.into_iter().collect()
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "type": "array", "items": T::schema(defs) })
    }

    fn absent() -> Option<Self::Value> {
        Some(Vec::new())
    }
}

/// A table whose keys the user chooses: names of limits, headers and similar. In the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Named<T> {
    pub(crate) entries: Vec<(At<String>, At<T>)>,
    /// Keys whose values could not be read. They exist, so they must not be reported as unknown.
    pub(crate) broken: Vec<At<String>>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            broken: Vec::new(),
        }
    }
}

impl<T: Read> Read for Named<T> {
    type Value = Named<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let table = Table::of(node, context)?;
        let mut named = Named::default();
        let mut keys: Vec<_> = table.keys.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = At {
                value: key.get_ref().clone().into_owned(),
                place: Place::new(node.place.file, key.span()),
            };
            let place = Place::new(node.place.file, value.span());
            let value = value.get_ref();
            let read = context.inside(&name.value, place, |context| {
                At::<T>::read(Node { value, place }, context)
            });
            match read {
                Some(value) => named.entries.push((name, value)),
                None => named.broken.push(name),
            }
        }
        Some(named)
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "type": "object", "additionalProperties": T::schema(defs) })
    }

    fn absent() -> Option<Self::Value> {
        Some(Named::default())
    }
}
