//! The operations log: what an operator must know, on standard error. Start, reload, stores' states, errors: never a
//! line per request.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

/// How the operations log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For people, with colours or without.
    Human {
        /// Whether to colour the levels.
        colour: bool,
    },
    /// A JSON object a line.
    Json,
}

/// Starts the operations log. `filter` is a level (`info`) or a list of them by module (`info,tollgate::store=debug`).
///
/// # Errors
/// When the filter cannot be read, or the process has an operations log already.
pub fn start(style: Style, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| error.to_string())?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let done = match style {
        Style::Human { colour } => builder.with_ansi(colour).with_target(false).finish().try_init(),
        Style::Json => builder.json().flatten_event(true).with_current_span(false).finish().try_init(),
    };
    done.map_err(|error| error.to_string())
}
