//! What is counted is what a scrape shows.

use super::*;

#[test]
fn metrics_scrape_sums_the_counts_of_workers() {
    let metrics = Metrics::new(1_000_000);
    let labels = metrics.resolve(&["GET /a", "/b"], &["app"]);
    let (one, two) = (metrics.worker(), metrics.worker());
    one.finished(labels.route(Some(0)), 200, 700);
    two.finished(labels.route(Some(0)), 200, 6_000);
    two.finished(labels.route(Some(1)), 429, 90);
    two.finished(labels.route(None), 404, 90);
    one.upstream(labels.upstream(0), 502, 100);
    one.upstream_failed(labels.upstream(0), "connect");
    one.rejected("denied");
    one.connection_opened();
    two.connection_opened();

    let text = metrics.render(Format::OpenMetrics);
    for line in [
        "tollgate_requests_total{route=\"GET /a\",code=\"200\"} 2",
        "tollgate_requests_total{route=\"/b\",code=\"429\"} 1",
        "tollgate_requests_total{route=\"_other\",code=\"404\"} 1",
        "tollgate_request_duration_seconds_bucket{le=\"0.005\",route=\"GET /a\"} 1",
        "tollgate_request_duration_seconds_bucket{le=\"0.01\",route=\"GET /a\"} 2",
        "tollgate_request_duration_seconds_bucket{le=\"+Inf\",route=\"GET /a\"} 2",
        "tollgate_request_duration_seconds_sum{route=\"GET /a\"} 0.0067",
        "tollgate_upstream_requests_total{upstream=\"app\",code=\"502\"} 1",
        "tollgate_upstream_failures_total{upstream=\"app\",reason=\"connect\"} 1",
        "tollgate_rejections_total{reason=\"denied\"} 1",
        "tollgate_connections_accepted_total 2",
        "# TYPE tollgate_requests counter",
        "# EOF",
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "no line `{line}` in\n{text}"
        );
    }
}

#[test]
fn metrics_scrape_before_the_first_request_describes_what_requests_count() {
    let metrics = Metrics::new(0);
    metrics.resolve(&["/a"], &["app"]);
    let text = metrics.render(Format::OpenMetrics);
    for family in [
        "requests counter",
        "request_duration_seconds histogram",
        "over_limit_requests counter",
        "upstream_requests counter",
        "upstream_failures counter",
        "upstream_duration_seconds histogram",
    ] {
        let line = format!("# TYPE tollgate_{family}\n");
        assert!(text.contains(&line), "no `{line}` in\n{text}");
    }
}

#[test]
fn counters_carry_on_through_a_reload_and_the_end_of_a_worker() {
    let metrics = Metrics::new(0);
    let before = metrics.resolve(&["/a", "/b"], &[]);
    let worker = metrics.worker();
    worker.finished(before.route(Some(1)), 200, 1);
    drop(worker);
    // The file was turned round, and a route is new.
    let after = metrics.resolve(&["/new", "/b", "/a"], &[]);
    assert_eq!(after.route(Some(1)), before.route(Some(1)));
    let worker = metrics.worker();
    worker.finished(after.route(Some(1)), 200, 1);
    assert!(
        metrics
            .render(Format::OpenMetrics)
            .contains("tollgate_requests_total{route=\"/b\",code=\"200\"} 2\n")
    );
}

#[test]
fn more_names_than_slots_count_as_other() {
    let metrics = Metrics::new(0);
    let names: Vec<String> = (0..SLOTS_MAX + 10).map(|n| format!("/{n}")).collect();
    let labels = metrics.resolve(&names, &[]);
    assert_eq!(labels.route(Some(SLOTS_MAX + 5)), labels.route(None));
    assert_ne!(labels.route(Some(SLOTS_MAX - 2)), labels.route(None));
}

