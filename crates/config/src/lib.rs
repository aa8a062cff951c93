//! Reads and checks the configuration file and builds the types that the gateway runs on.
//!
//! [`load`] reads a file with everything it includes, [`parse`] reads a text. Both report *every*
//! mistake with its place, or return a valid [`Config`]. The environment is passed in as a
//! function. This crate opens no sockets, connects to no stores, and starts nothing.
//!
//! A file passes three steps: syntax ([`mod@include`], which also follows `include`), structure
//! ([`reader`] fills the mirror in [`raw`]), meaning ([`validate`], which makes settings and a
//! [`tollgate_policy::Policy`]). A key that could not be read is [`reader::Field::Broken`], so that
//! later steps do not report it as missing.

#![forbid(unsafe_code)]

mod calendar;
mod diagnostic;
mod env;
mod include;
mod problem;
mod quantity;
mod quick;
mod rate;
mod raw;
mod reader;
mod render;
mod report;
mod scalar;
mod schema;
mod slips;
pub mod settings;
mod source;
mod validate;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use diagnostic::{Diagnostic, Span};
pub use env::{Env, Unset};
pub use include::matches;
use include::{Tree, plain};
pub use problem::nearest;
use problem::{Problem, Problems, Severity};
pub use quick::quick;
use raw::EncodedSlash;
pub use report::report;
pub use schema::schema;
use settings::{Admin, Log, Server, Store, TestCase};
use source::Sources;
use validate::together::Places;
use validate::{Context, entries_of, names_of};

use tollgate_limit::{Micros, Timestamp};
use tollgate_policy::identity::Callers;
use tollgate_policy::{Policy, PolicyParts};

/// A valid configuration.
#[derive(Debug)]
pub struct Config {
    /// Where the gateway listens, and what it accepts from clients.
    pub server: Server,
    /// The admin listener.
    pub admin: Admin,
    /// Logs.
    pub log: Log,
    /// The store that gateways share; `None`: all limits are local.
    pub store: Option<Store>,
    /// The rules for requests.
    pub policy: Arc<Policy>,
    /// Tests of the file, for `tollgate check`.
    pub tests: Vec<TestCase>,
    /// Files of callers that are reloaded separately ([`load_callers`]), with the index of their
    /// identity.
    pub caller_files: Vec<(usize, PathBuf)>,
    /// Warnings about legal but probably unintended settings, rendered for printing.
    pub warnings: Vec<String>,
    /// The same warnings for programs.
    pub diagnostics: Vec<Diagnostic>,
    /// Unset environment variables for which a value was assumed ([`Unset::Assumed`]).
    pub assumed: Vec<String>,
    /// Every file that was read, and every pattern of an include: if one of these files changes,
    /// the configuration changes.
    pub files_read: Vec<PathBuf>,
}

/// All mistakes in a configuration.
pub struct ConfigError {
    problems: Vec<Problem>,
    sources: Sources,
    files: Vec<PathBuf>,
}

impl ConfigError {
    /// Renders every problem; in colour for a terminal.
    pub fn render(&self, colour: bool) -> String {
        let mut text = render::render(&self.problems, &self.sources, colour);
        let errors = self
            .problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count();
        if errors > 1 {
            text.push_str(&format!("\n\n{errors} errors"));
        }
        text
    }

