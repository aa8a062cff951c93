//! After a 101: bytes both ways until one side ends, or nothing moves for too long.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::{Slot, Stream};
use crate::limit::Micros;
use crate::proxy::server::Hold;
use crate::proxy::timers;

/// An upgraded connection that is to be carried on, by [`Tunnel::run`].
#[derive(Debug)]
pub struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) upstream: Stream,
    /// What the upstream sent right behind its 101.
    pub(super) early: Bytes,
    pub(super) idle: Micros,
    pub(super) slot: Slot,
    /// What the client's HTTP/2 connection has under way meanwhile.
    pub(super) hold: Option<Hold>,
}

/// What went through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes from the client.
    pub up: u64,
    /// Bytes from the upstream.
    pub down: u64,
}

impl Tunnel {
    /// Carries bytes both ways until both sides have ended, one fails, or nothing moves for the idle timeout.
    /// Runs as a task of its own: the response has been sent by then.
    pub async fn run(self) -> Carried {
        let _kept = (self.slot, self.hold);
        let Ok(upgraded) = self.client.await else { return Carried::default() };
        let client = Watched::new(TokioIo::new(upgraded));
        let upstream = Watched::new(self.upstream);
        let (up, down) = (Rc::clone(&client.bytes), Rc::clone(&upstream.bytes));
        let carried = || Carried { up: up.get(), down: down.get() };
        down.set(self.early.len() as u64);
        let carry = carry(client, upstream, self.early);
        let mut carry = std::pin::pin!(carry);
        loop {
            let before = carried();
            if self.idle == Micros::ZERO {
                let _ = carry.as_mut().await;
                return carried();
            }
            match timers::within(self.idle.into(), carry.as_mut()).await {
                Ok(_) => return carried(),
                Err(_) if carried() == before => return before,
                Err(_) => {}
            }
        }
    }
}

async fn carry<C, U>(mut client: C, mut upstream: U, early: Bytes) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    if !early.is_empty() {
        client.write_all(&early).await?;
        client.flush().await?;
    }
    tokio::io::copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}

/// Counts what is read.
struct Watched<S> {
    stream: S,
    bytes: Rc<Cell<u64>>,
}

impl<S> Watched<S> {
    fn new(stream: S) -> Self {
        Self { stream, bytes: Rc::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.bytes.set(this.bytes.get() + (buf.filled().len() - before) as u64);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
