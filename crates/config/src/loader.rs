//! Reads a configuration: for which program, by which environment, and with what it is checked besides.

use std::path::Path;

use super::compile::compile;
use super::files::read_text;
use super::reading::{Env, Program, Unset};
use super::settings::Listener;
use super::{Config, ConfigError};
use tollgate_limit::Timestamp;

#[derive(Clone, Copy)]
pub struct Loader<'l> {
    pub(crate) env: Env<'l>,
    pub(crate) now: Timestamp,
    pub(crate) unset: Unset,
    pub(crate) program: Program,
    pub(crate) listen: Option<&'l Listener>,
    pub(crate) opens: Option<&'l dyn Fn(&Config) -> Vec<Unopened>>,
}

/// Something that a valid configuration names and a gateway cannot open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unopened {
    /// The dotted name of the key: `server.certificates[0].key`.
    pub key: String,
    pub what: String,
}

impl<'l> Loader<'l> {
    /// For a gateway. `now` determines the years for which calendar windows are computed, and which
    /// certificates are warned of.
    pub fn new(env: Env<'l>, now: Timestamp) -> Self {
        Self {
            env,
            now,
            unset: Unset::Refused,
            program: Program::Gateway,
            listen: None,
            opens: None,
        }
    }

    pub fn unset(self, unset: Unset) -> Self {
        Self { unset, ..self }
    }

    /// For a service that limits its own requests: its routes need no upstream, and
    /// [`Config::warnings`] says which settings have no effect there.
    pub fn for_service(self) -> Self {
        let program = Program::Service;
        Self { program, ..self }
    }

    /// With this listener in place of the file's, if there is one.
    pub fn listen(self, listen: Option<&'l Listener>) -> Self {
        Self { listen, ..self }
    }

    /// With a function that opens what a configuration without other mistakes names: what it cannot
    /// open is an error at its place in the file.
    pub fn opening(self, opens: &'l dyn Fn(&Config) -> Vec<Unopened>) -> Self {
        let opens = Some(opens);
        Self { opens, ..self }
    }

    pub fn file(&self, path: &Path) -> Result<Config, ConfigError> {
        let text = read_text(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        compile(
            &path.display().to_string(),
            text,
            vec![path.to_path_buf()],
            self,
        )
    }

    /// Reads a text. Messages call it `name`, and relative paths start in the directory of `name`.
    pub fn text(&self, text: &str, name: &str) -> Result<Config, ConfigError> {
        compile(name, text.to_owned(), Vec::new(), self)
    }
}
