//! WebSockets with the `websockets` library on either side: a tunnel that lives through a reload, and one that is told
//! that the gateway goes away.

use serde_json::json;

use crate::harness::{Gateway, Peers, Reply, Upstream, eventually};

fn config(port: u64, rate: &str, more: &str) -> String {
    format!(
        "[limits.sockets]\nrate = \"{rate}\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/socket\"\nupstream = \"http://127.0.0.1:{port}\"\nlimits = [\"sockets\"]\n{more}"
    )
}

fn open_connections(gateway: &Gateway) -> f64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("tollgate_connections "))
        .unwrap_or_default();
    line.rsplit(' ')
        .next()
        .and_then(|count| count.parse().ok())
        .expect("a gauge")
}

/// A WebSocket that has answered once, through a gateway to the upstream on this port; `None`: the
/// peers are not installed.
fn open() -> Option<(Peers, Gateway, u64)> {
    let mut peers = Peers::start("websockets", "tests/it/websocket_peers.py", &[])?;
    let port = peers.hear().as_u64().expect("a port");
    let gateway = Gateway::start(&config(port, "10/hour", ""));
    let target = gateway.address().to_string();
    assert_eq!(peers.tell(&json!({"do": "open", "target": target})), "open");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "one"})), "re:one");
    Some((peers, gateway, port))
}

#[test]
fn a_websocket_lives_through_a_reload_and_is_counted_to_its_end() {
    let Some((mut peers, gateway, port)) = open() else {
        return;
    };
    assert!((open_connections(&gateway) - 1.0).abs() < 0.1);
    gateway
        .reload(&config(
            port,
            "20/minute",
            "[[routes]]\nmatch = \"/other\"\nupstream = \"builtin:echo\"\n",
        ))
        .expect("good");
    assert_eq!(peers.tell(&json!({"do": "ask", "text": "two"})), "re:two");
    // Not even the route that it came by needs to be there any more.
    gateway
        .reload("[[routes]]\nmatch = \"/other\"\nupstream = \"builtin:echo\"\n")
        .expect("good");
    assert_eq!(gateway.get("/socket").status, 404);
    assert_eq!(
        peers.tell(&json!({"do": "ask", "text": "three"})),
        "re:three"
    );
    assert_eq!(
        peers.tell(&json!({"do": "ask", "text": "large"})),
        1_000_000
    );
    assert_eq!(
        peers.tell(&json!({"do": "close"})),
        json!([1000, 1000]),
        "it ends as the client wants it"
    );
    eventually("it is counted no more", || open_connections(&gateway) < 0.1);
}

#[test]
fn websocket_gets_a_close_frame_when_the_gateway_drains() {
    let Some((mut peers, gateway, _)) = open() else {
        return;
    };
    gateway.drain();
    assert_eq!(
        peers.tell(&json!({"do": "end"})),
        json!([1001, 1001]),
        "to both sides"
    );
    eventually("nothing holds the drain up", || gateway.ended());
    gateway.shutdown();
}

#[test]
fn websocket_whose_upstream_has_gone_gives_its_place_back() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let upstream = Upstream::start(move |_| Reply::Close(switch.into()));
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\ntimeouts = {{ upgrade_idle = \"1h\" }}\n\
         [limits.sockets]\nin_flight = 1\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"sockets\"]\n",
        upstream.url()
    ));
    let asked = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let open = || {
        let mut connection = gateway.connect();
        let status = connection.request("GET", "/", &asked).status;
        (connection, status)
    };
    let (mut held, status) = open();
    assert_eq!(status, 101);
    assert_eq!(held.rest(), "", "told that the upstream has gone");
    // It holds its own side open, and says something now and then.
    eventually("the place is free", || {
        let _ = held.try_send([0x89, 0x80, 0, 0, 0, 0]);
        open().1 == 101
    });
}
