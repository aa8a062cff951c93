//! The command line, with a file for each larger subcommand. It is the only reader of arguments and
//! environment. Results go to standard output, messages to standard error.
//!
//! Exit codes: 0 success, 1 a negative result, 2 wrong usage.

/// Prints a message on standard error; what a terminal would obey in it is escaped.
macro_rules! tell {
    ($($message:tt)*) => {
        $crate::cli::print_err(&tollgate_limit::printable::printable_lines(&format!($($message)*)))
    };
}

mod args;
mod check;
mod diff;
mod document;
mod explain;
mod files;
mod gateway;
mod listeners;
mod lookup;
mod import;
mod key;
mod overrides;
mod load;
mod origin;
mod replay;
mod request;
mod run;
mod running;
mod suggest;
mod token;
mod top;
mod trial;
mod why;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Sql, Verb};
use tollgate_config::ConfigError;
use tollgate_limit::printable::printable_lines;

pub fn main() -> ExitCode {
    if let Some(what) = misspelt() {
        return Stop::Misuse(what).exit_code("tollgate");
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let plain = error.render().to_string();
            if printable_lines(&plain) == plain {
                // In colour, for a terminal. A closed pipe is ignored.
                let _ = error.print();
            } else {
                tell!("{plain}");
            }
            // Help and version are results, not errors.
            return if error.use_stderr() {
                wrong_use()
            } else {
                GOOD
            };
        }
    };
    let (verb, ended) = match cli.verb {
        None => ("tollgate", run::run(&cli.run)),
        Some(Verb::Run(args)) => ("tollgate", run::run(&args)),
        Some(Verb::Schema(args)) => ("tollgate schema", Ok(schema(args.sql))),
        Some(Verb::Check(args)) => ("tollgate check", check::check(&args)),
        Some(Verb::Explain(args)) => ("tollgate explain", explain::explain(&args)),
        Some(Verb::Key(verb)) => key::key(&verb),
        Some(Verb::Top(args)) => ("tollgate top", top::top(&args)),
        Some(Verb::Overrides(args)) => ("tollgate overrides", running::overrides(&args)),
        Some(Verb::Audit(args)) => ("tollgate audit", running::audit(&args)),
        Some(Verb::Why(args)) => ("tollgate why", why::why(&args)),
        Some(Verb::LogLevel(args)) => ("tollgate log-level", running::log_level(&args)),
        Some(Verb::Replay(args)) => ("tollgate replay", replay::replay(&args)),
        Some(Verb::Suggest(args)) => ("tollgate suggest", suggest::suggest(&args)),
        Some(Verb::Diff(args)) => ("tollgate diff", diff::diff(&args)),
        Some(Verb::Fmt(args)) => ("tollgate fmt", files::fmt(&args)),
        Some(Verb::Import(args)) => ("tollgate import", import::import(&args)),
        Some(Verb::Health(args)) => ("tollgate health", running::health(&args)),
        Some(Verb::Init(args)) => ("tollgate init", files::init(&args)),
        Some(Verb::Hash(args)) => ("tollgate hash", files::hash(&args)),
        Some(Verb::Completions(args)) => ("tollgate completions", Ok(files::completions(&args))),
        Some(Verb::Man(args)) => ("tollgate man", files::man(&args)),
    };
    ended.unwrap_or_else(|stop| stop.exit_code(verb))
}

fn schema(sql: Option<Sql>) -> ExitCode {
    match sql {
        None => print_out(&format!("{:#}", tollgate_config::schema())),
        Some(Sql::Postgres) => print_out(tollgate_store::postgres::schema_sql()),
        Some(Sql::Spanning) => print_out(tollgate_store::postgres::spanning_schema_sql()),
        Some(Sql::Mysql) => print_out(tollgate_store::mysql::schema_sql()),
    }
}

/// What to say of a first argument that is neither a verb, an option nor a file.
fn misspelt() -> Option<String> {
    let word = std::env::args_os().nth(1)?.into_string().ok()?;
    let command = Cli::command();
    let verbs = || command.get_subcommands().map(clap::Command::get_name);
    let is_word = !word.is_empty() && !word.starts_with('-') && !word.contains(['/', '.']);
    let is_known = verbs().any(|verb| verb == word) || word == "help";
    if !is_word || is_known || std::path::Path::new(&word).exists() {
        return None;
    }
    let meant = match HABITS.iter().find(|(words, _)| words.contains(&&*word)) {
        Some((_, meant)) => format!("  {meant}\n"),
        None => match tollgate_config::nearest(&word, verbs()) {
            Some(near) => format!("  did you mean `tollgate {near}`?\n"),
            None => String::new(),
        },
    };
    Some(format!(
        "`{word}` is neither a verb nor a file\n{meant}  `tollgate --help` lists the verbs"
    ))
}

