//! The other process of a handover, which is asked one question after another.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::message::Message;
use super::wire::Wire;

/// The other process, reached over the socket by a thread of its own.
#[derive(Debug)]
pub(super) struct Peer(mpsc::Sender<Job>);

/// A message, and where the response to it goes; `None`: there is none.
type Job = (Message, Option<oneshot::Sender<Option<Message>>>);

impl Peer {
    /// Starts the thread, under this name.
    pub(super) fn start(thread: &str, mut wire: Wire) -> io::Result<Self> {
        wire.patience(Some(ANSWER_WITHIN))?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let work = move || {
            let mut gone = false;
            for (message, reply) in queue {
                gone = gone || wire.send(&message).is_err();
                let Some(reply) = reply else { continue };
                let response = match gone {
                    true => None,
                    false => wire.receive().ok().flatten(),
                };
                gone = response.is_none();
                // The task that asked may have ended.
                let _ = reply.send(response);
            }
        };
        let thread = std::thread::Builder::new().name(thread.to_owned());
        thread.spawn(work)?;
        Ok(Self(jobs))
    }

    /// Sends a message at once; returns the response. `None`: the other process has ended.
    pub(super) fn ask(
        &self,
        message: Message,
    ) -> impl Future<Output = Option<Message>> + Send + use<> {
        let (reply, response) = oneshot::channel();
        let sent = self.0.send((message, Some(reply))).ok();
        async move {
            sent?;
            response.await.ok().flatten()
        }
    }

    /// Sends a message without a response.
    pub(super) fn tell(&self, message: Message) {
        // Otherwise the other process has ended, and its buckets are lost.
        let _ = self.0.send((message, None));
    }
}

/// The other process responds from memory, so this passes only if it is stopped or dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
