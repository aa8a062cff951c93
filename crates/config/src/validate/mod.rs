//! Checks what was read: keys that depend on other tables, and tables against each other. Every function reports all
//! mistakes it finds and continues.

pub(crate) mod callers;
mod costs;
pub(crate) mod domains;
pub(crate) mod identities;
mod jwt;
pub(crate) mod limits;
pub(crate) mod prices;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod store;
pub(crate) mod test_line;
pub(crate) mod tests_table;
pub(crate) mod together;
pub(crate) mod upstreams;

use crate::reading::{At, Context, Field, Named};

/// The names of a section, including those whose tables could not be read.
pub(crate) fn names_of<T>(field: &Field<Named<T>>) -> Vec<&str> {
    let Some(named) = field.get() else {
        return Vec::new();
    };
    let whole = named.entries.iter().map(|(name, _)| name.value.as_str());
    whole
        .chain(named.broken.iter().map(|name| name.value.as_str()))
        .collect()
}

pub(crate) fn entries_of<T>(field: &Field<Named<T>>) -> &[(At<String>, At<T>)] {
    field.get().map_or(&[], |named| named.entries.as_slice())
}

pub(crate) fn entry_of<'f, T>(
    field: &'f Field<Named<T>>,
    name: &str,
) -> Option<&'f (At<String>, At<T>)> {
    let mut entries = entries_of(field).iter();
    entries.find(|(known, _)| known.value == name)
}

pub(crate) fn list_of<T>(field: &Field<Vec<T>>) -> &[T] {
    field.get().map_or(&[], |list| list.value.as_slice())
}

/// A name must be valid in a quota header: printable ASCII without quotes (RFC 9651 section 3.3.3),
/// and short.
pub(crate) fn check_name(name: &At<String>, what: &str, context: &mut Context<'_>) {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if name.is_empty() || name.len() > 64 || !plain {
        let title = format!("`{}` cannot name a {what}", name.value);
        let label = "1 to 64 printable ASCII characters without spaces and quotes were expected";
        context.error(title, name.place, label);
    }
}
