//! What matching costs: `cargo bench --bench policy`. Prints nanoseconds per call, the best of five runs.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, Method};
use tollgate_policy::body::json::{Paths, Reader};
use tollgate_policy::routes::path::normalise;
use tollgate_policy::routes::pattern::Pattern;
use tollgate_policy::routes::router::Router;

fn main() {
    let headers = HeaderMap::new();
    for count in [10_usize, 1_000, 10_000] {
        let patterns: Vec<Pattern> = (0..count)
            .map(|n| {
                Pattern::parse(&format!(
                    "GET api.example.com/service{n}/v1/{{id}}/items/{{item}}"
                ))
            })
            .collect::<Result<_, _>>()
            .expect("patterns");
        let router = Router::new(&patterns).expect("no conflicts");
        let paths: Vec<String> = (0..64)
            .map(|n| format!("/service{}/v1/7/items/8", n * count / 64))
            .collect();
        for path in &paths {
            assert!(
                router
                    .find(&Method::GET, "api.example.com", path, &headers, None)
                    .matched
                    .is_some(),
                "{path} has a route"
            );
        }
        let mut next = 0;
        report(&format!("find among {count} routes"), || {
            next = (next + 1) % paths.len();
            black_box(router.find(
                &Method::GET,
                "api.example.com",
                black_box(&paths[next]),
                &headers,
                None,
            ));
        });
    }
    bodies();
    report("normalise a clean path", || {
        black_box(normalise(black_box("/service7/v1/0123456789/items/8"))).ok();
    });
    report("normalise one with an escape", || {
        black_box(normalise(black_box("/service7/v1/01234%2056789/items/8"))).ok();
    });
}

/// Reads chat requests of 4 KiB for two members: one message, many, and one with an escape every 20
/// characters.
fn bodies() {
    let paths: Vec<String> = ["model", "max_tokens"].map(str::to_owned).to_vec();
    let mut wanted = Paths::default();
    for path in paths {
        wanted.add(&[path]).expect("two of them");
    }
    let wanted = Arc::new(wanted);
    let plain = "A sentence that someone says to a model, as long as most. ";
    let escaped = r#"He said \"so it is.\"\n A word, another. \n"#;
    let text = |said: &str, messages: usize| {
        let each = said.repeat(1 + 4096 / messages / said.len());
        let each = each[..4096 / messages - 40].trim_end_matches('\\');
        let list = vec![format!(r#"{{"role":"user","content":"{each}"}}"#); messages];
        format!(
            r#"{{"model":"small","messages":[{}],"max_tokens":100}}"#,
            list.join(",")
        )
    };
    for (what, said, messages) in [
        ("one message", plain, 1),
        ("16 messages", plain, 16),
        ("escapes", escaped, 1),
    ] {
        let body = text(said, messages);
        report(&format!("read a body: {what}"), || {
            let mut reader = Reader::request(&wanted, wanted.all(), wanted.all());
            reader.feed(black_box(body.as_bytes()));
            black_box(reader.finish()).expect("valid");
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn report(what: &str, mut call: impl FnMut()) {
    const CALLS: u32 = 200_000;
    let run = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let best = (0..5).map(|_| run(&mut call)).fold(f64::MAX, f64::min);
    println!("{what:32} {best:8.1} ns");
}
