//! Buffers that take and give a few bytes at a time.

use std::collections::VecDeque;
use std::task::Waker;

use tollgate_http1::output::COPIED;

use super::*;

/// Takes a few bytes at a time, and sometimes none.
struct Slow(Vec<u8>, fastrand::Rng);

impl AsyncWrite for Slow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.as_mut().poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        assert!(
            slices.iter().all(|slice| !slice.is_empty()),
            "no slice is empty"
        );
        if self.1.u8(..4) == 0 {
            return Poll::Pending;
        }
        let all: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        let some = self.1.usize(1..=all.len());
        self.0.extend_from_slice(&all[..some]);
        Poll::Ready(Ok(some))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn output_arrives_in_order_for_any_write_size() {
    let mut dice = fastrand::Rng::with_seed(6);
    for round in 0..300 {
        let (mut buffer, mut expected) = (Output::new(), Vec::new());
        let mut socket = Slow(Vec::new(), dice.fork());
        let mut cx = Context::from_waker(Waker::noop());
        buffer.begin(false);
        for _ in 0..dice.usize(0..60) {
            let length = if dice.bool() {
                dice.usize(1..40)
            } else {
                dice.usize(1..3 * COPIED)
            };
            let bytes: Vec<u8> = (0..length).map(|_| dice.u8(..)).collect();
            expected.extend_from_slice(&bytes);
            if dice.bool() {
                buffer.push(bytes.into());
            } else {
                buffer.flat().extend_from_slice(&bytes);
            }
            if dice.u8(..3) == 0 {
                let _ = poll_flush(&mut buffer, &mut cx, &mut socket);
            }
            assert_eq!(buffer.left(), expected.len() - socket.0.len());
        }
        while poll_flush(&mut buffer, &mut cx, &mut socket).is_pending() {}
        assert!(buffer.is_done() && socket.0 == expected, "round {round}");
    }
}

#[test]
fn output_kept_can_be_written_again() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut socket = Slow(Vec::new(), fastrand::Rng::with_seed(1));
    let mut buffer = Output::new();
    for (kept, length, again) in [
        (true, 9, true),
        (false, 9, false),
        (true, COPIED + 1, false),
    ] {
        buffer.begin(kept);
        buffer.flat().extend_from_slice(b"head");
        buffer.push(vec![b'x'; length].into());
        socket.0.clear();
        assert_eq!(buffer.rewind(), again, "{length}");
        while poll_flush(&mut buffer, &mut cx, &mut socket).is_pending() {}
        if again {
            assert!(buffer.rewind());
            while poll_flush(&mut buffer, &mut cx, &mut socket).is_pending() {}
            assert_eq!(socket.0, b"headxxxxxxxxxheadxxxxxxxxx");
        }
    }
}

#[test]
fn buffer_shared_memory_is_never_overwritten_while_in_use() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut buffers = [ReadBuffer::shared(), ReadBuffer::shared()];
    let mut kept = VecDeque::new();
    let mut dice = fastrand::Rng::with_seed(5);
    for round in 0..200 {
        let text = vec![dice.u8(..); dice.usize(1..20_000)];
        let buffer = &mut buffers[dice.usize(..2)];
        let mut socket = &text[..];
        while !socket.is_empty() {
            assert!(matches!(
                buffer.poll_fill(&mut cx, &mut socket, 0),
                Poll::Ready(Ok(_))
            ));
        }
        let all = buffer.len();
        kept.push_back((buffer.bytes().split_to(all).freeze(), text));
        buffer.lend();
        assert_eq!(buffer.bytes.capacity(), 0);
        if dice.bool() {
            kept.drain(..dice.usize(..=kept.len()));
        }
        assert!(
            kept.iter().all(|(bytes, text)| bytes == text),
            "round {round}"
        );
    }
    let place = |buffer: &mut ReadBuffer| {
        let mut socket = &b"x"[..];
        assert!(
            buffer
                .poll_fill(&mut Context::from_waker(Waker::noop()), &mut socket, 0)
                .is_ready()
        );
        let place = buffer.bytes.as_ptr().addr();
        buffer.bytes.clear();
        buffer.lend();
        place
    };
    let [one, other] = &mut buffers;
    kept.clear();
    assert_eq!(place(one), place(other));
    one.release();
    assert_eq!(SPARE.take().capacity(), 0, "given back");
}

#[test]
fn buffer_reuses_its_room_and_grows_with_input() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut buffer = ReadBuffer::new();
    let text = [b'x'; 300];
    let mut at = None;
    for _ in 0..100 {
        let mut socket = &text[..];
        assert!(matches!(
            buffer.poll_fill(&mut cx, &mut socket, 0),
            Poll::Ready(Ok(300))
        ));
        let slice = buffer.bytes().split_to(300).freeze();
        let place = slice.as_ptr().addr();
        let first = *at.get_or_insert(place);
        assert!(
            (first..first + LEAST_ROOM).contains(&place),
            "the same memory"
        );
    }
    let much = vec![b'y'; 4 * MOST_ROOM];
    let mut socket = &much[..];
    let mut reads = 0;
    while !socket.is_empty() {
        assert!(matches!(
            buffer.poll_fill(&mut cx, &mut socket, 0),
            Poll::Ready(Ok(_))
        ));
        buffer.bytes().clear();
        reads += 1;
    }
    assert!(reads <= 7, "{reads} reads");
    let mut socket = &much[..50_000];
    assert!(
        matches!(
            buffer.poll_fill(&mut cx, &mut socket, 50_000),
            Poll::Ready(Ok(50_000))
        ),
        "what is known to come"
    );
    buffer.bytes().clear();
    buffer.release();
    assert_eq!(buffer.bytes().capacity(), 0);
}
