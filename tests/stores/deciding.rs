//! Gateways that decide for proxies (`/check`) and share a store: what they admit together.

use std::net::TcpStream;

use crate::gateways::{Gateway, status_with, store};
use crate::servers::Server;
use crate::servers::{free_port, wait_until};

/// The request that the proxy asks about.
const ASKED: &str = "x-original-method: GET\r\nx-original-uri: /\r\nx-forwarded-host: example.com\r\nx-real-ip: 192.0.2.7\r\n";

/// Two gateways are asked in turns until both refuse, each request under two limits.
pub fn admit_one_burst_together(server: Server) {
    let mut asked = [0, 1].map(|place| {
        let port = free_port();
        let store = store(&server, place);
        let gateway = Gateway::start_on(&format!(
            "[decide]\nlisten = \"127.0.0.1:{port}\"\ntrusted = [\"127.0.0.1\"]\n\
             {store}[limits.total]\nper = \"everyone\"\nrate = \"40/day\"\n\
             [limits.each]\nper = \"address\"\nrate = \"30/day\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\", \"each\"]\n"
        ));
        (gateway, TcpStream::connect(("127.0.0.1", port)).unwrap(), 0)
    });
    let mut refused = [false; 2];
    wait_until("a refusal by both", || {
        for ((_, stream, admitted), refused) in asked.iter_mut().zip(&mut refused) {
            match status_with(stream, "/check", ASKED) {
                Some(200) => *admitted += 1,
                Some(429) => *refused = true,
                // (A store on a busy machine may be late.)
                Some(503) => {}
                other => panic!("{other:?}"),
            }
        }
        !refused.contains(&false)
    });
    let [one, two] = asked.map(|(.., admitted)| admitted);
    assert!(one > 0 && two > 0, "both admit: {one} and {two}");
    assert!(one + two <= 30, "{one} and {two}");
}
