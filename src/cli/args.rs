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
    /// Check a configuration: print its limits in words and its warnings, run its tests
    Check(Check),
    /// Show the route, identities, limits and bucket keys of a request, with the reasons
    Explain(Explain),
    /// Explain why a running gateway refused a request, by the decision id in its response
    Why(Why),
    /// Show how a caller's buckets stand on running gateways, fill them, or change a caller's limits for a while
    Key(Key),
    /// Show who is refused now on running gateways, live in the terminal
    Top(Top),
    /// List the overrides in force on running gateways
    Overrides(ListOverrides),
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

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate check\n  tollgate check gateway.toml --format json\n  \
    generate-config | tollgate check -\n\n\
    Exit code: 0 the file is valid and its tests pass, 1 otherwise, 2 wrong use."
)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Accept environment variables that are not set, and name them: for machines without the secrets
    #[arg(long)]
    pub(super) without_env: bool,
    /// Treat warnings as errors
    #[arg(long)]
    pub(super) strict: bool,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate explain 'GET /v1/x' -H 'x-api-key: k'\n  \
    tollgate explain 'POST api.example.com/orders' --ip 192.0.2.7 --format json\n  \
    tollgate explain 'GET /v1/x' -H 'x-api-key: k' --live\n\n\
    Exit code: 0 a route takes the request, 1 it is refused before any limit (404, 401), 2 wrong use."
)]
pub(super) struct Explain {
    /// METHOD PATH or METHOD HOST/PATH
    pub(super) request: String,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(super) headers: Vec<String>,
    /// The body of the request
    #[arg(long, value_name = "TEXT")]
    pub(super) body: Option<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) ip: IpAddr,
    /// Ask the running gateway how each bucket stands now; nothing is charged
    #[arg(long)]
    pub(super) live: bool,
    /// With `--live`: the admin listener of the running gateway [default: the one in the configuration, else 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_ADMIN")]
    pub(super) admin: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

/// The running gateways that a verb asks.
#[derive(Clone, Debug, Args)]
pub(super) struct Gateways {
    /// The admin listeners of the gateways, separated by commas [default: the one in the configuration, else 127.0.0.1:9180]
    #[arg(
        long,
        value_name = "ADDRESSES",
        env = "TOLLGATE_ADMIN",
        value_delimiter = ','
    )]
    pub(super) admin: Vec<String>,
    /// The configuration that names the admin listener [env: TOLLGATE_CONFIG] [default: gateway.toml]
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The time limit for one gateway, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub(super) timeout: u64,
}

#[derive(Debug, Args)]
pub(super) struct Key {
    #[command(subcommand)]
    pub(super) verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyVerb {
    /// Show how each bucket of a caller stands; nothing is charged
    Show(KeyShow),
    /// Fill a caller's buckets; an operator's change, which the gateway records
    Reset(KeyReset),
    /// Give a caller other numbers, or no limit, for a while
    Raise(KeyRaise),
    /// Refuse every request of a caller for a while
    Block(KeyBlock),
    /// End a caller's overrides before their time
    Lift(KeyLift),
}

/// Who asks for a change, and why.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// A file with the operator's bearer token [default: the environment variable TOLLGATE_TOKEN; none over a Unix socket]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Only say what would be changed
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// How long an override lasts.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Lasts {
    /// How long, 30 days at most
    #[arg(long = "for", value_name = "DURATION")]
    pub(super) lasts: Option<String>,
    /// Until when, in RFC 3339 form
    #[arg(long, value_name = "TIME")]
    pub(super) until: Option<String>,
}

