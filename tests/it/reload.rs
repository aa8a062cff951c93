//! A changed file takes effect without a lost request or a refilled bucket; a bad one changes nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Gateway, Upstream, eventually};

#[test]
fn a_bad_file_leaves_the_running_one_in_force_and_says_why() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    let error = gateway
        .reload("[limits.x]\nrat = 1\n")
        .expect_err("a bad file");
    assert!(error.contains("rat"), "{error}");
    assert_eq!(gateway.get("/").status, 200);
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_config_reloads_total{result=\"failure\"} 1"),
        "{metrics}"
    );
}

#[test]
fn reload_of_numbers_keeps_remaining_units_and_another_algorithm_begins_new_buckets() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    let left = || gateway.get("/").left();
    assert_eq!([left(), left()], [Some(4), Some(3)]);
    gateway
        .reload(&limited("9/minute", 9, &upstream))
        .expect("a good file");
    assert_eq!(
        left(),
        Some(2),
        "three were left, and a larger burst adds none"
    );
    gateway
        .reload(&limited("9/minute", 1, &upstream))
        .expect("a good file");
    assert_eq!(left(), Some(0), "clamped to the smaller burst");
    gateway
        .reload(&limited("5/minute", 5, &upstream))
        .expect("a good file");
    assert_eq!(
        gateway.get("/").status,
        429,
        "what was clamped does not come back"
    );
    gateway.advance(Duration::from_secs(12));
    assert_eq!(left(), Some(0), "the new rate refills");

    let windows =
        limited("5/minute", 5, &upstream).replace("burst = 5", "algorithm = \"sliding_log\"");
    let words = gateway.reload(&windows).expect("a good file");
    assert!(words.contains("begins new buckets"), "{words}");
    assert_eq!(left(), Some(4));
}

#[test]
fn a_tier_that_gets_or_loses_numbers_of_its_own_refills_no_bucket() {
    let upstream = Upstream::hello();
    let config = |pro: &str| {
        format!(
            "[identities.who]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
             [identities.who.callers]\n\
             \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = {{ name = \"acme\", tier = \"pro\" }}\n\
             [tiers.pro]\n{pro}\n\
             [limits.it]\nrate = \"5/hour\"\nburst = 5\nper = \"who\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&config(""));
    let left = || {
        let answer = gateway.request("GET", "/", &[("x-api-key", "test")]);
        answer.left()
    };
    assert_eq!([left(), left()], [Some(4), Some(3)]);
    gateway
        .reload(&config("it = { rate = \"50/hour\", burst = 50 }"))
        .expect("a good file");
    assert_eq!(
        left(),
        Some(2),
        "three were left of the limit's own, and none is added"
    );
    gateway.advance(Duration::from_secs(3600));
    assert_eq!(left(), Some(49), "it refills by the tier's");
    assert_eq!([left(), left()], [Some(48), Some(47)]);
    gateway.reload(&config("")).expect("a good file");
    assert_eq!(left(), Some(4), "clamped to the limit's own burst");
    assert_eq!(
        [left(), left(), left(), left()],
        [Some(3), Some(2), Some(1), Some(0)]
    );
    gateway
        .reload(&config("it = { rate = \"50/hour\", burst = 50 }"))
        .expect("a good file");
    assert_eq!(
        gateway.request("GET", "/", &[("x-api-key", "test")]).status,
        429,
        "there and back adds nothing"
    );
    gateway.reload(&config("")).expect("a good file");
    assert_eq!(
        gateway.request("GET", "/", &[("x-api-key", "test")]).status,
        429
    );
}

#[test]
fn reload_callers_file_that_gives_limits_is_followed_when_it_changes() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("callers.toml");
    let list = |of_acme: &str| {
        let acme = "\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"";
        std::fs::write(&file, format!("{acme} = {{ name = \"acme\"{of_acme} }}\n"))
            .expect("written");
    };
    list("");
    let gateway = Gateway::start(&format!(
        "[identities.who]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
         callers = '{}'\n[limits.it]\nrate = \"5/hour\"\nburst = 5\nper = \"who\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
        file.display(),
        upstream.url()
    ));
    let asked = || gateway.request("GET", "/", &[("x-api-key", "test")]);
    let policy_says = |burst: &str| {
        let policy = asked().header("ratelimit-policy").map(str::to_owned);
        policy.is_some_and(|policy| policy.contains(&format!("q={burst};")))
    };
    assert!(policy_says("5"));
    for (limits, burst) in [
        (
            ", limits = { it = { rate = \"70/hour\", burst = 70 } }",
            "70",
        ),
        (
            ", limits = { it = { rate = \"80/hour\", burst = 80 } }",
            "80",
        ),
        ("", "5"),
        (
            ", limits = { it = { rate = \"90/hour\", burst = 90 } }",
            "90",
        ),
    ] {
        list(limits);
        eventually("the new numbers are in force", || policy_says(burst));
    }
    // A mistake in it leaves the callers in force.
    list(", limits = { it = \"soon\" }");
    eventually("it is refused", || {
        gateway
            .admin_get("/readyz?verbose")
            .text()
            .contains("the new one is refused")
    });
    assert!(policy_says("90"));
    list(", tier = \"none\"");
    eventually("it is refused again", || {
        gateway
            .admin_get("/readyz?verbose")
            .text()
            .contains("unknown tier")
    });
}

#[test]
fn reload_prints_the_changes() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    let same = gateway
        .reload(&limited("5/minute", 5, &upstream))
        .expect("a good file");
    assert_eq!(same.lines().count(), 1, "nothing changed: {same}");
    let more = limited("10/minute", 8, &upstream).replace("per_caller", "each")
        + "[limits.more]\nrate = \"1/second\"\nper = \"everyone\"\n\
           [[routes]]\nmatch = \"/more\"\nupstream = \"builtin:echo\"\nlimits = [\"more\"]\n";
    let renamed = gateway.reload(&more).expect("a good file");
    for line in [
        "-   per_caller: 5 at once, then one every 12 seconds; at most 10 in any minute, because burst is the whole amount, for each address",
        "+   each: 8 at once, then one every 6 seconds; at most 18 in any minute, for each address",
        "+   more: 1 at once, then one every second; at most 2 in any second, because burst is the whole amount, for all callers together",
        "+   /more -> the built-in echo: more",
    ] {
        assert!(
            renamed.lines().any(|said| said == line),
            "{line}: {renamed}"
        );
    }
    let changed = gateway
        .reload(&more.replace("10/minute", "20/minute"))
        .expect("a good file");
    let lines: Vec<&str> = changed.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  Limits",
            "-   each: 8 at once, then one every 6 seconds; at most 18 in any minute, for each address",
            "+   each: 8 at once, then one every 3 seconds; at most 28 in any minute, for each address",
        ],
        "{changed}"
    );
    // What the description does not say is said to differ.
    let edited = more.replace("10/minute", "20/minute").replace(
        "match = \"/more\"",
        "match = \"/more\"\nresponse_headers = { set = { x-a = \"b\" } }",
    );
    let changed = gateway.reload(&edited).expect("a good file");
    assert!(
        changed.ends_with("\n+ route /more: other settings"),
        "{changed}"
    );
}

