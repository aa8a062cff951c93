//! The forms that values of the file have: each is read from a string, a number, a list or a small table, and made into the
//! type that runs. A form knows no table that has a name in the file, so that [`super::raw`] declares its keys by forms, and
//! [`super::validate`] sees what they made.

pub(crate) mod certificates;
pub(crate) mod costs;
pub(crate) mod forms;
pub(crate) mod in_flight;
pub(crate) mod listener;
pub(crate) mod networks;
pub(crate) mod quantity;
pub(crate) mod rate;
pub(crate) mod responses;
pub(crate) mod servers;
