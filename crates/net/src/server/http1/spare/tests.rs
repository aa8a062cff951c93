//! What connections lend, and what they do not.

use std::task::Waker;

use tokio::io::AsyncWriteExt;

use super::*;
use crate::server::http1::core::tests::connection;
use tollgate_http1::request::Limits;

const LIMITS: Limits = Limits {
    bytes: 100_000,
    fields: 10,
    target: 100,
};

/// Other tests of this thread may have left some.
fn forget_all() {
    while take_buffers().is_some() || take_reader().is_some() {}
}

/// The number of pairs of buffers that can be taken.
fn lent() -> usize {
    std::iter::from_fn(take_buffers).count()
}

fn poll_begin(core: &mut Core) -> Poll<io::Result<usize>> {
    core.poll_begin(&mut Context::from_waker(Waker::noop()))
}

/// Reads what `text` begins with, once it has arrived.
async fn read(core: &mut Core, far: &mut tokio::net::UnixStream, text: &str) {
    far.write_all(text.as_bytes()).await.expect("sent");
    std::future::poll_fn(|cx| core.poll_readable(cx)).await;
    assert!(matches!(poll_begin(core), Poll::Ready(Ok(1..))));
}

fn keep(capacity: usize) {
    let mut input = ReadBuffer::new();
    let mut nothing = tokio::io::empty();
    assert!(
        input
            .poll_fill(&mut Context::from_waker(Waker::noop()), &mut nothing, 0)
            .is_ready()
    );
    let mut output = Output::new();
    output.flat().reserve_exact(capacity);
    keep_buffers(input, output);
}

#[test]
fn spare_buffers_used_last_are_used_first_and_there_are_not_more_than_enough() {
    forget_all();
    (1..BUFFERS_MAX + 10).for_each(keep);
    let taken: Vec<usize> = std::iter::from_fn(take_buffers)
        .map(|(_, output)| output.memory())
        .collect();
    let kept: Vec<usize> = (1..=BUFFERS_MAX).rev().collect();
    assert_eq!(taken, kept);
    keep(OUTPUT_MAX + 1);
    assert_eq!(lent(), 0, "they are larger than usual");
    (0..READERS_MAX + 10).for_each(|_| keep_reader(Box::default()));
    assert_eq!(std::iter::from_fn(take_reader).count(), READERS_MAX);
}

#[tokio::test]
async fn spare_buffers_of_an_idle_connection_are_lent_once_and_begin_empty() {
    forget_all();
    let (mut core, mut far) = connection();
    assert!(poll_begin(&mut core).is_pending());
    read(&mut core, &mut far, "GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(lent(), 0, "it took them back");
    assert!(matches!(core.read_head(LIMITS), Ok(Some(_))));
    core.output.flat().extend_from_slice(b"a response");
    assert!(poll_begin(&mut core).is_pending());
    assert_eq!(lent(), 0, "its response waits to be written");
    let flushed = core.poll_flush(&mut Context::from_waker(Waker::noop()));
    assert!(flushed.is_ready());
    assert!(poll_begin(&mut core).is_pending());
    // It rests.
    core.release();
    let (input, mut output) = take_buffers().expect("what it lent");
    assert!(input.is_empty() && output.is_done());
    assert_eq!(*output.flat(), b"");
    assert_eq!(lent(), 0, "once");
    assert!(take_reader().is_some());
}

#[tokio::test]
async fn spare_buffers_of_a_connection_that_is_closed_are_lent() {
    forget_all();
    let (mut core, far) = connection();
    keep(100);
    drop(far);
    std::future::poll_fn(|cx| core.poll_readable(cx)).await;
    assert!(matches!(poll_begin(&mut core), Poll::Ready(Ok(0))));
    assert_eq!(lent(), 1);
}

#[tokio::test]
async fn spare_buffers_are_not_lent_in_the_middle_of_a_head_nor_after_a_large_body() {
    forget_all();
    let (mut core, mut far) = connection();
    read(&mut core, &mut far, "PUT / HTTP/1.1\r\n").await;
    assert!(poll_begin(&mut core).is_pending());
    core.release();
    assert_eq!(lent(), 0, "part of a head is in them");
    read(&mut core, &mut far, "content-length: 60000\r\n\r\n").await;
    assert!(matches!(core.read_head(LIMITS), Ok(Some(_))));
    let number = core.begin(false, false);
    // What is known to come makes the buffer large.
    assert!(
        core.poll_frame(number, &mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    far.write_all(&[b'x'; 60_000]).await.expect("sent");
    while let Some(frame) = std::future::poll_fn(|cx| core.poll_frame(number, cx)).await {
        frame.expect("a piece");
    }
    assert!(poll_begin(&mut core).is_pending());
    assert_eq!(lent(), 0);
    core.release();
    assert_eq!(lent(), 0, "freed, not lent");
    assert!(core.input.has_no_memory());
}