#[test]
fn reload_that_changes_very_much_says_a_bounded_part_of_it() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    let routes: String = (0..100)
        .map(|n| format!("[[routes]]\nmatch = \"/{n}\"\nupstream = \"builtin:echo\"\n"))
        .collect();
    let said = gateway
        .reload(&(limited("5/minute", 5, &upstream) + &routes))
        .expect("a good file");
    assert_eq!(said.lines().count(), 52, "{said}");
    assert!(said.ends_with("and 51 more lines"), "{said}");
}

#[test]
fn reloads_under_load_lose_no_request_and_refill_no_bucket() {
    const BURST: u64 = 200;
    let upstream = Upstream::hello();
    let config = |rate: &str, extra: &str| {
        let path = limited(rate, BURST, &upstream).replace("/**", "/tight");
        format!(
            "{path}[[routes]]\nmatch = \"/open\"\nupstream = \"{}\"\n{extra}",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&config("200/hour", ""));
    let (stop, admitted, answered) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = gateway.connect();
                    let mut asked = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        // On one connection throughout, and every few requests one of its own.
                        asked += 1;
                        let open = if asked.is_multiple_of(8) {
                            gateway.get("/open")
                        } else {
                            connection.request("GET", "/open", &[])
                        };
                        assert_eq!((open.status, open.text().as_str()), (200, "hello"));
                        match connection.request("GET", "/tight", &[]).status {
                            200 => admitted.fetch_add(1, Ordering::Relaxed),
                            other => {
                                assert_eq!(other, 429);
                                0
                            }
                        };
                        answered.fetch_add(2, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut kept = gateway.connect();
        for round in 0..40_u64 {
            // Numbers, routes, and what is beside them change; now and then the file is bad.
            let before = answered.load(Ordering::Relaxed);
            let rate =
                ["200/hour", "300/hour", "7/minute"][usize::try_from(round % 3).expect("small")];
            let extra =
                format!("[[routes]]\nmatch = \"/round-{round}\"\nupstream = \"builtin:echo\"\n");
            gateway.reload(&config(rate, &extra)).expect("a good file");
            // A connection that was open before has the routes of now, and no others.
            let status = |round| kept.request("GET", &format!("/round-{round}"), &[]).status;
            assert_eq!([round, round + 1].map(status), [200, 404]);
            if round % 5 == 0 {
                gateway.reload("nonsense").expect_err("a bad file");
            }
            crate::harness::eventually("requests pass between reloads", || {
                answered.load(Ordering::Relaxed) > before + 8
                    || loads.iter().any(std::thread::ScopedJoinHandle::is_finished)
            });
        }
        stop.store(true, Ordering::Relaxed);
        // One that panicked makes the scope panic.
    });
    assert!(answered.load(Ordering::Relaxed) > 40 * 8);
    assert_eq!(
        admitted.load(Ordering::Relaxed),
        BURST,
        "the clock stands still: the burst, once, over all reloads"
    );
}

fn limited(rate: &str, burst: u64, upstream: &Upstream) -> String {
    format!(
        "[limits.per_caller]\nrate = \"{rate}\"\nburst = {burst}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"per_caller\"]\n",
        upstream.url()
    )
}
