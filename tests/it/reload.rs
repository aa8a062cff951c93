//! A changed file takes effect without a lost request or a refilled bucket; a bad one changes nothing.

use crate::harness::{Gateway, Upstream};

#[test]
fn a_reload_keeps_every_bucket() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(gateway.get("/").status, 429);
    gateway.reload(&limited("10/minute", 10, &upstream)).expect("a good file");
    assert_eq!(gateway.get("/").status, 429, "a larger limit is not a fresh one");
    gateway.reload(&limited("10/minute", 10, &upstream)).expect("a good file");
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn a_bad_file_leaves_the_running_one_in_force_and_says_why() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("5/minute", 5, &upstream));
    let error = gateway.reload("[limits.x]\nrat = 1\n").expect_err("a bad file");
    assert!(error.contains("rat"), "{error}");
    assert_eq!(gateway.get("/").status, 200);
    let metrics = gateway.admin_get("/metrics").text();
    assert!(metrics.contains("tollgate_config_reloads_total{result=\"failure\"} 1"), "{metrics}");
}

#[test]
fn a_connection_lives_through_a_reload_and_sees_the_new_routes() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited("50/minute", 50, &upstream));
    let mut connection = gateway.connect();
    assert_eq!(connection.request("GET", "/", &[]).status, 200);
    let new = format!("[[routes]]\nmatch = \"/new\"\nupstream = \"{}\"\n", upstream.url());
    gateway.reload(&new).expect("a good file");
    assert_eq!(connection.request("GET", "/", &[]).status, 404);
    assert_eq!(connection.request("GET", "/new", &[]).status, 200);
}

fn limited(rate: &str, burst: u64, upstream: &Upstream) -> String {
    format!(
        "[limits.per_caller]\nrate = \"{rate}\"\nburst = {burst}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"per_caller\"]\n",
        upstream.url()
    )
}
