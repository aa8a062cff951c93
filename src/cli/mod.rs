//! The command line, with one file per subcommand. It is the only reader of arguments and
//! environment. Results go to standard output, messages to standard error.
//!
//! Exit codes: 0 success, 1 a negative result, 2 wrong usage.

/// Prints a message on standard error; what a terminal would obey in it is escaped.
macro_rules! tell {
    ($($message:tt)*) => {
        eprintln!("{}", tollgate_limit::printable::printable_lines(&format!($($message)*)))
    };
}

mod args;
mod audit;
mod check;
mod diff;
mod document;
mod explain;
mod fleet;
mod fmt;
mod gateway;
mod hash;
mod health;
mod import;
mod init;
mod key;
mod overrides;
mod load;
mod log_level;
mod manual;
mod origin;
mod replay;
mod request;
mod run;
mod suggest;
mod top;
mod trial;
mod why;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Sql, Verb};
use tollgate_config::ConfigError;
use tollgate_limit::printable::printable_lines;

/// Runs the command line.
pub fn main() -> ExitCode {
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
    match cli.verb {
        None => match misspelt(&cli.run) {
            Some(code) => code,
            None => run::run(&cli.run),
        },
        Some(Verb::Run(args)) => run::run(&args),
        Some(Verb::Schema(args)) => match args.sql {
            None => print_out(&format!("{:#}", tollgate_config::schema())),
            Some(Sql::Postgres) => print_out(tollgate_store::postgres::schema_sql()),
            Some(Sql::Mysql) => print_out(tollgate_store::mysql::schema_sql()),
        },
        Some(Verb::Check(args)) => check::check(&args),
        Some(Verb::Explain(args)) => explain::explain(&args),
        Some(Verb::Key(args)) => key::key(&args.verb),
        Some(Verb::Top(args)) => top::top(&args),
        Some(Verb::Overrides(args)) => overrides::list(&args),
        Some(Verb::Audit(args)) => audit::audit(&args),
        Some(Verb::Why(args)) => why::why(&args),
        Some(Verb::LogLevel(args)) => log_level::log_level(&args),
        Some(Verb::Replay(args)) => replay::replay(&args),
        Some(Verb::Suggest(args)) => suggest::suggest(&args),
        Some(Verb::Diff(args)) => diff::diff(&args),
        Some(Verb::Fmt(args)) => fmt::fmt(&args),
        Some(Verb::Import(args)) => import::import(&args),
        Some(Verb::Health(args)) => health::health(&args),
        Some(Verb::Init(args)) => init::init(&args),
        Some(Verb::Hash(args)) => hash::hash(&args),
        Some(Verb::Completions(args)) => manual::completions(&args),
        Some(Verb::Man(args)) => manual::man(&args),
    }
}

/// A first argument that is not a file may be a mistyped subcommand: `tollgate chekc`.
fn misspelt(run: &args::Run) -> Option<ExitCode> {
    let argument = run.config.argument()?;
    let word = argument.to_str()?;
    if word == "-" || word.contains(['/', '.']) || argument.exists() {
        return None;
    }
    tell!("tollgate: `{word}` is neither a verb nor a file");
    let command = Cli::command();
    let verbs = command.get_subcommands().map(clap::Command::get_name);
    if let Some(near) = tollgate_config::nearest(word, verbs) {
        tell!("  did you mean `tollgate {near}`?");
    }
    tell!("  `tollgate --help` lists the verbs");
    Some(wrong_use())
}

/// Prints the mistakes in a configuration.
fn tell_error(error: &ConfigError) {
    // It escapes what it shows of the file itself, and may be in colour.
    eprintln!("{}", error.render(colour()));
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
fn create_file(path: &std::path::Path, text: &str) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)?;
    file.write_all(text.as_bytes())
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
