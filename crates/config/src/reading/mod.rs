//! How a text of the file becomes values, with the places of all mistakes: its tables and their keys are declared
//! ([`declare`]), read ([`reader`]), and described by the JSON Schema ([`defs`]).

pub(crate) mod context;
pub(crate) mod declare;
pub(crate) mod defs;
pub(crate) mod env;
pub(crate) mod lists;
pub(crate) mod problem;
pub(crate) mod reader;
pub(crate) mod scalar;
pub(crate) mod slips;
pub(crate) mod source;
pub(crate) mod text;

pub(crate) use context::{Context, Program};
pub(crate) use declare::{forms, settings, table, words};
pub(crate) use defs::Defs;
pub use env::Env;
pub(crate) use lists::{Named, OneOrMany, OrBroken, ShortOr};
pub(crate) use problem::{Flaw, Mark, Problem, Problems, SHOWN_MAX, Severity, listed, near_or};
pub use problem::{Unset, nearest, suggestion};
pub(crate) use reader::{Field, Mirror, Node, Read, Table, defaults, literal, mismatch};
pub use scalar::Word;
pub(crate) use scalar::{from_variable, outside};
pub(crate) use source::{At, Place, Sources};
pub use text::Secret;
pub(crate) use text::Text;
