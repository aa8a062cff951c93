//! `tollgate health`: asks running gateways whether they are ready.

use super::args::Health;
use super::stop::Ended;
use super::{BAD, GOOD, listeners, print_out};

pub(super) fn health(args: &Health) -> Ended {
    let gateways = listeners::asked(&args.listeners.admin, args.timeout, &args.config)?;
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

#[cfg(test)]
mod tests {
    use super::super::args::HEALTH_WITHIN_MS;

    #[test]
    fn health_time_limit_is_below_that_of_the_images_health_check() {
        let dockerfile = include_str!("../../Dockerfile");
        let (_, check) = dockerfile.split_once("\nHEALTHCHECK ").expect("a check");
        let (_, limit) = check.split_once("--timeout=").expect("its limit");
        let (seconds, _) = limit.split_once('s').expect("in seconds");
        let seconds: u64 = seconds.parse().expect("a number");
        assert!(HEALTH_WITHIN_MS + 500 <= seconds * 1_000, "{seconds} s");
    }
}