/// Verbs of other programs, and what does the same here.
const HABITS: [(&[&str], &str); 6] = [
    (
        &["reload"],
        "a running gateway reloads a changed file by itself, and on SIGHUP: `kill -HUP PID`, or `curl -X POST http://127.0.0.1:9180/-/reload`",
    ),
    (
        &[
            "validate",
            "verify",
            "lint",
            "test",
            "configtest",
            "check-config",
        ],
        "did you mean `tollgate check`?",
    ),
    (&["version"], "did you mean `tollgate --version`?"),
    (
        &["status", "stats", "ping"],
        "`tollgate health` asks a running gateway whether it is ready, `tollgate top` shows who is refused",
    ),
    (
        &["start", "serve", "server", "up"],
        "did you mean `tollgate run`?",
    ),
    (
        &["stop", "quit", "shutdown", "restart", "upgrade"],
        "SIGTERM drains and ends a running gateway, SIGUSR2 replaces it by a new process: `kill -TERM PID`",
    ),
];

/// Writes on standard error. One that is closed is no error: there is nobody to read.
fn print_err(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn text_of(tell: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    tell(&mut text).expect("writing into a String cannot fail");
    text
}

/// Prints a result; successful unless it cannot be written. What a terminal would obey in it is
/// escaped, as JSON and TOML escape it.
fn print_out(text: &str) -> ExitCode {
    let text = printable_lines(text);
    let mut out = io::stdout().lock();
    let done = out
        .write_all(text.as_bytes())
        .and_then(|()| match text.ends_with('\n') {
            true => out.flush(),
            false => out.write_all(b"\n").and_then(|()| out.flush()),
        });
    match done {
        // A closed pipe is normal, as in `tollgate schema | head`.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            tell!("tollgate: cannot write: {error}");
            BAD
        }
        _ => GOOD,
    }
}

/// Whether standard error supports colours: it is a terminal, and colours are not disabled.
fn colour() -> bool {
    io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

const GOOD: ExitCode = ExitCode::SUCCESS;
const BAD: ExitCode = ExitCode::FAILURE;

/// The exit code for wrong usage, which clap uses too.
fn wrong_use() -> ExitCode {
    ExitCode::from(2)
}

/// Writes a new file; one that is there is an error, also when it was created meanwhile.
fn create_file(path: &std::path::Path, text: &str) -> Result<(), String> {
    let created = std::fs::File::create_new(path);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes()));
    let name = path.display();
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{name} is there already and is not overwritten")
        }
        _ => format!("cannot write {name}: {error}"),
    })
}

fn replace_file(path: &std::path::Path, text: &str) -> Result<(), String> {
    write_file(path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

/// Replaces a file atomically: other processes read either the old or the new text.
fn write_file(path: &std::path::Path, text: &str) -> io::Result<()> {
    // A symbolic link is kept, and its target is written.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tollgate-new");
    let beside = path.with_file_name(name);
    std::fs::write(&beside, text)?;
    if let Ok(metadata) = std::fs::metadata(path) {
        std::fs::set_permissions(&beside, metadata.permissions())?;
    }
    std::fs::rename(&beside, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

/// How a verb ends: with an exit code, after what it has printed itself, or early.
type Ended = Result<ExitCode, Stop>;

enum Stop {
    Bad(String),
    Misuse(String),
    Config(ConfigError),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Bad(what)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl Stop {
    /// Tells the reason on standard error; `verb` is the command that ends.
    fn exit_code(self, verb: &str) -> ExitCode {
        match self {
            Self::Bad(what) => {
                tell!("{verb}: {what}");
                BAD
            }
            Self::Misuse(what) => {
                tell!("{verb}: {what}");
                wrong_use()
            }
            Self::Config(error) => {
                // It escapes what it shows of the file itself, and may be in colour.
                print_err(&error.render(colour()));
                BAD
            }
        }
    }
}
