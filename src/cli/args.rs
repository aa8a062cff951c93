//! The command line as clap reads it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::load;

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
    /// `run` without saying so.
    #[command(flatten)]
    pub(super) run: Run,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run the gateway (the default)
    Run(Run),
    /// Check a configuration: say its limits in words, warn, run its tests
    Check(Check),
    /// Show what a request would meet: route, identity, limits, bucket keys, and why
    Explain(Explain),
    /// Print the JSON Schema of gateway.toml, for editors; or a shared store's SQL
    Schema(Schema),
    /// Ask a running gateway whether it is ready: for container health checks
    Health(Health),
    /// Write a commented configuration to start from
    Init(Init),
    /// Turn an API key into what a list of callers names it by
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
    /// What is written; `None`: nothing, and the default holds.
    pub(super) fn written(&self) -> Option<PathBuf> {
        let written = self.file.as_ref().or(self.config.as_ref());
        let variable = || load::environment("TOLLGATE_CONFIG").filter(|path| !path.is_empty());
        written.cloned().or_else(|| variable().map(PathBuf::from))
    }

    /// The file, as it is written or by default; `-` is standard input.
    pub(super) fn path(&self) -> PathBuf {
        self.written().unwrap_or_else(|| "gateway.toml".into())
    }

    /// The first argument, which may have been meant for a verb.
    pub(super) fn argument(&self) -> Option<&Path> {
        self.file.as_deref()
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
    /// Take the place of the gateway at the other end of standard input: SIGUSR2 has it start this
    #[arg(long, hide = true)]
    pub(super) take_over: bool,
    /// Start without a file: forward everything to this server
    #[arg(long, value_name = "URL", requires = "limit")]
    pub(super) upstream: Option<String>,
    /// Without a file: the limit, like 100/minute
    #[arg(long, value_name = "RATE", requires = "upstream")]
    pub(super) limit: Option<String>,
    /// Without a file: what each bucket belongs to: address, everyone, or a source like header:x-api-key
    #[arg(
        long,
        value_name = "WHAT",
        requires = "limit",
        default_value = "address"
    )]
    pub(super) per: String,
    /// Where to listen, instead of where the file says [default without a file: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<String>,
    /// Where the admin listener is, or `off`, instead of what the file says [default without a file: 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate check\n  tollgate check gateway.toml --format json\n  \
    generate-config | tollgate check -\n\n\
    Exit code: 0 the file is good and its tests pass, 1 it is not or they do not, 2 wrong use."
)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Go on where variables of the environment are not set, and say which: for places that have no secrets
    #[arg(long)]
    pub(super) without_env: bool,
    /// Treat warnings as errors
    #[arg(long)]
    pub(super) strict: bool,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate explain 'GET /v1/x' -H 'x-api-key: k'\n  \
    tollgate explain 'POST api.example.com/orders' --ip 192.0.2.7 --format json\n\n\
    Exit code: 0 a route takes it, 1 it is refused before any limit (404, 401), 2 wrong use."
)]
pub(super) struct Explain {
    /// METHOD PATH or METHOD HOST/PATH
    pub(super) request: String,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(super) headers: Vec<String>,
    /// The address it comes from
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) ip: IpAddr,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate schema > gateway.schema.json\n  tollgate schema --sql postgres | psql \"$STORE_URL\""
)]
pub(super) struct Schema {
    /// Print the tables and functions of a shared store instead, for where the gateway may not make them
    #[arg(long, value_enum, value_name = "STORE")]
    pub(super) sql: Option<Sql>,
}

/// Stores that want a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Sql {
    /// PostgreSQL, and what speaks it
    Postgres,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate health\n  tollgate health --live --admin 127.0.0.1:9180\n\n\
    Exit code: 0 it is, 1 it is not or does not answer, 2 wrong use."
)]
pub(super) struct Health {
    /// The gateway's admin listener [default: what the configuration says, else 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_ADMIN")]
    pub(super) admin: Option<String>,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Ask whether it lives, not whether it is ready
    #[arg(long)]
    pub(super) live: bool,
    /// How long it may take, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub(super) timeout: u64,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate init\n  tollgate init edge /etc/tollgate/gateway.toml\n  tollgate init egress -\n\n\
    Exit code: 0 it is written, 1 it is not: a file that is there is never overwritten."
)]
pub(super) struct Init {
    /// What the gateway is for
    #[arg(value_enum, default_value_t = Setup::Sidecar)]
    pub(super) setup: Setup,
    /// The file to write; `-` is standard output
    #[arg(default_value = "gateway.toml")]
    pub(super) file: PathBuf,
}

/// What a gateway is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Setup {
    /// In front of one API, beside it
    Sidecar,
    /// In front of several services, with API keys and tiers
    Edge,
    /// In front of services you depend on, on the way out
    Egress,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  printf %s \"$KEY\" | tollgate hash\n  \
    openssl rand -hex 24 | tee key.txt | tollgate hash --name acme --tier pro\n\n\
    The end of the line is no part of the key.")]
pub(super) struct Hash {
    /// Print the whole line of a list of callers, with this name
    #[arg(long)]
    pub(super) name: Option<String>,
    /// The caller's tier
    #[arg(long, requires = "name")]
    pub(super) tier: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate completions bash > /usr/share/bash-completion/completions/tollgate\n  \
    tollgate completions zsh > ~/.zfunc/_tollgate"
)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate man | man -l -\n  tollgate man /usr/local/share/man/man1"
)]
pub(super) struct Man {
    /// Write a page for the program and one for each verb here
    #[arg(value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Words
    Human,
    /// One JSON document
    Json,
}
