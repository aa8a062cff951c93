//! `tollgate health`: asks a running gateway whether it is ready.

use std::process::ExitCode;
use std::time::Duration;

use super::args::Health;
use super::gateway::Place;
use super::{BAD, GOOD, wrong_use};

pub(super) fn health(args: &Health) -> ExitCode {
    let places = match &args.admin {
        Some(name) => match Place::named(name) {
            Ok(places) => places,
            Err(error) => {
                tell!("tollgate health: --admin {name}: {error}");
                return wrong_use();
            }
        },
        None => vec![Place::of(&args.config)],
    };
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let patience = Duration::from_millis(args.timeout.max(1));
    let mut last = None;
    for place in places {
        match place.get(path, patience) {
            Ok((status, body)) => {
                super::print_out(&body);
                return if status == 200 { GOOD } else { BAD };
            }
            Err(error) => last = Some(error),
        }
    }
    if let Some(error) = last {
        tell!("tollgate health: no answer: {error}");
    }
    BAD
}
