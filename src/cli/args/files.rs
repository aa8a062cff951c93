//! Arguments of the verbs that read or write files.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{AdminListeners, ConfigFile, Format, Patience};
use tollgate_import::Peer;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate check\n  tollgate check gateway.toml --format json\n  \
    generate-config | tollgate check -\n\n\
    Exit code: 0 the file is valid and its tests pass, 1 otherwise, 2 wrong use."
)]
pub(in crate::cli) struct Check {
    #[command(flatten)]
    pub(in crate::cli) config: ConfigFile,
    /// Accept environment variables that are not set, and name them: for machines without the secrets
    #[arg(long)]
    pub(in crate::cli) without_env: bool,
    /// Treat warnings as errors
    #[arg(long)]
    pub(in crate::cli) strict: bool,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(in crate::cli) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate explain 'GET /v1/x' -H 'x-api-key: k'\n  \
    tollgate explain 'POST api.example.com/orders' --ip 192.0.2.7 --format json\n  \
    tollgate explain 'GET /v1/x' -H 'x-api-key: k' --live\n\n\
    Exit code: 0 a route takes the request, 1 it is refused before any limit (404, 401), 2 wrong use."
)]
pub(in crate::cli) struct Explain {
    /// METHOD PATH or METHOD HOST/PATH
    pub(in crate::cli) request: String,
    #[command(flatten)]
    pub(in crate::cli) config: ConfigFile,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(in crate::cli) headers: Vec<String>,
    /// The body of the request
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) body: Option<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(in crate::cli) ip: IpAddr,
    /// Ask the running gateway, the first that --admin names, how each bucket stands now; nothing is charged
    #[arg(long)]
    pub(in crate::cli) live: bool,
    #[command(flatten)]
    pub(in crate::cli) listeners: AdminListeners,
    #[command(flatten)]
    pub(in crate::cli) patience: Patience,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(in crate::cli) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate schema > gateway.schema.json\n  tollgate schema --sql postgres | psql \"$STORE_URL\"\n  tollgate schema --sql spanning | psql \"$STORE_URL\"\n  tollgate schema --sql mysql | mariadb tollgate"
)]
pub(in crate::cli) struct Schema {
    /// Print the tables and functions of a shared store instead, for a gateway that has no right to create them
    #[arg(long, value_enum, value_name = "STORE")]
    pub(in crate::cli) sql: Option<Sql>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum Sql {
    /// PostgreSQL
    Postgres,
    /// YugabyteDB, CockroachDB or Aurora DSQL
    Spanning,
    /// MariaDB or MySQL
    Mysql,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate init\n  tollgate init edge /etc/tollgate/gateway.toml\n  tollgate init egress -\n\n\
    Exit code: 0 the file is written, 1 it is not: an existing file is never overwritten."
)]
pub(in crate::cli) struct Init {
    /// The purpose of the gateway
    #[arg(value_enum, default_value_t = Setup::Sidecar)]
    pub(in crate::cli) setup: Setup,
    /// The file to write; `-` is standard output
    #[arg(default_value = "gateway.toml")]
    pub(in crate::cli) file: PathBuf,
}

/// The purpose of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Setup {
    /// In front of one API, beside it
    Sidecar,
    /// In front of several services, with API keys and tiers
    Edge,
    /// Between your applications and the services that they depend on
    Egress,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  printf %s \"$KEY\" | tollgate hash\n  \
    openssl rand -hex 24 | tee key.txt | tollgate hash --name acme --tier pro\n\n\
    The end of the line is no part of the key.")]
pub(in crate::cli) struct Hash {
    /// Print the whole line of a list of callers, with this name
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
    /// The caller's tier
    #[arg(long, requires = "name")]
    pub(in crate::cli) tier: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate completions bash > /usr/share/bash-completion/completions/tollgate\n  \
    tollgate completions zsh > ~/.zfunc/_tollgate"
)]
pub(in crate::cli) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(in crate::cli) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate man | man -l -\n  tollgate man /usr/local/share/man/man1"
)]
pub(in crate::cli) struct Man {
    /// Write a page for the program and one for each verb here
    #[arg(value_name = "DIR")]
    pub(in crate::cli) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate fmt gateway.toml\n  tollgate fmt --check\n\n\
    Exit code: 0 good, 1 the file is not formatted (--check) or not valid, 2 wrong use."
)]
pub(in crate::cli) struct Fmt {
    /// The configuration
    #[arg(default_value = "gateway.toml")]
    pub(in crate::cli) file: PathBuf,
    /// Change nothing; exit with 1 if the file is not formatted
    #[arg(long)]
    pub(in crate::cli) check: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate import nginx.conf > gateway.toml\n  \
    tollgate import kong.yml --output gateway.toml\n  \
    kubectl get ingress -A -o yaml | tollgate import - --from ingress\n\n\
    The configuration goes to standard output or the file, the report to standard error. \
    What is written passes `tollgate check`.\n\n\
    Exit code: 0 all limits are imported, 1 some are not or nothing is written, 2 wrong use."
)]
pub(in crate::cli) struct Import {
    /// The configurations, all of one gateway; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The gateway that they configure [default: recognised by name and contents]
    #[arg(long, value_enum, value_name = "GATEWAY")]
    pub(in crate::cli) from: Option<Peer>,
    /// Write the configuration here; an existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) output: Option<PathBuf>,
    /// The output format: `json` is one document with the configuration in it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(in crate::cli) format: Format,
}
