//! A gateway that ends finishes what it began.

use crate::forwarding::open;
use crate::harness::{Gateway, Upstream, eventually};

#[test]
fn drain_finishes_requests_in_progress_and_accepts_none() {
    let (release, upstream) = Upstream::held();
    let gateway = Gateway::start(&open(&upstream));
    let mut slow = gateway.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the request is under way", || upstream.seen().len() == 1);
    let (address, admin) = (gateway.address(), gateway.admin());
    assert_eq!(gateway.admin_get("/readyz").status, 200);
    gateway.drain();
    assert_eq!(
        crate::harness::Connection::open(admin)
            .request("GET", "/readyz", &[])
            .status,
        503
    );
    eventually("nothing new is taken", || {
        std::net::TcpStream::connect(address).is_err()
    });
    assert!(!gateway.ended(), "the slow request holds the end up");
    release.send(()).expect("the upstream waits");
    let answer = slow.answer("GET");
    assert_eq!((answer.status, answer.text().as_str()), (200, "finished"));
    eventually("the workers end", || gateway.ended());
    gateway.shutdown();
}
