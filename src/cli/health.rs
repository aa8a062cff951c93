//! `tollgate health`: asks running gateways whether they are ready.

use super::args::Health;
use super::stop::Ended;
use super::{BAD, GOOD, fleet, print_out};

pub(super) fn health(args: &Health) -> Ended {
    let gateways = fleet::asked(&args.listeners, &args.config)?;
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
    Ok(all)
}