    /// Every problem, for programs.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let problems = self.problems.iter();
        problems
            .map(|problem| Diagnostic::of(problem, &self.sources))
            .collect()
    }

    /// A configuration that cannot be read.
    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let title = format!("cannot read `{}`: {}", path.display(), plain(error));
        Self {
            problems: vec![Problem::error(title)],
            sources: Sources::default(),
            files: vec![path.to_path_buf()],
        }
    }

    /// Every file that was read or searched for: if one of them changes, the configuration may
    /// become valid.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How many errors there are, warnings not counted.
    pub fn errors(&self) -> usize {
        self.problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
    }

    /// Each problem as a key of the text with its message, for a text that nobody wrote as a file
    /// ([`quick()`]): its lines and columns mean nothing to its reader.
    pub fn by_key(&self) -> Vec<(String, String)> {
        let said = self.problems.iter().map(|problem| {
            let mark = problem.marks.first();
            let line = mark.map_or("", |mark| {
                let source = self.sources.of(mark.place.file);
                let start = source.text[..mark.place.range().start]
                    .rfind('\n')
                    .map_or(0, |at| at + 1);
                source.text[start..].lines().next().unwrap_or_default()
            });
            let key = line.split('=').next().unwrap_or_default().trim().to_owned();
            let label = mark
                .map(|mark| mark.label.as_str())
                .filter(|label| !label.is_empty());
            let parts = [problem.title.as_str()]
                .into_iter()
                .chain(label)
                .chain(problem.helps.iter().map(String::as_str));
            (key, parts.collect::<Vec<_>>().join("; "))
        });
        said.collect()
    }

    /// One line per problem, for logs: `gateway.toml:3:1: unknown key …`.
    pub fn lines(&self) -> Vec<String> {
        self.problems
            .iter()
            .map(|problem| match problem.marks.first() {
                Some(mark) => {
                    let (name, line, column) = self.sources.position(mark.place);
                    format!("{name}:{line}:{column}: {}", problem.title)
                }
                None => problem.title.clone(),
            })
            .collect()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

/// Parses a duration as the file writes it: `10s`, `1h30m`.
///
/// # Errors
/// The mistake.
pub fn duration(text: &str) -> Result<Micros, String> {
    quantity::duration(text).map_err(|flaw| flaw.title)
}

/// Parses a rate as the file writes it: units and their period.
///
/// # Errors
/// The mistake.
pub fn rate(text: &str) -> Result<(u64, Micros), String> {
    match rate::rate(text) {
        Ok(rate::Rate::Per { amount, period, .. }) => Ok((amount, period)),
        Ok(rate::Rate::Unlimited) => Err("`unlimited` is no rate to compare".to_owned()),
        Err(flaw) => Err(flaw.title),
    }
}

/// Reads a file and everything it includes. `now` determines the years for which calendar windows
/// are computed.
///
/// # Errors
/// All mistakes at once.
pub fn load(path: &Path, env: Env<'_>, now: Timestamp) -> Result<Config, ConfigError> {
    load_with(path, env, Unset::Refused, now)
}

/// The most bytes in one file of a configuration: far more than any has, and little enough to read
/// a device or the wrong file without harm.
pub const FILE_MAX: u64 = 16 << 20;

/// Reads one file of a configuration.
///
/// # Errors
/// If it cannot be read, is no text, or has more than 16 MiB.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_string(&mut text)?;
    if read as u64 > FILE_MAX {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "a configuration has at most 16 MiB",
        ));
    }
    Ok(text)
}

/// Like [`load`]; `unset` determines how unset variables are treated.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    path: &Path,
    env: Env<'_>,
    unset: Unset,
    now: Timestamp,
) -> Result<Config, ConfigError> {
    let text = read_text(path).map_err(|error| ConfigError::unreadable(path, &error))?;
    let base = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    compile(
        &path.display().to_string(),
        text,
        &base,
        vec![path.to_path_buf()],
        (env, unset),
        now,
    )
}

/// Reads a text. Messages call it `name`, and relative paths start in the directory of `name`.
///
/// # Errors
/// All mistakes at once.
pub fn parse(text: &str, name: &str, env: Env<'_>, now: Timestamp) -> Result<Config, ConfigError> {
    parse_with(text, name, env, Unset::Refused, now)
}

/// Like [`parse`]; `unset` determines how unset variables are treated.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(
    text: &str,
    name: &str,
    env: Env<'_>,
    unset: Unset,
    now: Timestamp,
) -> Result<Config, ConfigError> {
    let base = Path::new(name)
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf);
    compile(name, text.to_owned(), &base, Vec::new(), (env, unset), now)
}

/// Reads a file of callers again ([`Config::caller_files`]), for
/// [`tollgate_policy::identity::Identity::replace_callers`].
///
/// # Errors
/// All mistakes in it; the callers in force stay.
pub fn load_callers(path: &Path, policy: &Policy, env: Env<'_>) -> Result<Callers, ConfigError> {
    let mut sources = Sources::default();
    let mut problems = Problems::default();
    let mut tiers: Vec<&str> = policy
        .rules
        .iter()
        .flat_map(|rule| rule.tiers.iter().map(|(tier, _)| &**tier))
        .collect();
    tiers.sort_unstable();
    tiers.dedup();
    let callers = match read_text(path) {
        Ok(content) => {
            validate::callers::read(path, content, &tiers, env, &mut sources, &mut problems)
        }
        Err(error) => {
            problems.push(Problem::error(format!(
                "cannot read `{}`: {}",
                path.display(),
                plain(&error)
            )));
            None
        }
    };
    match callers {
        Some(callers) if !problems.any_error() => Ok(callers),
        _ => Err(ConfigError {
            problems: problems.into_sorted(),
            sources,
            files: vec![path.to_path_buf()],
        }),
    }
}

