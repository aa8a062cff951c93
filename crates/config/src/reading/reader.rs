//! Reads the parsed tree, collecting every structural mistake instead of stopping at the first.
//!
//! serde stops at its first error and loses positions inside `flatten` and `untagged`; this reader
//! does not. A table is declared once, by [`table`](super::declare::table) (a mirror whose keys keep their places, for
//! checks that need other tables) or by [`settings`](super::declare::settings) (the type that runs, read directly).

use std::ops::RangeInclusive;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::context::Context;
use super::defs::Defs;
use super::problem::{listed, nearest};
use super::slips;
use super::source::{At, Place};

#[derive(Clone, Copy)]
pub(crate) struct Node<'n> {
    pub(crate) value: &'n DeValue<'n>,
    pub(crate) place: Place,
}

/// A form that values of the file have.
pub(crate) trait Read {
    type Value;

    /// Reads a value. `None`: it could not be read, and the context has the reason.
    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value>;

    fn schema(defs: &mut Defs) -> Value;

    /// The value of a key that is not written and has no default, where there is one.
    fn absent() -> Option<Self::Value> {
        None
    }

    fn outside(_value: &Self::Value, _range: &RangeInclusive<u64>) -> Option<String> {
        None
    }
}

/// A table whose keys keep their places, as `table!` declares it.
pub(crate) trait Mirror {
    /// The place of this key, one of the table's, if its value could be read.
    fn place(&self, key: &str) -> Option<Place>;

    /// Those of these keys whose values could be read, with their places.
    fn written<'k, const N: usize>(
        &self,
        keys: [&'k str; N],
    ) -> impl Iterator<Item = (&'k str, Place)> {
        keys.into_iter()
            .filter_map(|key| Some((key, self.place(key)?)))
    }
}

/// A key of a table, as `table!` and `settings!` declare it.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// Its doc comment, a line each.
    pub(crate) about: &'static [&'static str],
    /// How to write it, if it must be written.
    pub(crate) required: Option<&'static str>,
    pub(crate) range: Option<RangeInclusive<u64>>,
    /// Its default, as the file would write it.
    pub(crate) default: Option<&'static str>,
    pub(crate) example: Option<&'static str>,
    pub(crate) schema: fn(&mut Defs) -> Value,
    /// Whether a text is a value of it, within its range.
    pub(crate) accepts: fn(&str) -> bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Table<'n> {
    pub(crate) keys: &'n DeTable<'n>,
    pub(crate) place: Place,
}

impl<'n> Table<'n> {
    pub(crate) fn of(node: Node<'n>, context: &mut Context<'_>) -> Option<Self> {
        match node.value {
            DeValue::Table(keys) => Some(Self {
                keys,
                place: node.place,
            }),
            other => {
                mismatch(node, "a table", other, context);
                None
            }
        }
    }

    fn node(&self, key: &str) -> Option<Node<'n>> {
        self.keys.get(key).map(|value| Node {
            value: value.get_ref(),
            place: Place::new(self.place.file, value.span()),
        })
    }

    pub(crate) fn place(&self, key: &str) -> Option<Place> {
        self.node(key).map(|node| node.place)
    }

    pub(crate) fn field<K: Read>(&self, key: &Key, context: &mut Context<'_>) -> Field<K::Value> {
        let name = key.name;
        let Some(node) = self.node(name) else {
            let Some(help) = key.required else {
                return Field::Absent;
            };
            let title = format!("`{}` needs `{name}`", context.name());
            let problem = context.error(title, self.place, format!("`{name}` is missing"));
            problem.help(help).missing = true;
            return Field::Broken;
        };
        let read = context.inside(name, node.place, |context| K::read(node, context));
        let Some(value) = read else {
            return Field::Broken;
        };
        if let Some(label) = key
            .range
            .as_ref()
            .and_then(|range| K::outside(&value, range))
        {
            context.error(format!("`{name}` is out of bounds"), node.place, label);
        }
        Field::Here(At {
            value,
            place: node.place,
        })
    }

    /// The value of one key, or what it is without: its default, or nothing where that is a value.
    pub(crate) fn value<K: Read>(&self, key: &Key, context: &mut Context<'_>) -> Option<K::Value> {
        match self.field::<K>(key, context) {
            Field::Here(at) => Some(at.value),
            Field::Absent | Field::Broken => match key.default {
                Some(default) => literal::<K>(key.name, default),
                None => K::absent(),
            },
        }
    }

    pub(crate) fn check_keys(&self, known: &[Key], context: &mut Context<'_>) {
        let names = || known.iter().map(|key| key.name);
        let mut unknown: Vec<_> = self
            .keys
            .keys()
            .filter(|key| !names().any(|name| name == key.get_ref().as_ref()))
            .collect();
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown {
            let name = key.get_ref().as_ref();
            let inside = match context.name() {
                path if path.is_empty() => "at the top of the file".to_owned(),
                path => format!("in `{path}`"),
            };
            let slip = slips::of_key(&context.keys, name);
            let label = match nearest(name, names()) {
                Some(near) if slip.is_none() => format!("did you mean `{near}`?"),
                _ => "no such key".to_owned(),
            };
            let place = Place::new(self.place.file, key.span());
            let problem = context.error(format!("unknown key `{name}` {inside}"), place, label);
            match slip {
                Some(help) => problem.help(help),
                None => {
                    let mut sorted: Vec<&str> = names().collect();
                    sorted.sort_unstable();
                    problem.note(format!("keys known here: {}", listed(sorted)))
                }
            };
        }
    }
}

