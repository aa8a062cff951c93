//! What tests of any crate are written with; it is never published.
//!
//! | module | job |
//! |---|---|
//! | [`gateway`] | a gateway in this process: inline TOML, free ports, a clock that the test moves |
//! | [`upstream`] | an upstream that records what it gets |
//! | [`llm`] | an upstream that plays a language model in the formats of OpenAI and Anthropic |
//! | [`client`], [`frames`] | clients of HTTP/1.1 and HTTP/2 that show the very bytes |
//! | [`load`] | 64 clients at once, and what a limit may admit to them |
//! | [`nginx`], [`envoy`], [`peers`] | real neighbours: NGINX, Envoy, clients and servers in Python |
//! | [`servers`] | Redis, PostgreSQL, MariaDB and their companions on free ports, stopped when the test ends |
//! | [`random`] | seeded randomness; `SEED=N` replays a failure |

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on stops there; its functions are named for what they do"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the deadlines of real servers are real time, seeds come from the environment"
)]

pub mod client;
pub mod envoy;
pub mod frames;
pub mod gateway;
pub mod llm;
pub mod load;
pub mod nginx;
pub mod peers;
pub mod random;
pub mod servers;
pub mod upstream;

use std::io::{self, Read};
use std::time::{Duration, Instant};

pub use client::Connection;
pub use envoy::Envoy;
pub use gateway::{Gateway, change_request};
pub use llm::Llm;
pub use nginx::Nginx;
pub use peers::Peers;
pub use upstream::{Reply, Upstream};

/// Reads once. A signal in between is no end: a socket with a timeout reports it.
pub fn read(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Waits until `holds`, at most [`PATIENCE`]: for what another thread does. It looks again at once, then ever less
/// often.
///
/// # Panics
/// When it does not come to hold; `what` says what was waited for.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// How long a test waits for what must happen: far longer than it takes, since the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;

/// The file of this name that a page of the book shows below `<!-- file NAME -->`.
///
/// # Panics
/// If the page shows no such file.
#[must_use]
pub fn shown(page: &str, name: &str) -> String {
    let page = std::fs::read_to_string(repository().join("docs/src").join(page));
    let page = page.expect("the page is there");
    let mark = format!("<!-- file {name} -->\n```");
    let from = page.split_once(&mark).expect("the page shows it").1;
    let text = from.split_once('\n').expect("a language").1;
    text.split_once("\n```").expect("an end").0.to_owned() + "\n"
}

/// The root of the repository: tests read its files and scripts from there.
#[must_use]
pub fn repository() -> &'static std::path::Path {
    static ROOT: std::sync::LazyLock<std::path::PathBuf> = std::sync::LazyLock::new(|| {
        let crate_folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        crate_folder
            .ancestors()
            .nth(2)
            .expect("crates/testkit is two folders down")
            .to_path_buf()
    });
    &ROOT
}
