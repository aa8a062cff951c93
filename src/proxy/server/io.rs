//! The socket under a connection: plain or encrypted, TCP or Unix, with the bytes that were read ahead.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_rustls::server::TlsStream;

use super::bounds::Place;
use super::frames::{Frames, Told};
use super::respond;
use super::socket::Socket;
use super::state::State;
use super::window::Window;

/// A plain socket.
#[derive(Debug)]
pub(super) enum Plain {
    Tcp(Socket),
    Unix(UnixStream),
}

impl Plain {
    /// What is there already of a connection just accepted.
    pub(super) fn first(&self) -> Option<Bytes> {
        match self {
            Self::Tcp(socket) => socket.first(),
            Self::Unix(_) => None,
        }
    }

    /// Waits until there is something to read, without reading it. An error is something to read, too.
    pub(super) async fn readable(&mut self) {
        match self {
            Self::Tcp(socket) => socket.readable().await,
            Self::Unix(stream) => _ = stream.readable().await,
        }
    }

    /// As `poll_read`, for a caller that waits for its answer: that it hangs up may be seen a little later.
    fn poll_watch(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_watch(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }

    /// Writes `bytes` if the socket takes them at once, then closes. What the peer already sent is read first, since
    /// closing over unread bytes would reset the connection and take the words back.
    pub(super) fn dismiss(self, bytes: &[u8]) {
        match self {
            Self::Tcp(socket) => socket.dismiss(bytes),
            Self::Unix(stream) => {
                let _ = stream.try_read(&mut [0; 4096]);
                let _ = stream.try_write(bytes);
            }
        }
    }
}

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Plain {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // sockets have nothing to flush
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What a connection is spoken over.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(Plain),
    Tls(Box<TlsStream<Plain>>),
}

/// A transport that tells [`State`] what it does.
#[derive(Debug)]
pub(super) struct Io {
    transport: Transport,
    /// Bytes read ahead while the protocol was made out.
    ahead: Bytes,
    state: Arc<State>,
    /// Held as long as the socket is, through an upgrade too.
    place: Place,
    /// HTTP/2: the frames.
    frames: Option<Box<Followed>>,
    /// The last read brought bytes, and none was asked for since: nobody waits for the socket.
    unheeded: bool,
}

/// The frames of an HTTP/2 connection, both ways.
#[derive(Debug)]
struct Followed {
    sent: Frames,
    came: Frames,
    window: Window,
}

impl Io {
    /// `window`: HTTP/2 is spoken, and this is told what its caller may still send.
    pub(super) fn new(
        transport: Transport,
        ahead: Bytes,
        state: Arc<State>,
        place: Place,
        window: Option<Window>,
    ) -> Self {
        let frames =
            window.map(|window| Box::new(Followed { sent: Frames::default(), came: Frames::of_caller(), window }));
        Self { transport, ahead, state, place, frames, unheeded: false }
    }

    /// Writes `bytes` if the socket takes them at once, then closes.
    pub(super) fn dismiss(mut self, bytes: &[u8]) {
        match self.transport {
            Transport::Plain(plain) => plain.dismiss(bytes),
            Transport::Tls(ref mut stream) => {
                let mut context = Context::from_waker(std::task::Waker::noop());
                let _ = Pin::new(&mut **stream).poll_write(&mut context, bytes);
                let _ = Pin::new(&mut **stream).poll_shutdown(&mut context);
            }
        }
    }

    /// Waits until there is something to read, without reading it.
    pub(super) async fn readable(&mut self) {
        match &mut self.transport {
            Transport::Plain(plain) => plain.readable().await,
            Transport::Tls(stream) => stream.get_mut().0.readable().await,
        }
    }

    /// Whether bytes are there that were read before and are to be read again.
    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Has `bytes`, which were read from it before, read again first.
    pub(super) fn unread(&mut self, bytes: &[u8]) {
        debug_assert!(self.ahead.is_empty(), "what was read ahead has been taken up");
        self.ahead = Bytes::copy_from_slice(bytes);
    }

    /// Says that we are done, then reads and forgets what the caller still sends, until it ends or `most` bytes came:
    /// closing over unread bytes would reset the connection, and the reset could overtake our last answer.
    pub(super) async fn linger(mut self, most: usize) {
        let _ = std::future::poll_fn(|cx| self.poll_shutdown_transport(cx)).await;
        let mut scratch = vec![0; 4096]; // not part of the task, whose size every idle connection pays
        let mut read = 0;
        while read < most {
            match AsyncReadExt::read(&mut self, &mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(length) => read += length,
            }
        }
    }

