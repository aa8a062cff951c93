//! Sends messages and descriptors over a socket between two processes.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::message::Message;

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Wire(UnixStream);

impl Wire {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    pub(super) fn again(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Sets how long one reply may take; `None`: no timeout.
    pub(super) fn patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(patience)?;
        self.0.set_write_timeout(patience)
    }

    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let length =
            u32::try_from(text.len()).map_err(|_| invalid("a message of no sensible length"))?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(text);
        self.0.write_all(&bytes)
    }

    /// Receives the next message; `None`: the other process has ended.
    pub(super) fn receive(&mut self) -> io::Result<Option<Message>> {
        let mut length = [0; 4];
        match self.0.read_exact(&mut length) {
            Err(error) if is_gone(&error) => return Ok(None),
            read => read?,
        }
        let length = u32::from_le_bytes(length);
        if length > MESSAGE_MAX {
            return Err(invalid("a message of no sensible length"));
        }
        let mut text = vec![0; length as usize];
        match self.0.read_exact(&mut text) {
            Err(error) if is_gone(&error) => return Ok(None),
            read => read?,
        }
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Waits for the end of the other process, whatever it still sends.
    pub(super) fn wait_for_end(&mut self) {
        // An error is an end, too.
        let _ = io::copy(&mut self.0, &mut io::sink());
    }

    /// Receives the message that `wanted` accepts; `None`: the other process has ended.
    pub(super) fn expect<T>(
        &mut self,
        wanted: impl FnOnce(Message) -> Result<T, Message>,
    ) -> io::Result<Option<T>> {
        let Some(message) = self.receive()? else {
            return Ok(None);
        };
        wanted(message)
            .map(Some)
            .map_err(|other| invalid(&format!("`{}` was not due", other.label())))
    }

    /// The same for a message that has no contents.
    pub(super) fn expect_sign(&mut self, sign: &Message) -> io::Result<Option<()>> {
        self.expect(|message| (message == *sign).then_some(()).ok_or(message))
    }

    /// Sends descriptors; the other side knows their number.
    pub(super) fn send_descriptors(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(AT_ONCE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(some)) {
                return Err(invalid("no space for the descriptors"));
            }
            // Descriptors are sent along with a byte.
            sendmsg(&self.0, &[IoSlice::new(b"d")], &mut control, SEND_FLAGS)?;
        }
        Ok(())
    }

    pub(super) fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let got = recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut byte)],
                &mut control,
                RECEIVE_FLAGS,
            )?;
            let before = taken.len();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    taken.extend(descriptors);
                }
            }
            if got.bytes == 0 || taken.len() == before {
                return Err(invalid("descriptors were due, and none came"));
            }
        }
        Ok(taken)
    }
}

/// Whether the other process has ended.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn invalid(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words.to_owned())
}

/// A peer that has gone is an error, and no signal; descriptors are not for programs started later.
#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_os = "linux")]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();
#[cfg(not(target_os = "linux"))]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::empty();
/// The largest message: both processes are ours, so this only prevents a bug from taking all memory.
const MESSAGE_MAX: u32 = 64 << 20;
/// Linux passes at most 253 at once.
const AT_ONCE: usize = 128;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::Wire;
    use crate::app::handover::message::{Hello, Message, VERSION};

    #[test]
    fn handover_messages_and_descriptors_arrive_in_order() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let (mut here, mut there) = (Wire::new(here), Wire::new(there));
        let pairs: Vec<_> = (0..300)
            .map(|_| UnixStream::pair().expect("a pair"))
            .collect();
        let descriptors: Vec<_> = pairs.iter().map(|(one, _)| one.as_fd()).collect();
        let hello = || {
            Message::Hello(Hello {
                version: VERSION,
                listeners: Vec::new(),
                names: [7; 16],
            })
        };
        here.send(&hello()).expect("sent");
        here.send_descriptors(&descriptors).expect("sent");
        here.send(&Message::Ready).expect("sent");
        assert_eq!(there.receive().expect("good"), Some(hello()));
        let taken = there.receive_descriptors(300).expect("taken");
        // They are the same sockets, in the same order.
        let mut last = UnixStream::from(taken.into_iter().next_back().expect("300"));
        last.write_all(b"x").expect("written");
        let mut byte = [0];
        (&pairs[299].1).read_exact(&mut byte).expect("read");
        assert_eq!(byte, *b"x");
        let go = |message| match message {
            Message::Go => Ok(()),
            other => Err(other),
        };
        assert!(there.expect(go).is_err(), "another message than was due");
        drop(here);
        assert!(there.receive().expect("an end is no error").is_none());
    }
}
