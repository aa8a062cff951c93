//! `tollgate health`: asks a running gateway whether it is ready.

use std::process::ExitCode;
use std::time::Duration;

use super::args::Health;
use super::gateway::Place;
use super::{BAD, GOOD, print_out};

pub(super) fn health(args: &Health) -> ExitCode {
    let names: Vec<Option<&str>> = match args.admin.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let mut all = GOOD;
    for name in &names {
        let places = match Place::find("health", *name, &args.config) {
            Ok(places) => places,
            Err(code) => return code,
        };
        if names.len() > 1 {
            print_out(&format!("gateway    {}", name.unwrap_or_default()));
        }
        let one = ask(args, &places);
        if one != GOOD {
            all = one;
        }
    }
    all
}

/// Asks the gateway at one of these addresses.
fn ask(args: &Health, places: &[Place]) -> ExitCode {
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let patience = Duration::from_millis(args.timeout.max(1));
    for place in places {
        match place.get(path, patience) {
            Ok((status, body)) => {
                print_out(&body);
                return if status == 200 { GOOD } else { BAD };
            }
            Err(error) => tell!("tollgate health: no response from {place}: {error}"),
        }
    }
    BAD
}
