//! Lines as the servers write them, and broken or hostile lines.

mod damaged;
mod mapping;
mod servers;

use super::*;
