//! `tollgate health`: asks running gateways whether they are ready.

use std::process::ExitCode;

use super::args::Health;
use super::{BAD, GOOD, fleet, print_out};

pub(super) fn health(args: &Health) -> ExitCode {
    let gateways = match fleet::asked("health", &args.listeners, &args.config) {
        Ok(gateways) => gateways,
        Err(code) => return code,
    };
    let path = if args.live {
        "/livez"
    } else {
        "/readyz?verbose"
    };
    let mut all = GOOD;
    for gateway in &gateways {
        if gateways.len() > 1 {
            print_out(&format!("gateway    {}", gateway.name));
        }
        let response = gateway.text("health", path);
        if let Some((_, body)) = &response {
            print_out(body);
        }
        if !matches!(response, Some((200, _))) {
            all = BAD;
        }
    }
    all
}
