//! Traefik's token bucket and its places.

use super::*;

/// A token bucket in floating point that lets a request wait for half a token, and forgets idle clients.
fn traefik(rate: f64, burst: f64, longest: u64) -> Model {
    let mut keys: HashMap<u8, (f64, u64, u64)> = HashMap::new();
    Box::new(move |request| {
        let now = request.at;
        if keys
            .get(&request.client)
            .is_some_and(|(_, _, asked)| now - asked >= SECOND)
        {
            keys.remove(&request.client);
        }
        let (tokens, last, asked) = keys.entry(request.client).or_insert((burst, now, now));
        *asked = now;
        #[allow(clippy::cast_precision_loss)]
        let elapsed = (now - *last) as f64 / 1e6;
        let tokens_now = (*tokens + elapsed * rate).min(burst) - 1.0;
        (*tokens, *last) = (tokens_now, now);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wait = (-tokens_now / rate * 1e9).max(0.0) as u64;
        if wait > longest {
            *tokens += 1.0;
            return false;
        }
        true
    })
}

#[test]
fn equal_traefik_rates_judge_every_request_alike() {
    for (average, burst) in [(4_u32, 3_u32), (10, 9), (5, 1), (20, 10)] {
        let text = format!(
            "http:\n  routers:\n    a: {{rule: 'PathPrefix(`/`)', middlewares: [m], service: s}}\n  middlewares:\n    \
             m:\n      rateLimit:\n        average: {average}\n        burst: {burst}\n"
        );
        let longest = 1_000_000_000 / (u64::from(average) * 2);
        equal_at(
            "traefik.yml",
            &text,
            Peer::Traefik,
            &[MILLISECOND, SECOND, 1],
            u64::from(average),
            &|| traefik(f64::from(average), f64::from(burst), longest),
        );
    }
}

#[test]
fn equal_traefik_places_judge_every_request_alike() {
    let text = "[http.routers.a]\nrule = \"PathPrefix(`/`)\"\nmiddlewares = [\"m\"]\n\
                [http.middlewares.m.inFlightReq]\namount = 2\n[http.middlewares.m.inFlightReq.sourceCriterion.ipStrategy]\n";
    equal(
        "traefik.toml",
        text,
        Peer::Traefik,
        &[MILLISECOND, SECOND],
        &|| in_flight(2),
    );
}
