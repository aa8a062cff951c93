//! Gateways whose store does not answer for a while, and keeps its data: what they grant in all, and what a gateway grants
//! that starts under load.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::gateways::{Gateway, Stops, at_most, status};
use crate::servers::{Server, free_port};

const RATE: u64 = 40;
const BURST: u64 = 40;

fn settings(kind: &str, url: &str) -> String {
    format!(
        "[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"local_share\"\nanswer_within = \"200ms\"\n\
         key_secret_file = \"secret\"\n\
         [limits.total]\nper = \"everyone\"\nrate = \"{RATE}/second\"\nburst = {BURST}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
    )
}

/// Asks on new connections, from before there is a listener, until told to stop; what was granted is counted. A share
/// decides what the store does not.
fn ask_from_the_start(port: u16, stop: &AtomicBool, granted: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            std::thread::yield_now();
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            match status(&mut stream, "/") {
                Some(200) => drop(granted.fetch_add(1, Ordering::Relaxed)),
                Some(status) => assert_eq!(status, 429),
                None => break,
            }
        }
    }
}

fn lasts(span: Duration) {
    let start = Instant::now();
    while start.elapsed() < span {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two gateways keep a key used up while the store does not answer for two seconds, with its data kept.
fn one_burst_more_at_most(kind: &str, url: &str, stand_still: impl Fn(), go_on: impl Fn()) {
    let outage = || {
        stand_still();
        lasts(Duration::from_secs(2));
        go_on();
        Instant::now()
    };
    within_one_burst(kind, &[url, url], outage, || {});
}

/// Two gateways keep a key used up through an `outage`, which returns when a store with the data answered again. What they
/// grant in all is at most `burst + rate x T`, one burst more, and what the share of one gateway grants until both have
/// noticed that the store answers. Then comes `afterwards`.
pub(crate) fn within_one_burst(
    kind: &str,
    urls: &[impl AsRef<str>; 2],
    outage: impl FnOnce() -> Instant,
    afterwards: impl FnOnce(),
) {
    let start = |url: &_| Gateway::start_on(&settings(kind, AsRef::as_ref(url)));
    let gateways = urls.each_ref().map(start);
    // Each knows of the other.
    for gateway in &gateways {
        crate::servers::wait_until("two gateways that know of each other", || {
            gateway.metric("store_replicas") == 2
        });
    }
    let (stop, granted, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let beside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for gateway in &gateways {
            for _ in 0..4 {
                scope.spawn(|| ask_from_the_start(gateway.port, &stop, &granted));
            }
        }
        let stops = Stops(&stop);
        lasts(Duration::from_secs(2));
        let back = outage();
        crate::servers::wait_until("gateways that have noticed", || {
            gateways
                .iter()
                .all(|gateway| gateway.metric("store_up") == 1)
        });
        beside.store(
            u64::try_from(back.elapsed().as_millis()).unwrap() * RATE / 2 / 1000,
            Ordering::Relaxed,
        );
        afterwards();
        lasts(Duration::from_secs(3));
        drop(stops);
    });
    let ungoverned = gateways
        .iter()
        .map(|gateway| gateway.metric("limit_ungoverned_total{limit=\"total\"}"))
        .sum::<u64>();
    assert!(ungoverned > 0, "the shares have decided");
    let granted = granted.load(Ordering::Relaxed);
    let (most, beside) = (at_most(BURST, RATE, start), beside.into_inner());
    println!("{kind}: granted {granted}, burst and rate are {most}");
    assert!(
        granted <= most + BURST + beside,
        "{kind}: granted {granted} of {most}, and {beside} until it was noticed"
    );
}

pub fn of_the_server_grants_one_burst_more_at_most(server: Server) {
    one_burst_more_at_most(
        server.name(),
        &server.url(),
        || server.signal("-STOP"),
        || server.signal("-CONT"),
    );
}

/// A way to a port that can be cut: its connections end, and no new one is made.
struct Way {
    port: u16,
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            cut: Arc::default(),
            open: Arc::default(),
        };
        let (cut, open) = (way.cut.clone(), way.open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let mut open = open.lock().unwrap();
                if cut.load(Ordering::Acquire) {
                    continue;
                }
                let ends = [
                    client.try_clone(),
                    server.try_clone(),
                    client.try_clone(),
                    server.try_clone(),
                ]
                .map(Result::unwrap);
                let [mut up, mut up_to, mut down_to, mut down] = ends;
                std::thread::spawn(move || std::io::copy(&mut up, &mut up_to));
                std::thread::spawn(move || std::io::copy(&mut down, &mut down_to));
                open.extend([client, server]);
            }
        });
        way
    }

    fn cut(&self) {
        let mut open = self.open.lock().unwrap();
        self.cut.store(true, Ordering::Release);
        for stream in open.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.cut.store(false, Ordering::Release);
    }
}

pub fn of_the_network_grants_one_burst_more_at_most(server: Server) {
    let way = Way::to(server.port());
    let url = server.url_through(way.port);
    one_burst_more_at_most(server.name(), &url, || way.cut(), || way.mend());
}

/// Gateways that start under load on a healthy store grant nothing from shares.
pub fn starts_under_load(server: Server) {
    let (stop, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut gateways = Vec::new();
        let stops = Stops(&stop);
        for place in 0..4 {
            // The deadline is not what this is about, and the machine may be busy.
            let settings = settings(server.name(), &server.url_at(place)).replace("200ms", "900ms");
            let port = free_port();
            for _ in 0..4 {
                let (stop, granted) = (&stop, &granted);
                scope.spawn(move || ask_from_the_start(port, stop, granted));
            }
            gateways.push(Gateway::start_at(port, &settings));
            let (granted, most) = (granted.load(Ordering::Relaxed), at_most(BURST, RATE, start));
            assert!(granted <= most, "granted {granted}, at most {most}");
        }
        drop(stops);
        for gateway in &gateways {
            assert_eq!(
                gateway.metric("limit_ungoverned_total{limit=\"total\"}"),
                0,
                "the store answered"
            );
        }
    });
}