/// The caller whose limits are changed.
#[derive(Debug, Args)]
pub(super) struct ChangedKey {
    /// The identity as the file names it, `address`, or `everyone`
    pub(super) identity: String,
    /// The caller: its name in the list of callers, or its key; a key of several parts has a value for each
    pub(super) values: Vec<String>,
    /// The limit [default: every limit that the identity alone decides]
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate key raise tenant acme --limit search --rate 1000/minute --for 1h --reason 'ticket 4711'\n  \
    tollgate key raise address 192.0.2.7 --unlimited --until 2030-01-31T18:00:00Z --reason 'load test'\n\n\
    Numbers are for one limit: name it, if the caller has several. They may also be lower. Nothing is refilled, neither then nor at the end.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(super) struct KeyRaise {
    #[command(flatten)]
    pub(super) key: ChangedKey,
    /// The rate, such as 1000/minute
    #[arg(long, value_name = "RATE", required_unless_present_any = ["burst", "unlimited"])]
    pub(super) rate: Option<String>,
    /// The most at once [default: the limit's own, or the number of the rate where the limit has none]
    #[arg(long, value_name = "UNITS")]
    pub(super) burst: Option<u64>,
    /// No limit at all
    #[arg(long, conflicts_with_all = ["rate", "burst"])]
    pub(super) unlimited: bool,
    #[command(flatten)]
    pub(super) lasts: Lasts,
    #[command(flatten)]
    pub(super) change: Change,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tollgate key block address 192.0.2.7 --for 10m --reason 'scans the API'\n\n\
    Requests get 429 with a Retry-After until the end, and charge nothing. Without --limit every limit of the caller blocks.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(super) struct KeyBlock {
    #[command(flatten)]
    pub(super) key: ChangedKey,
    #[command(flatten)]
    pub(super) lasts: Lasts,
    #[command(flatten)]
    pub(super) change: Change,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tollgate key lift tenant acme --reason 'their job is done'\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(super) struct KeyLift {
    #[command(flatten)]
    pub(super) key: ChangedKey,
    #[command(flatten)]
    pub(super) change: Change,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate overrides\n  tollgate overrides --admin 10.0.0.1:9180,10.0.0.2:9180 --format json\n\n\
    Exit code: 0 every gateway has told, 1 one has not, 2 wrong use."
)]
pub(super) struct ListOverrides {
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate key reset tenant acme --reason 'their job ran twice' --token-file token.txt\n  \
    tollgate key reset address 192.0.2.7 --limit search --reason 'ticket 4711' --admin unix:/run/tollgate/admin.sock\n\n\
    Of several gateways each is asked: local buckets are in every gateway, shared ones are in their store.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(super) struct KeyReset {
    /// The identity as the file names it, `address`, or `everyone`
    pub(super) identity: String,
    /// The caller: its name in the list of callers, or its key; a key of several parts has a value for each
    pub(super) values: Vec<String>,
    /// The limit [default: every limit that the identity alone decides]
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Option<String>,
    #[command(flatten)]
    pub(super) change: Change,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate key show tenant acme\n  tollgate key show address 192.0.2.7\n  \
    tollgate key show everyone --admin 10.0.0.1:9180,10.0.0.2:9180\n\n\
    Exit code: 0 every gateway has told, 1 one has not, 2 wrong use."
)]
pub(super) struct KeyShow {
    /// The identity as the file names it, `address`, or `everyone`
    pub(super) identity: String,
    /// The caller: its name in the list of callers, or its key; a key of several parts has a value for each
    pub(super) values: Vec<String>,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate why 911ebf3367ebd001\n  \
    tollgate why 911ebf3367ebd001 --admin 10.0.0.1:9180,10.0.0.2:9180\n\n\
    A gateway keeps its last refusals by limits in 8 MiB.\n\n\
    Exit code: 0 the refusal is explained, 1 no gateway knows it or responds, 2 wrong use.")]
pub(super) struct Why {
    /// The decision id: `decision_id` of a refusal's body, `id` of the access log
    #[arg(value_name = "DECISION-ID")]
    pub(super) id: String,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate top\n  \
    tollgate top --admin 10.0.0.1:9180,10.0.0.2:9180\n  tollgate top --once | head\n\n\
    It shows who is refused and until when, who has used four fifths, every limit with its rates, and whether the limits are exact. \
    `q` ends it.\n\n\
    Exit code: 0 good, 1 no gateway responds (--once), 2 wrong use.")]
pub(super) struct Top {
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// Print one frame without colours, and end
    #[arg(long)]
    pub(super) once: bool,
    /// The time between two looks, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 1_000,
        conflicts_with = "once"
    )]
    pub(super) every: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate log-level\n  \
    tollgate log-level debug --for 10m --reason 'handshakes fail' --token-file token.txt\n\n\
    Without --for the level stays until the next change or start.\n\n\
    Exit code: 0 every gateway has told or done it, 1 one has not, 2 wrong use.")]
pub(super) struct LogLevel {
    /// The least serious message that is logged: error, warn, info, debug, trace [default: only show the level]
    #[arg(requires = "reason")]
    pub(super) level: Option<String>,
    /// For how long, 30 days at most; then the level of the file is in force again
    #[arg(long = "for", value_name = "DURATION", requires = "level")]
    pub(super) lasts: Option<String>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", requires = "level")]
    pub(super) reason: Option<String>,
    /// A file with the operator's bearer token [default: the environment variable TOLLGATE_TOKEN; none over a Unix socket]
    #[arg(long, value_name = "FILE", requires = "level")]
    pub(super) token_file: Option<PathBuf>,
    /// Only say what would be changed
    #[arg(long, requires = "level")]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) gateways: Gateways,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate schema > gateway.schema.json\n  tollgate schema --sql postgres | psql \"$STORE_URL\"\n  tollgate schema --sql mysql | mariadb tollgate"
)]
pub(super) struct Schema {
    /// Print the tables and functions of a shared store instead, for a gateway that has no right to create them
    #[arg(long, value_enum, value_name = "STORE")]
    pub(super) sql: Option<Sql>,
}

/// Stores with a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Sql {
    /// PostgreSQL, and databases that speak its protocol
    Postgres,
    /// MariaDB or MySQL
    Mysql,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate health\n  tollgate health --live --admin 127.0.0.1:9180\n\n\
    Exit code: 0 the gateway is ready, 1 it is not or does not respond, 2 wrong use or an unknown admin listener."
)]
pub(super) struct Health {
    /// The gateway's admin listener [default: the one in the configuration, else 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_ADMIN")]
    pub(super) admin: Option<String>,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Ask whether the process is alive, not whether it is ready
    #[arg(long)]
    pub(super) live: bool,
    /// The time limit, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub(super) timeout: u64,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate init\n  tollgate init edge /etc/tollgate/gateway.toml\n  tollgate init egress -\n\n\
    Exit code: 0 the file is written, 1 it is not: an existing file is never overwritten."
)]
pub(super) struct Init {
    /// The purpose of the gateway
    #[arg(value_enum, default_value_t = Setup::Sidecar)]
    pub(super) setup: Setup,
    /// The file to write; `-` is standard output
    #[arg(default_value = "gateway.toml")]
    pub(super) file: PathBuf,
}

