//! Load on a limit of 10 requests a second with a burst of 10: 64 clients in real time, for three seconds.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::client::{Answer, Connection};

/// Sends requests from all clients, each with these headers and a path of its own. `check` looks at each refusal. Returns
/// how many requests were admitted.
///
/// # Panics
/// If a status is neither 200 nor 429, if more requests were admitted than the limit allows (40 within the three
/// seconds), or so few that the limit cannot have been what refused the others.
#[track_caller]
pub fn ten_a_second(
    address: SocketAddr,
    headers: &[(&str, &str)],
    check: impl Fn(&Answer) + Sync,
) -> u64 {
    let [within, admitted, refused] = [const { AtomicU64::new(0) }; 3];
    let begin = Instant::now();
    let ask = |client: usize| {
        let (mut connection, path) = (Connection::open(address), format!("/{client}"));
        while begin.elapsed() < SPAN {
            let answer = connection.request("GET", &path, headers);
            match answer.status {
                200 => {
                    admitted.fetch_add(1, Ordering::Relaxed);
                    within.fetch_add(u64::from(begin.elapsed() <= SPAN), Ordering::Relaxed);
                }
                429 => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    check(&answer);
                }
                _ => panic!("{answer:?}"),
            }
            let last = answer.header("connection");
            if last.is_some_and(|word| word.eq_ignore_ascii_case("close")) {
                connection = Connection::open(address);
            }
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let ask = &ask;
            scope.spawn(move || ask(client));
        }
    });
    let whole = u64::try_from(begin.elapsed().as_millis()).expect("short");
    let [within, admitted, refused] = [within, admitted, refused].map(AtomicU64::into_inner);
    assert!(within <= 40, "{within} admitted within three seconds");
    let most = 10 + whole / 100;
    assert!(
        (20..=most).contains(&admitted),
        "{admitted} admitted, at most {most}"
    );
    assert!(refused > CLIENTS as u64, "{refused} refused");
    admitted
}

const CLIENTS: usize = 64;
const SPAN: Duration = Duration::from_secs(3);
