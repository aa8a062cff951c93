//! The arguments of `tollgate key` and its verbs.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::GatewaysAndFormat;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum KeyVerb {
    /// Show how each bucket of a caller stands; nothing is charged
    Show(KeyShow),
    /// Fill a caller's buckets; an operator's change, which the gateway records
    #[command(
        after_help = "Examples:\n  tollgate key reset tenant acme --reason 'their job ran twice' --token-file token.txt\n  \
    tollgate key reset address 192.0.2.7 --limit search --reason 'ticket 4711' --admin unix:/run/tollgate-admin.sock\n\n\
    Of several gateways each fills the buckets in its process, and one of each store those in the store.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
    )]
    Reset(KeyChange),
    /// Give a caller other numbers, or no limit, for a while
    Raise(KeyRaise),
    /// Add units to a caller's running window
    Grant(KeyGrant),
    /// Refuse every request of a caller for a while
    Block(KeyBlock),
    /// End a caller's overrides before their time
    #[command(
        after_help = "Example:\n  tollgate key lift tenant acme --reason 'their job is done'\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
    )]
    Lift(KeyChange),
}

/// A change by an operator, with its reason.
#[derive(Debug, Args)]
pub(in crate::cli) struct Change {
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) reason: String,
    #[command(flatten)]
    pub(in crate::cli) by: ChangedBy,
}

/// The operator who asks for a change, and the gateways that are changed.
#[derive(Debug, Args)]
pub(in crate::cli) struct ChangedBy {
    /// A file with the operator's bearer token, which is sent in clear to every gateway that is changed [default: the environment variable TOLLGATE_TOKEN, which is sent only over a Unix socket or to a loopback address; a Unix socket may need none]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) token_file: Option<PathBuf>,
    /// Only say what would be changed
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    #[command(flatten)]
    pub(in crate::cli) asked: GatewaysAndFormat,
}

/// How long an override lasts.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(in crate::cli) struct Lasts {
    /// How long, 30 days at most
    #[arg(long = "for", value_name = "DURATION")]
    pub(in crate::cli) lasts: Option<String>,
    /// Until when, in RFC 3339 form
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) until: Option<String>,
}

/// A caller, by its key.
#[derive(Debug, Args)]
pub(in crate::cli) struct Caller {
    /// The identity as the file names it, `address`, `everyone`, `descriptor`, or a caller's name in logs
    pub(in crate::cli) identity: String,
    /// The caller: its name in the list of callers, or its key; a key of several parts has a value for each, a descriptor its domain and KEY=VALUE entries
    pub(in crate::cli) values: Vec<String>,
}

/// The caller whose limits are changed.
#[derive(Debug, Args)]
pub(in crate::cli) struct ChangedKey {
    #[command(flatten)]
    pub(in crate::cli) caller: Caller,
    /// The limit [default: every limit that the identity alone decides]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) limit: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate key raise tenant acme --limit search --rate 1000/minute --for 1h --reason 'ticket 4711'\n  \
    tollgate key raise address 192.0.2.7 --unlimited --until 2030-01-31T18:00:00Z --reason 'load test'\n\n\
    Numbers are for one limit: name it, if the caller has several. They may also be lower. Nothing is refilled, neither then nor at the end.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
#[command(group = ArgGroup::new("raised").args(["rate", "burst", "in_flight", "unlimited"]).required(true).multiple(true))]
pub(in crate::cli) struct KeyRaise {
    #[command(flatten)]
    pub(in crate::cli) key: ChangedKey,
    /// The rate, such as 1000/minute
    #[arg(long, value_name = "RATE")]
    pub(in crate::cli) rate: Option<String>,
    /// The most at once [default: the limit's own, or the number of the rate where the limit has none]
    #[arg(long, value_name = "UNITS")]
    pub(in crate::cli) burst: Option<u64>,
    /// The places of a concurrency limit
    #[arg(long, value_name = "PLACES", conflicts_with_all = ["rate", "burst"])]
    pub(in crate::cli) in_flight: Option<u64>,
    /// No limit at all
    #[arg(long, conflicts_with_all = ["rate", "burst", "in_flight"])]
    pub(in crate::cli) unlimited: bool,
    #[command(flatten)]
    pub(in crate::cli) lasts: Lasts,
    #[command(flatten)]
    pub(in crate::cli) change: Change,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tollgate key block address 192.0.2.7 --for 10m --reason 'scans the API'\n\n\
    Requests get 429 with a Retry-After until the end, and charge nothing. Without --limit every limit of the caller blocks.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(in crate::cli) struct KeyBlock {
    #[command(flatten)]
    pub(in crate::cli) key: ChangedKey,
    #[command(flatten)]
    pub(in crate::cli) lasts: Lasts,
    #[command(flatten)]
    pub(in crate::cli) change: Change,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "tollgate key grant [OPTIONS] --in <NAME> <IDENTITY> [CALLER]... <UNITS>",
    after_help = "Examples:\n  tollgate key grant tenant acme 20 --in month\n  \
    tollgate key grant tenant acme 20 --in month --reason 'ticket 4711' --token-file token.txt\n\n\
    The units are for the window that runs, and end with it. The same grant for the same reason is made once: another reason adds again. A limit without windows takes none.\n\n\
    Exit code: 0 every gateway has done it, 1 one has not, 2 wrong use."
)]
pub(in crate::cli) struct KeyGrant {
    /// The identity and the caller, as for `key show`, and last the units: of a limit that counts money, in its currency
    #[arg(required = true, num_args = 2.., value_names = ["IDENTITY", "CALLER", "UNITS"])]
    pub(in crate::cli) words: Vec<String>,
    /// The limit
    #[arg(long = "in", value_name = "NAME")]
    pub(in crate::cli) limit: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "a grant")]
    pub(in crate::cli) reason: String,
    #[command(flatten)]
    pub(in crate::cli) by: ChangedBy,
}

/// A change without more arguments.
#[derive(Debug, Args)]
pub(in crate::cli) struct KeyChange {
    #[command(flatten)]
    pub(in crate::cli) key: ChangedKey,
    #[command(flatten)]
    pub(in crate::cli) change: Change,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate key show tenant acme\n  tollgate key show address 192.0.2.7\n  \
    tollgate key show 9f86d081884c7d65                 # by its name in logs, as `tollgate top` and `why` print it\n  \
    tollgate key show descriptor edge remote_address=192.0.2.7 path=/login\n  \
    tollgate key show everyone --admin 10.0.0.1:9180,10.0.0.2:9180\n\n\
    Exit code: 0 every gateway has shown them, 1 one has not, 2 wrong use."
)]
pub(in crate::cli) struct KeyShow {
    #[command(flatten)]
    pub(in crate::cli) caller: Caller,
    #[command(flatten)]
    pub(in crate::cli) asked: GatewaysAndFormat,
}