/// The purpose of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Setup {
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

/// Access logs, and how they are read.
#[derive(Clone, Debug, Args)]
pub(super) struct LogArgs {
    /// Access logs, in any order; gzip and zstd are read too; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) reading: LogOptions,
}

/// How access logs are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct LogOptions {
    /// The moment that the time of a line marks [default: by the format]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(super) stamps: Option<StampArg>,
    /// The duration of the longest request, if the log has no durations: 30s
    #[arg(long, value_name = "DURATION")]
    pub(super) longest: Option<String>,
    /// The zone of times that name none (HAProxy, CSV): Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(super) zone: Option<String>,
    /// An NGINX log_format, as in nginx.conf
    #[arg(long, value_name = "TEXT")]
    pub(super) log_format: Option<String>,
    /// Columns of a CSV or members of JSON lines: time=TIMESTAMP,cost=Tokens,key=user
    #[arg(long, value_name = "MAPPING")]
    pub(super) fields: Option<String>,
    /// Show lines that cannot be read with the addresses in them
    #[arg(long)]
    pub(super) show_keys: bool,
}

/// The moment that the time of a line marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StampArg {
    /// The start of a request: Apache
    Start,
    /// The end of its response: NGINX
    End,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate replay access.log --config candidate.toml --against gateway.toml\n  \
    tollgate replay access.log.*.gz --format json --fail-if 'keys_refused > 0.1%'\n\n\
    Exit code: 0 good, 1 a condition of --fail-if holds or nothing could be read, 2 wrong use."
)]
pub(super) struct Replay {
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "gateway.toml")]
    pub(super) config: PathBuf,
    /// Compare with this configuration
    #[arg(long, value_name = "FILE")]
    pub(super) against: Option<PathBuf>,
    /// The output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(super) format: ReportFormat,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Exit with 1 when this holds, or cannot be known: 'keys_refused > 0.1%'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(super) fail_if: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate suggest access.log\n  \
    tollgate suggest access.log --per header:x-api-key --rates 1/second,10/second\n  \
    tollgate suggest access.log --config gateway.toml --limit per_caller --write\n\n\
    Exit code: 0 good, 1 the log has too little data or nothing could be read, 2 wrong use.")]
