//! The operations log: what an operator must know, on standard error. Start, reload, stores' states, errors: never a
//! line per request.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

use super::text::{is_deceptive, push_escaped};

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
    let builder = fmt().with_env_filter(filter).with_writer(|| Plain(io::stderr()));
    let done = match style {
        Style::Human { colour } => builder.with_ansi(colour).with_target(false).finish().try_init(),
        Style::Json => builder.json().flatten_event(true).with_current_span(false).finish().try_init(),
    };
    done.map_err(|error| error.to_string())
}

/// Escapes what would have a line read otherwise than it was written: callers' words stand in some.
struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    /// A line comes whole.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().all(|byte| *byte < 0x7f) {
            return self.0.write(bytes);
        }
        let mut line = Vec::with_capacity(bytes.len() + 32);
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                if is_deceptive(character) {
                    push_escaped(&mut line, character);
                } else {
                    line.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            if !chunk.invalid().is_empty() {
                line.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        self.0.write_all(&line).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_with_controls_is_shown_as_it_was_written() {
        let mut out = Vec::new();
        Plain(&mut out)
            .write_all("a \u{9b}2J \u{202e}b\u{2066}c\u{200f}\u{61c}\u{7f} ü\n".as_bytes())
            .expect("written");
        let expected = "a \\u009b2J \\u202eb\\u2066c\\u200f\\u061c\\u007f ü\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }
}
