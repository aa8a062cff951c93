//! The forms that values of the file have: each is read from a string, a number, a list or a small table, and made into the
//! type that runs. [`super::raw`] declares its keys by these forms; they know no table of the file that has a name.

pub(crate) mod certificates;
pub(crate) mod costs;
pub(crate) mod envoy_file;
pub(crate) mod forms;
pub(crate) mod in_flight;
pub(crate) mod key_source;
pub(crate) mod listener;
pub(crate) mod matching;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod networks;
pub(crate) mod quantity;
pub(crate) mod rate;
pub(crate) mod servers;