pub(super) struct Suggest {
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// The configuration that has the limit [default: none; all routes count as one]
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The limit [default: the first that has a rate]
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(super) limit: Option<String>,
    /// The owner of each bucket: address, everyone, or a source like header:x-api-key [default: address, or as in the limit]
    #[arg(long, value_name = "WHAT", conflicts_with = "limit")]
    pub(super) per: Option<String>,
    /// The rates of the frontier [default: the usual ones]
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    pub(super) rates: Vec<String>,
    /// The share of keys that the tight choice may refuse
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    pub(super) refuse: String,
    /// The output format
    #[arg(long, value_enum, default_value_t = SuggestFormat::Text)]
    pub(super) format: SuggestFormat,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// The numbers to write
    #[arg(long, value_enum, default_value_t = ChoiceArg::Balanced)]
    pub(super) choice: ChoiceArg,
    /// Write the limit into the configuration, in shadow mode; its comments stay
    #[arg(long, requires = "config")]
    pub(super) write: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate diff gateway.toml candidate.toml\n  \
    tollgate diff gateway.toml candidate.toml --log access.log\n  \
    tollgate diff gateway.toml candidate.toml --log requests.csv --fields time=TIMESTAMP,key=user\n\n\
    Exit code: 0 they mean the same, 1 they do not or one is not valid, 2 wrong use."
)]
pub(super) struct Diff {
    /// The current configuration
    pub(super) old: PathBuf,
    /// The new configuration
    pub(super) new: PathBuf,
    /// Judge the requests of this access log by both; may be repeated
    #[arg(long = "log", value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) reading: LogOptions,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate fmt gateway.toml\n  tollgate fmt --check\n\n\
    Exit code: 0 good, 1 the file is not formatted (--check) or not valid, 2 wrong use."
)]
pub(super) struct Fmt {
    /// The configuration
    #[arg(default_value = "gateway.toml")]
    pub(super) file: PathBuf,
    /// Change nothing; exit with 1 if the file is not formatted
    #[arg(long)]
    pub(super) check: bool,
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
pub(super) struct Import {
    /// The configurations, all of one gateway; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// The gateway that they configure [default: recognised by name and contents]
    #[arg(long, value_enum, value_name = "GATEWAY")]
    pub(super) from: Option<From>,
    /// Write the configuration here; an existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// The output format: `json` is one document with the configuration in it
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

/// The gateway whose configuration is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum From {
    /// nginx.conf: limit_req, limit_conn
    Nginx,
    /// Kubernetes Ingress with annotations of ingress-nginx
    Ingress,
    /// Traefik's dynamic configuration or custom resources
    Traefik,
    /// A Caddyfile with the rate_limit module
    Caddy,
    /// kong.yml: the rate-limiting plugin
    Kong,
    /// haproxy.cfg: stick tables
    Haproxy,
    /// The configuration of envoyproxy/ratelimit
    Envoy,
}

/// The output format of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// A row for each limit
    Csv,
    /// A table
    Markdown,
}

/// The output format of a suggestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SuggestFormat {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// The limit alone, in the syntax of the file
    Toml,
}

/// Numbers of a suggestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ChoiceArg {
    /// Refuses the share of keys that --refuse names
    Tight,
    /// Refuses floods only
    Balanced,
    /// Twice that
    Loose,
}
