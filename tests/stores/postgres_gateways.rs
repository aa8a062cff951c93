//! Whole gateways, as processes, on one PostgreSQL: what they grant together.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::gateways::{Gateway, ask_on, at_most, status};
use crate::servers::Postgres;

/// The README's example of a shared store, on this PostgreSQL: its `[store]` and its limit, with other numbers.
fn settings(server: &Postgres, limit: &str) -> String {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let start = readme.find("[store]\nkind = \"redis\"                       # or \"postgres\"").unwrap();
    let example = readme[start..].split("```").next().unwrap();
    let replaced = [
        ("kind = \"redis\"", "kind = \"postgres\"".to_owned()),
        ("redis://127.0.0.1:6379/0", server.url()),
        ("when_down = \"local_share\"", "when_down = \"refuse\"".to_owned()),
        // The deadline is not what this is about, and the machine may be busy.
        ("answer_within = \"20ms\"", "answer_within = \"900ms\"".to_owned()),
        ("key_secret = \"${TOLLGATE_KEY_SECRET}\"", "key_secret_file = \"secret\"".to_owned()),
        ("rate = \"100/minute\"\nburst = 20", limit.to_owned()),
    ];
    replaced.into_iter().fold(example.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the example has {from}: {text}");
        text.replacen(from, &to, 1)
    })
}

#[test]
fn one_to_four_gateways_of_the_readme_share_a_limit_exactly() {
    if !Postgres::available() {
        return;
    }
    for count in 1..=4 {
        let server = Postgres::start_with(&[]);
        let settings = settings(&server, "rate = \"10/second\"\nburst = 10");
        let gateways: Vec<Gateway> = (0..count).map(|_| Gateway::start_on(&settings)).collect();
        let (stop, granted, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for gateway in &gateways {
                ask_on(scope, gateway.port, 8, &stop, &granted);
            }
            while start.elapsed() < Duration::from_secs(3) {
                std::thread::sleep(Duration::from_millis(20));
                let (granted, most) = (granted.load(Ordering::Relaxed), at_most(10, 10, start));
                assert!(granted <= most, "{count} gateways granted {granted}, at most {most}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        let granted = granted.load(Ordering::Relaxed);
        assert!(granted >= 30, "{count} gateways granted {granted} of 40: nearly all that the limit has");
    }
}

#[test]
fn two_gateways_of_the_readme_give_out_a_burst_once() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    let settings = settings(&server, "rate = \"1/hour\"\nburst = 20");
    let gateways = [Gateway::start_on(&settings), Gateway::start_on(&settings)];
    let mut streams = gateways.each_ref().map(|gateway| TcpStream::connect(("127.0.0.1", gateway.port)).unwrap());
    let answers: Vec<u16> = (0..24).map(|turn| status(&mut streams[turn % 2], "/").unwrap()).collect();
    assert_eq!(answers, [[200; 20].as_slice(), &[429; 4]].concat());
}
