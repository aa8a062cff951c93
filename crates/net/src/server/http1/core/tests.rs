//! The body of a request on a socket that takes nothing for now.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::body::CONTINUE;
use super::*;
use crate::server::ServerState;
use crate::server::io::Plain;

/// A connection, and its client's side.
pub(in crate::server::http1) fn connection() -> (Core, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let transport = Transport::Plain(Plain::Unix(near));
    (Core::new(transport, place(), ReadBuffer::new()), far)
}

fn place() -> ConnectionSlot {
    ConnectionSlot::take(
        &Arc::new(ServerState::new(crate::server::Settings::default())),
        1,
    )
    .expect("free")
}

/// A request with this header begins.
fn begin(core: &mut Core, header: &str, expects: bool) -> u32 {
    let limits = Limits {
        bytes: 1024,
        fields: 10,
        target: 100,
    };
    let mut head = BytesMut::from(format!("PUT / HTTP/1.1\r\n{header}\r\n\r\n").as_bytes());
    let read = core.requests.read_head(&mut head, limits);
    assert!(matches!(read, Ok(Some(_))));
    core.begin(expects, true)
}

#[tokio::test]
async fn a_socket_is_no_tunnel_before_the_body_has_been_read() {
    let (mut core, mut far) = connection();
    let number = begin(&mut core, "content-length: 3", false);
    assert!(core.upgrade(number).is_none());
    far.write_all(b"two").await.expect("sent");
    let frame = std::future::poll_fn(|cx| core.poll_frame(number, cx));
    assert!(
        tokio::time::timeout(Duration::from_secs(20), frame)
            .await
            .expect("in time")
            .is_some()
    );
    assert!(core.upgrade(number).is_some());
    assert!(
        core.upgrade(number.wrapping_sub(1)).is_none(),
        "nor for another request"
    );
}

#[tokio::test]
async fn upgrade_bytes_read_after_the_request_are_first_in_the_tunnel() {
    let (mut core, mut far) = connection();
    far.write_all(b"ahead").await.expect("sent");
    let filled = tokio::time::timeout(
        Duration::from_secs(20),
        std::future::poll_fn(|cx| core.poll_fill(cx, 0)),
    )
    .await;
    assert_eq!(filled.expect("in time").expect("read"), 5);
    let number = begin(&mut core, "host: a", false);
    let upgraded = core.upgrade(number).expect("nothing is in its way");
    core.hand_over();
    far.write_all(b" and behind").await.expect("sent");
    far.shutdown().await.expect("ended");
    let (mut tunnel, ahead, _place) = upgraded.await.expect("handed over").into_parts();
    let mut said = String::from_utf8_lossy(&ahead).into_owned();
    let read =
        tokio::time::timeout(Duration::from_secs(20), tunnel.read_to_string(&mut said)).await;
    read.expect("in time").expect("read");
    assert_eq!(said, "ahead and behind");
}

#[tokio::test]
async fn a_100_continue_that_the_socket_did_not_take_goes_out_before_the_body_is_waited_for() {
    let (near, mut far) = UnixStream::pair().expect("sockets");
    near.writable().await.expect("open");
    let mut full = 0;
    while let Ok(written) = near.try_write(&[b'x'; 4096]) {
        full += written;
    }
    let mut core = Core::new(
        Transport::Plain(Plain::Unix(near)),
        place(),
        ReadBuffer::new(),
    );
    let number = begin(&mut core, "content-length: 5", true);
    let frame = std::future::poll_fn(|cx| core.poll_frame(number, cx));
    let caller = async {
        // It sends nothing before it is asked to.
        let mut said = vec![0; full + CONTINUE.len()];
        far.read_exact(&mut said).await.expect("asked for the body");
        assert!(said.ends_with(CONTINUE));
        far.write_all(b"hello").await.expect("sent");
    };
    let both = async { tokio::join!(biased; frame, caller).0 };
    let frame = tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .expect("in time");
    assert_eq!(
        frame
            .expect("a body")
            .expect("whole")
            .into_data()
            .expect("data"),
        "hello"
    );
}
