//! The new process has the buckets and is stopped, and then killed.

use super::*;

/// The old process grants nothing while the new one is stopped, says why, and decides again when it is dead.
#[test]
fn upgrade_new_process_that_is_silent_and_then_dies_leaves_the_old_one_its_buckets() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let upstream = Upstream::start(move |_| {
        held.lock().expect("no panic").recv().expect("released");
        Reply::ok("finished")
    });
    let routes = limited("/few", "3/day", 3, "builtin:echo")
        + &limited("/slow", "1/day", 1, &upstream.url());
    let config = config(2, &routes).replace("drain = \"2s\"", "drain = \"60s\"");
    let mut service = Service::start(&config);
    let [mut first, mut second] = [(); 2].map(|()| service.connect());
    for old in [&mut first, &mut second] {
        assert_eq!(old.request("GET", "/few", &[]).status, 200, "two of three");
    }
    let mut slow = service.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("it is under way", || upstream.seen().len() == 1);
    service.upgrade();
    service.signal("STOP");
    let answer = first.request("GET", "/few", &[]);
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(
        answer.text().contains("new process of this gateway"),
        "{}",
        answer.text()
    );
    service.await_line("the new process does not respond", 1);
    service.signal("KILL");
    let status = format!("/proc/{}/stat", service.pid);
    eventually("its sockets are closed", || {
        std::fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z "))
    });
    let answer = second.request("GET", "/few", &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    service.await_line("the new process has ended", 1);
    assert_eq!(service.count("the new process does not respond"), 1);
    release.send(()).expect("the upstream waits");
    assert_eq!(slow.answer("GET").status, 200);
}
