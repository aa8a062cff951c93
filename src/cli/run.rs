//! `tollgate run`: starts the gateway, from a file or from a few options.

use std::sync::Arc;

use super::args::Run;
use super::{BAD, GOOD, load, origin};
use super::{Ended, Stop};
use crate::app::{self, ConfigSource, Options, StartError};
use tollgate_config::settings::Listener;
use tollgate_store::clock::Clock;

pub(super) fn run(args: &Run) -> Ended {
    if args.upstream.is_none()
        && let Some(what_to_do) = load::without_a_file(&args.config)
    {
        return Err(Stop::Misuse(what_to_do));
    }
    let options = Options {
        source: source(args).map_err(Stop::Misuse)?,
        environment: Arc::new(load::environment),
        clock: Clock::system(),
    };
    let origin = origin::find(args.take_over)
        .map_err(|error| format!("the sockets that were handed over: {error}"))?;
    match app::run(options, origin) {
        Ok(()) => Ok(GOOD),
        Err(StartError::Config(error)) if args.upstream.is_some() => {
            for message in error.by_option() {
                tell!("tollgate run: {message}");
            }
            Ok(BAD)
        }
        Err(StartError::Config(error)) => Err(error.into()),
        Err(error) => Err(error.to_string().into()),
    }
}

/// The file or, if an upstream is given, the configuration that the options describe.
fn source(args: &Run) -> Result<ConfigSource, String> {
    let (Some(upstream), Some(limit)) = (&args.upstream, &args.limit) else {
        let path = args.config.path();
        if path.as_os_str() == "-" {
            return standard_input(args);
        }
        if args.listen.is_none() && args.admin.is_none() {
            return Ok(ConfigSource::File(path));
        }
        let listen = args
            .listen
            .as_deref()
            .map(|written| listener("--listen", written))
            .transpose()?;
        let admin = match args.admin.as_deref() {
            Some("off") => Some(None),
            Some(written) => Some(Some(listener("--admin", written)?)),
            None => None,
        };
        return Ok(ConfigSource::FileAt {
            path,
            listen,
            admin,
        });
    };
    let mut text = tollgate_config::quick(upstream, limit, &args.per);
    for (section, listen) in [("server", &args.listen), ("admin", &args.admin)] {
        if let Some(listen) = listen {
            // A JSON string is also a TOML string; escape `${`, which would start a variable.
            let listen = serde_json::Value::String(listen.replace("${", "$${"));
            text.push_str(&format!("\n[{section}]\nlisten = {listen}\n"));
        }
    }
    Ok(ConfigSource::Text {
        text,
        name: tollgate_config::COMMAND_LINE.to_owned(),
    })
}

/// The text on standard input. It is read once, because a reload cannot read it again.
fn standard_input(args: &Run) -> Result<ConfigSource, String> {
    if args.take_over {
        return Err("a configuration from standard input cannot be handed over: start the gateway with a file".to_owned());
    }
    if args.listen.is_some() || args.admin.is_some() {
        return Err(
            "--listen and --admin go with a file: write the listeners in the text".to_owned(),
        );
    }
    let text =
        load::standard_input().map_err(|error| format!("cannot read standard input: {error}"))?;
    let name = load::STANDARD_INPUT.to_owned();
    Ok(ConfigSource::Text { text, name })
}

/// A listener that replaces the file's, in the same notation; certificates can be set only in the file.
fn listener(option: &str, written: &str) -> Result<Listener, String> {
    if written.starts_with("https:") {
        return Err(format!(
            "{option}: a listener with TLS belongs in the file, beside its certificates: `{written}`"
        ));
    }
    let listen = serde_json::Value::String(written.replace("${", "$${"));
    let text = format!(
        "[server]\nlisten = {listen}\n[[routes]]\nmatch = \"/**\"\nrespond = {{ status = 404 }}\n"
    );
    let parsed = tollgate_config::parse(
        &text,
        tollgate_config::COMMAND_LINE,
        &|_| None,
        Clock::system().now(),
    );
    let listener = parsed
        .ok()
        .and_then(|config| config.server.listen.into_iter().next());
    listener.ok_or_else(|| {
        format!("{option}: `{written}` is none: write 127.0.0.1:8081 or unix:/run/tollgate.sock")
    })
}
