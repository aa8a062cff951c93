//! WebSockets with the `websockets` library on either side: a tunnel that lives through a reload, and one that is told
//! that the gateway goes away.

use serde_json::json;

use crate::harness::{Gateway, Peers, eventually};

fn config(port: u64, rate: &str, more: &str) -> String {
    format!(
        "[limits.sockets]\nrate = \"{rate}\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/socket\"\nupstream = \"http://127.0.0.1:{port}\"\nlimits = [\"sockets\"]\n{more}"
    )
}

fn open_connections(gateway: &Gateway) -> f64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = metrics.lines().find(|line| line.starts_with("tollgate_connections ")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a gauge")
}

#[test]
fn a_websocket_lives_through_a_reload_and_is_counted_to_its_end() {
    let Some(mut peers) = Peers::start("websockets", "tests/it/websocket_peers.py", &[]) else { return };
    let port = peers.hear().as_u64().expect("a port");
    let gateway = Gateway::start(&config(port, "10/hour", ""));
    assert_eq!(peers.tell(&json!({"do": "open", "target": gateway.address().to_string()})), "open");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "one"})), "re:one");
    assert!((open_connections(&gateway) - 1.0).abs() < 0.1);
    gateway
        .reload(&config(port, "20/minute", "[[routes]]\nmatch = \"/other\"\nupstream = \"builtin:echo\"\n"))
        .expect("good");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "two"})), "re:two");
    // Not even the route that it came by needs to be there any more.
    gateway.reload("[[routes]]\nmatch = \"/other\"\nupstream = \"builtin:echo\"\n").expect("good");
    assert_eq!(gateway.get("/socket").status, 404);
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "three"})), "re:three");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "large"})), 1_000_000);
    assert_eq!(peers.tell(&json!({"do": "close"})), json!([1000, 1000]), "it ends as the client wants it");
    eventually("it is counted no more", || open_connections(&gateway) < 0.1);
}

#[test]
fn a_websocket_is_told_that_the_gateway_goes_away() {
    let Some(mut peers) = Peers::start("websockets", "tests/it/websocket_peers.py", &[]) else { return };
    let port = peers.hear().as_u64().expect("a port");
    let gateway = Gateway::start(&config(port, "10/hour", ""));
    assert_eq!(peers.tell(&json!({"do": "open", "target": gateway.address().to_string()})), "open");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "one"})), "re:one");
    gateway.drain();
    assert_eq!(peers.tell(&json!({"do": "end"})), json!([1001, 1001]), "to both sides");
    eventually("nothing holds the drain up", || gateway.ended());
    gateway.shutdown();
}