fn compile(
    name: &str,
    text: String,
    base: &Path,
    files: Vec<PathBuf>,
    (env, unset): (Env<'_>, Unset),
    now: Timestamp,
) -> Result<Config, ConfigError> {
    let mut problems = Problems::new(unset);
    let mut files = files;
    let Tree {
        mut raw,
        mut sources,
        broken_lines,
    } = include::read(name, text, base, env, &mut problems, &mut files);
    let mut context = Context {
        sources: &mut sources,
        problems: &mut problems,
        files: &mut files,
        env,
    };
    validate::limits::scope::name_sources(&mut raw, &mut context);
    let made = assemble(&raw, now, &mut context);
    // On a line that is not TOML, other mistakes are consequences of that; so may be keys that seem
    // to be missing.
    let is_toml = broken_lines.is_empty();
    let assumed = problems.assumed();
    let unset = if made.is_none() && !problems.any_error() {
        // The configuration cannot be built without their values.
        problems.unset()
    } else {
        Vec::new()
    };
    let problems: Vec<Problem> = problems
        .into_sorted()
        .into_iter()
        .filter(|problem| {
            let line = |mark: &problem::Mark| (mark.place.file, sources.position(mark.place).1 - 1);
            problem.syntax
                || problem
                    .marks
                    .first()
                    .map_or(is_toml, |mark| !broken_lines.contains(&line(mark)))
        })
        .collect();
    for problem in problems.iter().filter(|problem| problem.secret) {
        problem
            .marks
            .iter()
            .take(1)
            .for_each(|mark| sources.mask(mark.place));
    }
    let wrong = problems
        .iter()
        .any(|problem| problem.severity == Severity::Error);
    match made {
        Some(config) if !wrong => {
            files.sort();
            files.dedup();
            let warnings = problems
                .iter()
                .map(|problem| render::render(std::slice::from_ref(problem), &sources, false))
                .collect();
            let diagnostics = problems
                .iter()
                .map(|problem| Diagnostic::of(problem, &sources))
                .collect();
            Ok(Config {
                warnings,
                diagnostics,
                assumed,
                files_read: files,
                ..config
            })
        }
        _ => {
            // With errors, a warning is usually their consequence: a limit is "never used" when its
            // only route is wrong.
            let problems = problems
                .into_iter()
                .filter(|problem| problem.severity == Severity::Error)
                .chain(unset)
                .collect();
            Err(ConfigError {
                problems,
                sources,
                files,
            })
        }
    }
}

/// Builds a configuration from the mirror; `None` if mistakes, which were reported, prevent it.
fn assemble(raw: &raw::RawFile, now: Timestamp, context: &mut Context<'_>) -> Option<Config> {
    let server = validate::server::server(&raw.server, context);
    validate::server::warn_of_expiry(&raw.server, now, context);
    let admin = validate::server::admin(&raw.admin, &server, context);
    let log = validate::server::log(&raw.log, context);
    let address = validate::server::address(&raw.address, context);
    let store = validate::store::store(&raw.store, context);
    let names: Vec<&str> = names_of(&raw.identities);
    let identities = validate::identities::identities(raw, &names, context);
    let limits = validate::limits::limits(raw, &names, store.as_ref(), now, context);
    let mut upstreams = validate::upstreams::upstreams(raw, context);
    let known = validate::routes::Known {
        identities: &names,
        limits: &limits,
        body: server.bounds.body,
    };
    let routes = validate::routes::routes(raw, &known, &mut upstreams, context);
    let responses = validate::responses::responses(&raw.responses, context);
    validate::together::check_cluster(&routes, &limits, store.as_ref(), context);

    // An identity that could not be built shifts the indices of those after it, so that they would
    // get the wrong policy.
    if identities.broken {
        return None;
    }
    let route_places = routes.places.clone();
    let route_names = routes
        .list
        .iter()
        .map(|route| route.name.to_string())
        .collect();
    let written = entries_of(&raw.identities);
    let missing_places = written
        .iter()
        .map(|(name, identity)| identity.when_missing.place().unwrap_or(name.place))
        .collect();
    let key_places = written
        .iter()
        .map(|(name, identity)| identity.key.place().unwrap_or(name.place))
        .collect();
    let caller_files = identities.caller_files.clone();
    let cycles: Vec<_> = identities
        .list
        .iter()
        .map(|identity| identity.when_missing)
        .collect();
    let places = Places {
        written: &identities.written,
        when_missing: &cycles,
        missing_places,
        key_places,
        routes: route_places,
        route_names,
    };
    let parts = PolicyParts {
        address,
        identities: identities.list,
        rules: limits.rules,
        upstreams: upstreams.list,
        routes: routes.list,
        responses,
        egress: server.egress,
        keeps_slashes: raw
            .server
            .get()
            .is_none_or(|server| server.encoded_slash().value == EncodedSlash::Keep),
    };
    match Policy::build(parts) {
        Ok(policy) => {
            let tests = validate::tests_table::tests(raw, &policy.identities, context);
            validate::together::warn(raw, &policy, &server, context);
            let policy = Arc::new(policy);
            Some(Config {
                server,
                admin,
                log,
                store,
                policy,
                tests,
                caller_files,
                warnings: Vec::new(),
                diagnostics: Vec::new(),
                assumed: Vec::new(),
                files_read: Vec::new(),
            })
        }
        Err(errors) => {
            for error in errors {
                validate::together::build_error(error, &places, context);
            }
            None
        }
    }
}

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