pub(crate) fn mismatch(
    node: Node<'_>,
    wanted: &str,
    found: &DeValue<'_>,
    context: &mut Context<'_>,
) {
    let article = match found {
        DeValue::Integer(_) | DeValue::Array(_) => "an",
        _ => "a",
    };
    let found = match found {
        DeValue::Boolean(_) => "boolean",
        DeValue::Datetime(_) => "date or time",
        other => other.type_str(),
    };
    let help = slips::of_value(&context.keys, node.value);
    let or_list = if context.or_list { ", or a list" } else { "" };
    let title = format!("`{}` must be {wanted}{or_list}", context.name());
    context
        .error(title, node.place, format!("this is {article} {found}"))
        .maybe_help(help);
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Field<T> {
    #[default]
    Absent,
    /// It cannot be read, or is missing and required; this was reported.
    Broken,
    Here(At<T>),
}

impl<T> Field<T> {
    pub(crate) fn get(&self) -> Option<&At<T>> {
        match self {
            Self::Here(value) => Some(value),
            Self::Absent | Self::Broken => None,
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(crate) fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.get().map_or(default, |at| at.value.clone())
    }

    /// The value, or `default` where none is written; `None`: it cannot be read.
    pub(crate) fn unless_broken(&self, default: T) -> Option<T>
    where
        T: Clone,
    {
        (!matches!(self, Self::Broken)).then(|| self.or(default))
    }

    /// The value with its place, or what the TOML text `default` says.
    pub(crate) fn or_written<K: Read<Value = T>>(&self, key: &str, default: &str) -> At<T>
    where
        T: Clone,
    {
        self.get().cloned().unwrap_or_else(|| At {
            value: literal::<K>(key, default)
                .expect("a default is a value of its key: the tests of `schema` read each"),
            place: Place::default(),
        })
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.get().map(|at| at.place)
    }
}

/// The value of a table that is not written: its defaults.
pub(crate) fn defaults<K: Read>() -> K::Value {
    literal::<K>("defaults", "{}").expect("no key of this table is required")
}

/// Reads a value from this program's source, a default or an example, as if it were in a file.
pub(crate) fn literal<K: Read>(key: &str, toml: &str) -> Option<K::Value> {
    let text = format!("{key} = {toml}");
    let (table, errors) = DeTable::parse_recoverable(&text);
    let mut context = Context::sealed(&text);
    let value = table.get_ref().get(key)?;
    let node = Node {
        value: value.get_ref(),
        place: Place::new(0, value.span()),
    };
    let read = context.inside(key, node.place, |context| K::read(node, context));
    read.filter(|_| errors.is_empty() && !context.problems.any_error())
}

/// Whether a text of this program's source is a value of the key, within its range.
pub(crate) fn accepts<K: Read>(key: &str, range: Option<RangeInclusive<u64>>, toml: &str) -> bool {
    literal::<K>(key, toml).is_some_and(|value| {
        let outside = range.and_then(|range| K::outside(&value, &range));
        outside.is_none()
    })
}

/// The key of a field: `r#match` is `match`.
pub(crate) fn key_of(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}
