//! Arguments of the verbs that read access logs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Format;
use tollgate_replay::log::Stamp;
use tollgate_replay::report;

/// Access logs, and how they are read.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct LogArgs {
    /// Access logs, in any order; gzip and zstd are read too; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub(in crate::cli) logs: Vec<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) reading: LogOptions,
}

/// How access logs are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(in crate::cli) struct LogOptions {
    /// The moment that the time of a line marks [default: by the format]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(in crate::cli) stamps: Option<Stamp>,
    /// The duration of the longest request, if the log has no durations: 30s
    #[arg(long, value_name = "DURATION")]
    pub(in crate::cli) longest: Option<String>,
    /// The zone of times that name none (HAProxy, CSV): Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(in crate::cli) zone: Option<String>,
    /// An NGINX log_format, as in nginx.conf
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) log_format: Option<String>,
    /// Columns of a CSV or members of JSON lines: time=TIMESTAMP,cost=Tokens,key=user
    #[arg(long, value_name = "MAPPING")]
    pub(in crate::cli) fields: Option<String>,
    /// Show lines that cannot be read with the addresses in them
    #[arg(long)]
    pub(in crate::cli) show_keys: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate replay access.log --config candidate.toml --against gateway.toml\n  \
    tollgate replay access.log.*.gz --format json --fail-if 'keys_refused > 0.1%'\n\n\
    Exit code: 0 good, 1 a condition of --fail-if holds or nothing could be read, 2 wrong use."
)]
pub(in crate::cli) struct Replay {
    #[command(flatten)]
    pub(in crate::cli) log: LogArgs,
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "gateway.toml")]
    pub(in crate::cli) config: PathBuf,
    /// Compare with this configuration
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) against: Option<PathBuf>,
    /// The output format
    #[arg(long, value_enum, default_value_t = report::Format::Text)]
    pub(in crate::cli) format: report::Format,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) html: Option<PathBuf>,
    /// Exit with 1 when this holds, or cannot be known: 'keys_refused > 0.1%'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(in crate::cli) fail_if: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate suggest access.log\n  \
    tollgate suggest access.log --per header:x-api-key --rates 1/second,10/second\n  \
    tollgate suggest access.log --config gateway.toml --limit per_caller --write\n\n\
    Exit code: 0 good, 1 the log has too little data or nothing could be read, 2 wrong use.")]
pub(in crate::cli) struct Suggest {
    #[command(flatten)]
    pub(in crate::cli) log: LogArgs,
    /// The configuration that has the limit [default: none; all routes count as one]
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) config: Option<PathBuf>,
    /// The limit [default: the first that has a rate]
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(in crate::cli) limit: Option<String>,
    /// The owner of each bucket: address, everyone, or a source like header:x-api-key [default: address, or as in the limit]
    #[arg(long, value_name = "WHAT", conflicts_with = "limit")]
    pub(in crate::cli) per: Option<String>,
    /// The rates of the frontier [default: the usual ones]
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    pub(in crate::cli) rates: Vec<String>,
    /// The share of keys that the tight choice may refuse
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    pub(in crate::cli) refuse: String,
    /// The output format
    #[arg(long, value_enum, default_value_t = SuggestFormat::Text)]
    pub(in crate::cli) format: SuggestFormat,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) html: Option<PathBuf>,
    /// The numbers to write
    #[arg(long, value_enum, default_value_t = ChoiceArg::Balanced)]
    pub(in crate::cli) choice: ChoiceArg,
    /// Write the limit into the configuration, in shadow mode; its comments stay
    #[arg(long, requires = "config")]
    pub(in crate::cli) write: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate diff gateway.toml candidate.toml\n  \
    tollgate diff gateway.toml candidate.toml --log access.log\n  \
    tollgate diff gateway.toml candidate.toml --log access.log --fail-if 'keys_newly_refused > 1%'\n  \
    tollgate diff gateway.toml candidate.toml --log requests.csv --fields time=TIMESTAMP,key=user\n\n\
    Exit code: 0 no difference is known, 1 one is or one file is not valid, 2 wrong use.\n\
    With --fail-if: 0 no condition holds, whatever else the files say, 1 one does."
)]
pub(in crate::cli) struct Diff {
    /// The current configuration
    pub(in crate::cli) old: PathBuf,
    /// The new configuration
    pub(in crate::cli) new: PathBuf,
    /// Judge the requests of this access log by both; may be repeated
    #[arg(long = "log", value_name = "LOG")]
    pub(in crate::cli) logs: Vec<PathBuf>,
    /// Exit with 1 only when this holds on the log, or cannot be known: 'keys_newly_refused > 1%'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(in crate::cli) fail_if: Vec<String>,
    #[command(flatten)]
    pub(in crate::cli) reading: LogOptions,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(in crate::cli) format: Format,
}

/// The output format of a suggestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SuggestFormat {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// The limit alone, in the syntax of the file
    Toml,
}

/// Which numbers of a suggestion are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ChoiceArg {
    /// Refuses the share of keys that --refuse names
    Tight,
    /// Refuses floods only
    Balanced,
    /// Twice that
    Loose,
}
