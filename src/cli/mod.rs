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
mod stop;
mod suggest;
mod token;
mod top;
mod trial;
mod why;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Sql, Verb};
use stop::{Ended, Stop};
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
    let (verb, ended) = match cli.verb {
        None => ("tollgate", unless_misspelt(&cli.run)),
        Some(Verb::Run(args)) => ("tollgate", run::run(&args)),
        Some(Verb::Schema(args)) => ("tollgate schema", Ok(schema(args.sql))),
        Some(Verb::Check(args)) => ("tollgate check", check::check(&args)),
        Some(Verb::Explain(args)) => ("tollgate explain", explain::explain(&args)),
        Some(Verb::Key(verb)) => key::key(&verb),
        Some(Verb::Top(args)) => ("tollgate top", top::top(&args)),
        Some(Verb::Overrides(args)) => ("tollgate overrides", overrides::list(&args)),
        Some(Verb::Audit(args)) => ("tollgate audit", audit::audit(&args)),
        Some(Verb::Why(args)) => ("tollgate why", why::why(&args)),
        Some(Verb::LogLevel(args)) => ("tollgate log-level", log_level::log_level(&args)),
        Some(Verb::Replay(args)) => ("tollgate replay", replay::replay(&args)),
        Some(Verb::Suggest(args)) => ("tollgate suggest", suggest::suggest(&args)),
        Some(Verb::Diff(args)) => ("tollgate diff", diff::diff(&args)),
        Some(Verb::Fmt(args)) => ("tollgate fmt", fmt::fmt(&args)),
        Some(Verb::Import(args)) => ("tollgate import", import::import(&args)),
        Some(Verb::Health(args)) => ("tollgate health", health::health(&args)),
        Some(Verb::Init(args)) => ("tollgate init", init::init(&args)),
        Some(Verb::Hash(args)) => ("tollgate hash", hash::hash(&args)),
        Some(Verb::Completions(args)) => ("tollgate completions", Ok(manual::completions(&args))),
        Some(Verb::Man(args)) => ("tollgate man", manual::man(&args)),
    };
    ended.unwrap_or_else(|stop| stop.told(verb))
}

fn schema(sql: Option<Sql>) -> ExitCode {
    match sql {
        None => print_out(&format!("{:#}", tollgate_config::schema())),
        Some(Sql::Postgres) => print_out(tollgate_store::postgres::schema_sql()),
        Some(Sql::Mysql) => print_out(tollgate_store::mysql::schema_sql()),
    }
}

/// Runs the gateway, unless a first argument that is not a file is probably a mistyped subcommand:
/// `tollgate chekc`.
fn unless_misspelt(run: &args::Run) -> Ended {
    let word = run.config.argument().filter(|argument| !argument.exists());
    let word = word.and_then(std::path::Path::to_str);
    let Some(word) = word.filter(|word| *word != "-" && !word.contains(['/', '.'])) else {
        return run::run(run);
    };
    let command = Cli::command();
    let verbs = command.get_subcommands().map(clap::Command::get_name);
    let meant = match tollgate_config::nearest(word, verbs) {
        Some(near) => format!("  did you mean `tollgate {near}`?\n"),
        None => String::new(),
    };
    Err(Stop::Misuse(format!(
        "`{word}` is neither a verb nor a file\n{meant}  `tollgate --help` lists the verbs"
    )))
}

/// The text that `tell` writes.
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
    let mut new = std::fs::OpenOptions::new();
    let created = new.write(true).create_new(true).open(path);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes()));
    let name = path.display();
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{name} is there already and is not overwritten")
        }
        _ => format!("cannot write {name}: {error}"),
    })
}

/// Replaces a file; the error names it.
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
