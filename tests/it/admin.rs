//! What the admin listener tells of a running gateway.

use crate::forwarding::open;
use crate::harness::{Gateway, Upstream};

#[test]
fn admin_probes_metrics_and_status_describe_the_gateway() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    assert_eq!(gateway.admin_get("/livez").status, 200);
    assert_eq!(gateway.admin_get("/readyz").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        metrics.contains("tollgate_requests_total{route=\"/**\",code=\"200\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("tollgate_request_duration_seconds_count{route=\"/**\"} 1"),
        "{metrics}"
    );
    let status = gateway.admin_get("/api/v1/status").json();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"), "{status}");
}

#[test]
fn no_label_ever_holds_a_callers_key() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
         [limits.per_tenant]\nrate = \"1/minute\"\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"per_tenant\"]\n",
        upstream.url()
    ));
    for n in 0..20 {
        gateway.request(
            "GET",
            &format!("/path-{n}"),
            &[("x-api-key", &format!("secret-{n}"))],
        );
    }
    let metrics = gateway.admin_get("/metrics").text();
    assert!(
        !metrics.contains("secret-") && !metrics.contains("path-"),
        "{metrics}"
    );
}

#[test]
fn the_admin_pages_are_never_on_the_public_port() {
    let gateway = Gateway::start("[[routes]]\nmatch = \"/api/**\"\nupstream = \"builtin:echo\"\n");
    for path in ["/livez", "/readyz", "/metrics", "/api/v1/status"] {
        let answer = gateway.get(path);
        assert!(
            answer.status == 404 || !answer.text().contains("tollgate_"),
            "{path}: {answer:?}"
        );
    }
    assert_eq!(gateway.get("/metrics").status, 404);
}

#[test]
fn readyz_is_ready_while_any_route_can_be_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that gateways share").expect("written");
    let start = |limits: &str, routes: &str| {
        Gateway::start(&format!(
            "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\nwhen_down = \"allow\"\nkey_secret_file = '{}'\n\
             [limits.strict]\nrate = \"9/hour\"\nper = \"everyone\"\nwhen_down = \"refuse\"\n{limits}\n\
             [limits.lenient]\nrate = \"9/hour\"\nper = \"everyone\"\n\
             [[routes]]\nmatch = \"/strict\"\nupstream = \"builtin:echo\"\nlimits = [\"lenient\", \"strict\"]\n{routes}",
            crate::servers::free_port(),
            secret.display(),
        ))
    };
    let another =
        "[[routes]]\nmatch = \"/lenient\"\nupstream = \"builtin:echo\"\nlimits = [\"lenient\"]\n";
    let gateway = start("", another);
    assert_eq!(
        (
            gateway.get("/strict").status,
            gateway.get("/lenient").status
        ),
        (503, 200)
    );
    let ready = gateway.admin_get("/readyz?verbose");
    assert_eq!(ready.status, 200, "{}", ready.text());
    assert!(
        ready.text().contains("[!] store: ") && ready.text().contains("1 of 2 routes"),
        "{}",
        ready.text()
    );

    let gateway = start("", "");
    assert_eq!(gateway.get("/strict").status, 503);
    let ready = gateway.admin_get("/readyz?verbose");
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert!(ready.text().contains("[-] store: "), "{}", ready.text());
    assert_eq!(
        gateway.admin_get("/livez").status,
        200,
        "a new process would be no better"
    );

    // What only counts refuses no request.
    for mode in ["mode = \"shadow\"", "mode = \"off\""] {
        let gateway = start(mode, "");
        assert_eq!(gateway.get("/strict").status, 200, "{mode}");
        assert_eq!(gateway.admin_get("/readyz").status, 200, "{mode}");
    }
}
