//! Merges what several files have into one mirror.

use super::raw::RawFile;
use super::reading::{At, Field, Named, Problem, Problems};

pub(crate) fn merge(into: &mut RawFile, from: RawFile, problems: &mut Problems) {
    into.include = Field::Absent;
    macro_rules! each {
        ($merge:ident: $($table:ident)*) => {
            $($merge(stringify!($table), &mut into.$table, from.$table, problems);)*
        };
    }
    each!(once: server admin decide traces log address prices store defaults responses);
    each!(names: identities limits tiers upstreams);
    lists(&mut into.routes, from.routes);
    lists(&mut into.tests, from.tests);
}

fn once<T>(name: &str, into: &mut Field<T>, from: Field<T>, problems: &mut Problems) {
    match (&*into, &from) {
        (_, Field::Absent) => {}
        (Field::Here(first), Field::Here(second)) => {
            problems
                .push(Problem::error(format!(
                    "`[{name}]` is written in two files"
                )))
                .at(second.place, "written again here")
                .at(first.place, "first written here")
                .help("write it in one of them");
        }
        (Field::Absent, _) => *into = from,
        _ => *into = Field::Broken,
    }
}

fn names<T>(
    section: &str,
    into: &mut Field<Named<T>>,
    from: Field<Named<T>>,
    problems: &mut Problems,
) {
    let Field::Here(from) = from else {
        if matches!((&*into, &from), (Field::Absent, Field::Broken)) {
            *into = Field::Broken;
        }
        return;
    };
    let Field::Here(into) = into else {
        *into = Field::Here(from);
        return;
    };
    for (name, value) in from.value.entries {
        match into
            .value
            .entries
            .iter()
            .find(|(other, _)| other.value == name.value)
        {
            Some((first, _)) => {
                let title = format!("`{section}.{}` is defined in two files", name.value);
                problems
                    .push(Problem::error(title))
                    .at(name.place, "defined again here")
                    .at(first.place, "first defined here");
            }
            None => into.value.entries.push((name, value)),
        }
    }
    into.value.broken.extend(from.value.broken);
}

fn lists<T>(into: &mut Field<Vec<At<T>>>, from: Field<Vec<At<T>>>) {
    match (&mut *into, from) {
        (_, Field::Absent) => {}
        (Field::Here(into), Field::Here(from)) => into.value.extend(from.value),
        (into, from) => {
            *into = if matches!(into, Field::Absent) {
                from
            } else {
                Field::Broken
            }
        }
    }
}
