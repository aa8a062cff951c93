//! The command line as clap reads it.

mod files;
mod key;
mod logs;
mod running;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::load;

pub(super) use files::*;
pub(super) use key::*;
pub(super) use logs::*;
pub(super) use running::*;

/// A rate-limiting reverse-proxy gateway.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    propagate_version = true,
    args_conflicts_with_subcommands = true
)]
#[command(after_help = "Without a verb, `tollgate` runs the gateway.\n\n\
    Examples:\n  tollgate init\n  tollgate gateway.toml\n  \
    tollgate run --upstream http://127.0.0.1:3000 --limit 100/minute --per address\n  \
    tollgate check gateway.toml\n  \
    tollgate explain 'GET /v1/x' -H 'x-api-key: k'")]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
    #[command(flatten)]
    pub(super) run: Run,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run the gateway (the default)
    Run(Run),
    /// Check a configuration: print its limits in words and its warnings, run its tests
    Check(Check),
    /// Show the route, identities, limits and bucket keys of a request, with the reasons
    Explain(Explain),
    /// Explain why a running gateway refused a request, by the decision id in its response
    Why(Why),
    /// Show how a caller's buckets stand on running gateways, fill them, or change a caller's limits for a while
    #[command(subcommand)]
    Key(KeyVerb),
    /// Show who is refused now on running gateways, live in the terminal
    Top(Top),
    /// List the overrides in force on running gateways
    #[command(
        after_help = "Examples:\n  tollgate overrides\n  tollgate overrides --admin 10.0.0.1:9180,10.0.0.2:9180 --format json\n\n\
    Exit code: 0 every gateway has listed them, 1 one has not, 2 wrong use."
    )]
    Overrides(GatewaysAndFormat),
    /// List the changes that operators and penalties have made on running gateways
    #[command(
        after_help = "Examples:\n  tollgate audit\n  tollgate audit --admin 10.0.0.1:9180,10.0.0.2:9180 --format json\n\n\
    A gateway keeps the last thousand changes since its start; all are in the file that `audit` of [admin] names.\n\n\
    Exit code: 0 every gateway has listed them, 1 one has not, 2 wrong use."
    )]
    Audit(GatewaysAndFormat),
    /// Show how much the operations log of running gateways says, or change it for a while
    LogLevel(LogLevel),
    /// Apply a configuration to an access log in virtual time, and report its refusals
    Replay(Replay),
    /// Compute the numbers of a limit from an access log
    Suggest(Suggest),
    /// Print the differences between two configurations, and between their verdicts on a log
    Diff(Diff),
    /// Format a configuration; only whitespace changes
    Fmt(Fmt),
    /// Translate the limits of another gateway's configuration, and say what differs
    Import(Import),
    /// Print the JSON Schema of gateway.toml, for editors; or a shared store's SQL
    Schema(Schema),
    /// Ask a running gateway whether it is ready: for container health checks
    Health(Health),
    /// Write a commented configuration to start from
    Init(Init),
    /// Print the hash by which a list of callers names an API key
    Hash(Hash),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page, or write one for each verb
    Man(Man),
}

/// Where the configuration is, for verbs that also take it as an argument.
#[derive(Clone, Debug, Args)]
pub(super) struct ConfigFile {
    /// The configuration; `-` is standard input
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same [env: TOLLGATE_CONFIG] [default: gateway.toml]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// This file, or the default one.
    pub(super) fn option(config: Option<PathBuf>) -> Self {
        Self { file: None, config }
    }

    /// The file that an argument, an option or the environment names.
    pub(super) fn written(&self) -> Option<PathBuf> {
        let written = self.file.as_ref().or(self.config.as_ref());
        let variable = || load::environment("TOLLGATE_CONFIG").filter(|path| !path.is_empty());
        written.cloned().or_else(|| variable().map(PathBuf::from))
    }

    /// That file or the default one; `-` is standard input.
    pub(super) fn path(&self) -> PathBuf {
        self.written().unwrap_or_else(|| "gateway.toml".into())
    }
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  tollgate run gateway.toml\n  \
    tollgate run gateway.toml --listen 127.0.0.1:8081 --admin 127.0.0.1:9181\n  \
    tollgate run --upstream http://127.0.0.1:3000 --limit 100/minute --per address\n\n\
    SIGHUP or a changed file reloads, SIGTERM drains, SIGUSR1 reopens the access log,\n    SIGUSR2 hands everything over to a new process of the program as it is on the disk now.")]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Replace the gateway at the other end of standard input, which started this process after SIGUSR2
    #[arg(long, hide = true)]
    pub(super) take_over: bool,
    /// Start without a file: forward everything to this server
    #[arg(long, value_name = "URL", requires = "limit")]
    pub(super) upstream: Option<String>,
    /// Without a file: the limit, like 100/minute
    #[arg(long, value_name = "RATE", requires = "upstream")]
    pub(super) limit: Option<String>,
    /// Without a file: the owner of each bucket: address, everyone, or a source like header:x-api-key
    #[arg(
        long,
        value_name = "WHAT",
        requires = "limit",
        default_value = "address"
    )]
    pub(super) per: String,
    /// The listener, in place of those in the file [default without a file: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<String>,
    /// The admin listener, or `off`, in place of the one in the file [default without a file: 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Words
    Human,
    /// One JSON document
    Json,
}
