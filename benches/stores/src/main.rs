//! The published comparison, reproduced: a token bucket in Redis, in PostgreSQL and in MariaDB the classic ways, and ours beside them.
//!
//! `cargo run --profile dist -p tollgate-bench-stores [redis|postgres|mariadb|over-grant]` starts its own servers and prints tables
//! (`redis 1`: with one task only; `redis 64 Tollgate`: one way only, by its name; `postgres classic,Tollgate per_user`:
//! some ways, on one workload; `postgres "" conflicts`: through the proxy; `postgres "" "" 700`: with flushes that take 700 us
//! longer). `lateness` shows how late answers at their deadlines are beside plain timers. `many 64` starts so many gateways, each a process, on one leased bucket in Redis. `count WAY
//! DECISIONS [URL]` makes so many decisions one after the other and prints bytes and calls: run it under callgrind or strace
//! at two numbers, whose difference no noise touches.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use tollgate_testkit::servers;

mod bench;
mod lateness;
mod maria_ways;
mod redis_ways;
mod slow_disk;
mod sql_ways;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if let (Some(url), "one-gateway") = (std::env::args().nth(2), wanted.as_str()) {
        // One of several processes of the over-grant test.
        if url.starts_with("postgres") {
            return sql_ways::one_gateway(&url);
        }
        return redis_ways::one_gateway(&url, &std::env::args().nth(3).unwrap_or_default());
    }
    let number = |place| {
        std::env::args()
            .nth(place)
            .and_then(|word| word.parse().ok())
    };
    if wanted == "paced-gateway" {
        // One of the processes of `many`.
        let url = std::env::args().nth(2).unwrap_or_default();
        let numbers = [3, 4, 5].map(|place| number(place).expect("a number"));
        return redis_ways::paced_gateway(&url, numbers);
    }
    if wanted == "lateness" {
        return lateness::measure();
    }
    if wanted == "many" {
        return redis_ways::many(number(2).map_or(64, |processes| processes as usize));
    }
    if wanted == "count" {
        let mut arguments = std::env::args().skip(2);
        let way = arguments.next().unwrap_or_default();
        let decisions = arguments
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(1000);
        return redis_ways::count(&way, decisions, arguments.next());
    }
    let all = wanted.is_empty();
    if all || wanted == "redis" {
        let only = std::env::args().nth(2).and_then(|tasks| tasks.parse().ok());
        redis_ways::compare(only, &std::env::args().nth(3).unwrap_or_default());
    }
    if all || wanted == "over-grant" {
        let way = std::env::args().nth(2).unwrap_or_default();
        redis_ways::over_grant(&way);
        if way.is_empty() || way == "Tollgate" {
            sql_ways::over_grant();
        }
    }
    for (database, compare) in [
        ("postgres", sql_ways::compare as fn(&str, &str)),
        ("mariadb", maria_ways::compare),
    ] {
        if !all && wanted != database {
            continue;
        }
        let [ways, workload, slower] =
            [2, 3, 4].map(|place| std::env::args().nth(place).unwrap_or_default());
        if !slower.is_empty() {
            slow_disk::slower_by(slower.parse().expect("a whole number of microseconds"));
        }
        compare(&ways, &workload);
    }
}