    /// Whether the caller of a request under way has gone, where nobody but us would see it: with more requests of its
    /// caller at hand the library reads no further, and so never comes to the end.
    fn is_forsaken(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.unheeded || self.frames.is_some() || !self.state.is_busy() {
            return false;
        }
        let plain = match &mut self.transport {
            Transport::Plain(plain) => plain,
            // An end in good order is bytes here, which only the session could read: it is seen when they are.
            Transport::Tls(stream) => stream.get_mut().0,
        };
        let Plain::Tcp(stream) = plain else { return false };
        let mut byte = [0];
        matches!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)), Poll::Ready(Ok(0) | Err(_)))
    }

    /// Follows what of `slices` went out.
    fn follow(&mut self, slices: &[io::IoSlice<'_>], result: &Poll<io::Result<usize>>) {
        let (Some(frames), Poll::Ready(Ok(written))) = (&mut self.frames, result) else { return };
        let mut left = *written;
        for slice in slices {
            let taken = left.min(slice.len());
            frames.sent.follow(&slice[..taken], |told| match told {
                Told::Refused(code) => self.place.shared().stats.http2_error(code),
                Told::Granted(bytes) => frames.window.granted(bytes),
                Told::Took(_) => {}
            });
            left -= taken;
        }
    }

    /// Follows what came in.
    fn heed(&mut self, bytes: &[u8]) {
        let Some(frames) = &mut self.frames else { return };
        frames.came.follow(bytes, |told| {
            if let Told::Took(bytes) = told {
                frames.window.took(bytes);
            }
        });
    }

    fn note(&self, result: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(written)) => self.state.wrote(*written >= length),
            Poll::Ready(Err(_)) => self.state.wrote(true),
            Poll::Pending => self.state.stall(),
        }
        result
    }

    fn poll_transport(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(plain) => Pin::new(plain).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_shutdown_transport(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }

    /// Writes the interim answers that wait, all of them or until the socket takes no more.
    #[cold]
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut interim = self.state.take_interim();
        while !interim.is_empty() {
            match self.poll_transport(cx, &interim) {
                Poll::Ready(Ok(written)) => {
                    interim.drain(..written);
                    self.state.wrote(false);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.state.keep_interim(interim);
                    self.state.stall();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// What goes out in place of an answer that the protocol library gives by itself, without a body.
    fn instead(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.state.unasked() { respond::with_body(bytes) } else { None }
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.has_remaining() {
            self.unheeded = true;
            let length = self.ahead.len().min(buf.remaining());
            let ahead = self.ahead.split_to(length);
            self.heed(&ahead);
            buf.put_slice(&ahead);
            if self.ahead.is_empty() {
                self.ahead = Bytes::new(); // gives the buffer back
            }
            self.state.read();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        // While an answer is made, nothing but the caller's end is to be read.
        let watches = self.frames.is_none() && self.state.is_busy() && !self.state.may_be_sending();
        let result = match &mut self.transport {
            Transport::Plain(plain) if watches => plain.poll_watch(cx, buf),
            Transport::Plain(plain) => Pin::new(plain).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        };
        self.unheeded = buf.filled().len() > before;
        if self.unheeded {
            self.heed(&buf.filled()[before..]);
            self.state.read();
        } else if result.is_ready() {
            self.state.end();
        } else {
            self.state.dry();
        }
        result
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.state.interjects() {
            std::task::ready!(self.poll_interim(cx))?;
        }
        if let Some(answer) = self.instead(bytes) {
            // A few hundred bytes on a connection that ends here: if the socket takes only some, so be it.
            return self.poll_transport(cx, &answer).map_ok(|_| bytes.len());
        }
        let result = self.poll_transport(cx, bytes);
        self.follow(&[io::IoSlice::new(bytes)], &result);
        self.note(result, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.state.interjects() {
            std::task::ready!(self.poll_interim(cx))?;
        }
        let length = slices.iter().map(|slice| slice.len()).sum();
        if let [slice] = slices {
            return self.poll_write(cx, slice);
        }
        let result = match &mut self.transport {
            Transport::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, slices),
            Transport::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        };
        self.follow(slices, &result);
        self.note(result, length)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(plain) => plain.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_forsaken(cx) {
            self.state.end();
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.state.interjects() {
            std::task::ready!(self.poll_interim(cx))?;
        }
        match &mut self.transport {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            Transport::Tls(stream) => {
                let result = Pin::new(&mut **stream).poll_flush(cx);
                if result.is_pending() {
                    self.state.stall();
                }
                result
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever has sent all that he will is not listened to any more: the socket is closed right after this, which
        // ends it just as well.
        // The ends of a tunnel do so one after the other.
        let closes_next = matches!(self.transport, Transport::Plain(_)) && !self.state.may_be_sending();
        if self.state.asking() || (closes_next && !self.state.is_let_go()) {
            return Poll::Ready(Ok(()));
        }
        self.poll_shutdown_transport(cx)
    }
}