#[test]
fn a_status_that_is_not_registered_counts_by_its_class() {
    let metrics = Metrics::new(0);
    let labels = metrics.resolve::<&str>(&[], &[]);
    let worker = metrics.worker();
    for status in [299, 599, 42, 999, 499] {
        worker.finished(labels.route(None), status, 1);
    }
    let text = metrics.render(Format::Prometheus);
    for line in [
        "code=\"2xx\"} 1",
        "code=\"5xx\"} 2",
        "code=\"0xx\"} 1",
        "code=\"499\"} 1",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}

#[test]
fn the_older_text_names_counters_as_its_parsers_expect() {
    let text = Metrics::new(0).render(Format::Prometheus);
    assert!(text.contains("# TYPE tollgate_config_reloads_total counter\n"));
    assert!(text.contains("tollgate_config_reloads_total{result=\"success\"} 0\n"));
    assert!(!text.contains("# EOF"));
    assert!(text.contains("process_open_fds "));
}

#[test]
fn metrics_last_reload_is_successful_until_one_is_refused() {
    let metrics = Metrics::new(0);
    let shown = || {
        let text = metrics.render(Format::Prometheus);
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("tollgate_config_last_reload_successful "));
        value.map(str::to_owned)
    };
    assert_eq!(shown().as_deref(), Some("1"), "a start is a success");
    metrics.reload_failed();
    assert_eq!(shown().as_deref(), Some("0"));
    metrics.reload_done(5, false);
    assert_eq!(
        shown().as_deref(),
        Some("0"),
        "another file is still refused"
    );
    metrics.reload_done(5, true);
    assert_eq!(shown().as_deref(), Some("1"));
}

#[test]
fn sources_are_asked_at_each_scrape_and_replaced_by_their_key() {
    let metrics = Metrics::new(0);
    metrics.source("tables", |to| {
        to.gauge("limit_keys", "Keys", &[("limit", "old")], 1.0)
    });
    metrics.source("tables", |to| {
        to.gauge("limit_keys", "Keys", &[("limit", "a\"b")], 2.0);
        to.counter("limit_key_evictions", "Evictions", &[], 3);
    });
    let text = metrics.render(Format::OpenMetrics);
    assert!(
        text.contains("tollgate_limit_keys{limit=\"a\\\"b\"} 2"),
        "{text}"
    );
    assert!(text.contains("tollgate_limit_key_evictions_total 3"));
    assert!(!text.contains("old"));
}

#[test]
fn metrics_exemplars_are_in_openmetrics_and_not_in_the_older_text() {
    let metrics = Metrics::new(0);
    metrics.worker().rejected("denied");
    metrics.source("limits", |to| {
        let example = |id: &str| Exemplar {
            labels: vec![("decision_id", id.to_owned())],
            at_micros: 1_700_000_000_500_000,
        };
        let labels = [("limit", "a")];
        to.counter_like(
            "limit_decisions",
            "Verdicts",
            &labels,
            7,
            Some(example("0a")),
        );
        to.rejection("denied", example("0b"));
        to.rejection("never", example("0c"));
    });
    let text = metrics.render(Format::OpenMetrics);
    for line in [
        "tollgate_limit_decisions_total{limit=\"a\"} 7 # {decision_id=\"0a\"} 1.0 1700000000.5",
        "tollgate_rejections_total{reason=\"denied\"} 1 # {decision_id=\"0b\"} 1.0 1700000000.5",
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "no `{line}` in\n{text}"
        );
    }
    let text = metrics.render(Format::Prometheus);
    assert!(
        text.contains("tollgate_limit_decisions_total{limit=\"a\"} 7\n"),
        "{text}"
    );
    assert!(
        text.contains("tollgate_rejections_total{reason=\"denied\"} 1\n"),
        "{text}"
    );
}

#[test]
fn scrapes_while_workers_count_never_lose_or_double() {
    let metrics = Metrics::new(0);
    let labels = metrics.resolve(&["/a"], &[]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let worker = metrics.worker();
                    for _ in 0..100 {
                        worker.finished(labels.route(Some(0)), 200, 1);
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                metrics.render(Format::OpenMetrics);
            }
        });
    });
    assert!(
        metrics
            .render(Format::OpenMetrics)
            .contains("tollgate_requests_total{route=\"/a\",code=\"200\"} 20000\n")
    );
}
