//! `tollgate run`: the gateway, from a file or from a few words.

use std::process::ExitCode;
use std::sync::Arc;

use super::args::Run;
use super::{BAD, GOOD, load, origin};
use crate::app::{self, Options, Source, StartError};
use crate::clock::Clock;
use crate::config;

pub(super) fn run(args: &Run) -> ExitCode {
    let options = Options { source: source(args), environment: Arc::new(load::environment), clock: Clock::system() };
    let origin = match origin::find(args.take_over) {
        Ok(origin) => origin,
        Err(error) => {
            eprintln!("tollgate: the sockets that were handed over: {error}");
            return BAD;
        }
    };
    match app::run(options, origin) {
        Ok(()) => GOOD,
        Err(StartError::Config(error)) => {
            eprintln!("{}", error.render(super::colour()));
            BAD
        }
        Err(error) => {
            eprintln!("tollgate: {error}");
            BAD
        }
    }
}

/// The file, unless an upstream is named: then what the few words stand for.
fn source(args: &Run) -> Source {
    let (Some(upstream), Some(limit)) = (&args.upstream, &args.limit) else {
        return Source::File(args.config.config.clone());
    };
    let mut text = config::quick(upstream, limit, &args.per);
    for (section, listen) in [("server", &args.listen), ("admin", &args.admin)] {
        if let Some(listen) = listen {
            // A JSON string is a TOML string; `${` must not be read as a variable.
            let listen = serde_json::Value::String(listen.replace("${", "$${"));
            text.push_str(&format!("\n[{section}]\nlisten = {listen}\n"));
        }
    }
    Source::Text { text, name: "command line".to_owned() }
}
