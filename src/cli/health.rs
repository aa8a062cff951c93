//! `tollgate health`: asks a running gateway whether it is ready.

use std::process::ExitCode;
use std::time::Duration;

use super::args::Health;
use super::gateway::Place;
use super::{BAD, GOOD};

pub(super) fn health(args: &Health) -> ExitCode {
    let places = match Place::find("health", args.admin.as_deref(), &args.config) {
        Ok(places) => places,
        Err(code) => return code,
    };
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let patience = Duration::from_millis(args.timeout.max(1));
    for place in places {
        match place.get(path, patience) {
            Ok((status, body)) => {
                super::print_out(&body);
                return if status == 200 { GOOD } else { BAD };
            }
            Err(error) => tell!("tollgate health: no response from {place}: {error}"),
        }
    }
    BAD
}
