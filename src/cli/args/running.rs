//! Arguments of the verbs that ask running gateways.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigFile, Format};
use crate::admin::waits::CHANGE_WITHIN;

/// The admin listeners of running gateways.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct AdminListeners {
    /// The admin listeners of the gateways, separated by commas [default: the one in the configuration, else 127.0.0.1:9180]
    #[arg(
        long,
        value_name = "ADDRESSES",
        env = "TOLLGATE_ADMIN",
        value_delimiter = ','
    )]
    pub(in crate::cli) admin: Vec<String>,
}

/// How long a verb waits for a gateway that may ask its store first.
#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct Patience {
    /// The time limit for one gateway, in milliseconds, with the look-up of its name; a gateway itself waits up to two seconds for its store, and up to four for a change
    #[arg(long, value_name = "MS", default_value_t = PATIENCE_MS)]
    pub(in crate::cli) timeout: u64,
}

/// The running gateways that a verb asks.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct Gateways {
    #[command(flatten)]
    pub(in crate::cli) listeners: AdminListeners,
    #[command(flatten)]
    pub(in crate::cli) patience: Patience,
    /// The configuration that names the admin listener [env: TOLLGATE_CONFIG] [default: gateway.toml]
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) config: Option<PathBuf>,
}

/// The running gateways that a verb asks, and the form of its output.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct GatewaysAndFormat {
    #[command(flatten)]
    pub(in crate::cli) gateways: Gateways,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(in crate::cli) format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate why 911ebf3367ebd001\n  \
    tollgate why 911ebf3367ebd001 --admin 10.0.0.1:9180,10.0.0.2:9180\n\n\
    A gateway keeps its last refusals by limits in 8 MiB. A new process, also after an upgrade, knows none of the old one.\n\n\
    Exit code: 0 the refusal is explained, 1 no gateway knows it or responds, 2 wrong use.")]
pub(in crate::cli) struct Why {
    /// The decision id: `decision_id` of a refusal's body, `id` of the access log
    #[arg(value_name = "DECISION-ID")]
    pub(in crate::cli) id: String,
    #[command(flatten)]
    pub(in crate::cli) asked: GatewaysAndFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate top\n  \
    tollgate top --admin 10.0.0.1:9180,10.0.0.2:9180\n  tollgate top --once | head\n\n\
    It shows who is refused and until when, who has used four fifths, every limit with its rates, and whether the limits are exact. \
    A key that several gateways list for a limit in one store is shown once. \
    `q` ends it, `s` sorts by requests, end or name, arrows and pages scroll. Times are in UTC.\n\n\
    Exit code: 0 good, 1 no gateway responds (--once), 2 wrong use.")]
pub(in crate::cli) struct Top {
    #[command(flatten)]
    pub(in crate::cli) gateways: Gateways,
    /// Print one frame without colours, and end
    #[arg(long)]
    pub(in crate::cli) once: bool,
    /// The time between two looks, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 1_000,
        conflicts_with = "once"
    )]
    pub(in crate::cli) every: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tollgate log-level\n  \
    tollgate log-level debug --for 10m --reason 'handshakes fail' --token-file token.txt\n\n\
    Without --for the level stays until the next change or start.\n\n\
    Exit code: 0 every gateway has shown or changed it, 1 one has not, 2 wrong use.")]
pub(in crate::cli) struct LogLevel {
    /// The least serious message that is logged: error, warn, info, debug, trace [default: only show the level]
    #[arg(requires = "reason")]
    pub(in crate::cli) level: Option<String>,
    /// For how long, 30 days at most; then the level of the file is in force again
    #[arg(long = "for", value_name = "DURATION", requires = "level")]
    pub(in crate::cli) lasts: Option<String>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", requires = "level")]
    pub(in crate::cli) reason: Option<String>,
    /// A file with the operator's bearer token, which is sent in clear to every gateway that is changed [default: the environment variable TOLLGATE_TOKEN, which is sent only over a Unix socket or to a loopback address; a Unix socket may need none]
    #[arg(long, value_name = "FILE", requires = "level")]
    pub(in crate::cli) token_file: Option<PathBuf>,
    /// Only say what would be changed
    #[arg(long, requires = "level")]
    pub(in crate::cli) dry_run: bool,
    #[command(flatten)]
    pub(in crate::cli) asked: GatewaysAndFormat,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tollgate health\n  tollgate health --live --admin 127.0.0.1:9180\n\n\
    Exit code: 0 every gateway is ready, 1 one is not or does not respond, 2 wrong use or an unknown admin listener."
)]
pub(in crate::cli) struct Health {
    #[command(flatten)]
    pub(in crate::cli) listeners: AdminListeners,
    /// The time limit for one gateway, in milliseconds, with the look-up of its name; it responds without asking its store. The default is below the 3 s that the image's health check allows
    #[arg(long, value_name = "MS", default_value_t = HEALTH_WITHIN_MS)]
    pub(in crate::cli) timeout: u64,
    #[command(flatten)]
    pub(in crate::cli) config: ConfigFile,
    /// Ask whether the process is alive, not whether it is ready
    #[arg(long)]
    pub(in crate::cli) live: bool,
}

/// The default of [`Health::timeout`]. It is below the limit of the image's health check, so that the
/// command says why there is no response before it is killed.
pub(in crate::cli) const HEALTH_WITHIN_MS: u64 = 2_000;

/// The default of [`Patience::timeout`]: a second more than a gateway takes for a change.
const PATIENCE_MS: u64 = (CHANGE_WITHIN.as_secs() + 1) * 1_000;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;
    use crate::admin::waits::READ_WITHIN;

    /// The help and the page say the times that the code has.
    #[test]
    fn time_limits_of_gateways_are_as_the_help_and_the_book_say() {
        let [read, change] = [READ_WITHIN, CHANGE_WITHIN].map(|span| span.as_secs());
        let patience = PATIENCE_MS / 1_000;
        assert!(patience > change && change > read);
        let page = include_str!("../../../docs/src/reference/admin.md");
        let words = format!(
            "The other verbs wait {patience} s: a gateway may ask its store, for {read} s in all, or {change} s if"
        );
        assert!(page.contains(&words), "{words}");
        let command = Cli::command();
        let why = command.find_subcommand("why").expect("a verb");
        let timeout = why.get_arguments().find(|one| one.get_id() == "timeout");
        let help = timeout.and_then(|timeout| timeout.get_help());
        let help = help.expect("it has a help").to_string();
        let word = |seconds: u64| {
            let words = ["one", "two", "three", "four", "five"];
            words[usize::try_from(seconds - 1).expect("a few seconds")]
        };
        let words = format!(
            "up to {} seconds for its store, and up to {} for a change",
            word(read),
            word(change)
        );
        assert!(help.contains(&words), "{help}");
    }
}
