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

/// A message, and what takes its response; `None`: the message has no response.
type Job = (Message, Option<Reply>);

/// Takes a response (`None`: the other process has ended), and returns whether it belongs to the
/// question.
type Reply = Box<dyn FnOnce(Option<Message>) -> bool + Send>;

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
                // After a message that is no response to this question, a later response may be one
                // to an earlier question.
                gone = !reply(response);
            }
        };
        let thread = std::thread::Builder::new().name(thread.to_owned());
        thread.spawn(work)?;
        Ok(Self(jobs))
    }

    /// Sends a message at once; returns what `read` finds in the response. `None`: the other process
    /// has ended, or has sent a message that is no response to this one. It is asked no more then.
    pub(super) fn ask<T: Send + 'static, R: FnOnce(Message) -> Option<T> + Send + 'static>(
        &self,
        message: Message,
        read: R,
    ) -> impl Future<Output = Option<T>> + Send + use<T, R> {
        let (asker, response) = oneshot::channel();
        let reply = move |message: Option<Message>| {
            let found = message.and_then(read);
            let belongs = found.is_some();
            // The task that asked may have ended.
            let _ = asker.send(found);
            belongs
        };
        let sent = self.0.send((message, Some(Box::new(reply)))).ok();
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tollgate_gateway::decide::{Outcome, Predecessor, Told};

    use super::*;

    /// The other process sends two messages for each question, and the first is no response. The
    /// second one is not taken for the response to the next question.
    #[tokio::test]
    async fn handover_peer_that_sends_an_unexpected_message_is_asked_no_more() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let script = std::thread::spawn(move || {
            let mut wire = Wire::new(there);
            let mut asked = 0;
            while let Ok(Some(_)) = wire.receive() {
                asked += 1;
                for message in [Message::Ready, Message::Reported(Outcome::GivenBack)] {
                    wire.send(&message).expect("sent");
                }
            }
            asked
        });
        let peer = Peer::start("test", Wire::new(here)).expect("a thread");
        let told = || -> Told {
            let text = r#"{"give_back":{"permit":"p"}}"#;
            serde_json::from_str(text).expect("a report")
        };
        assert_eq!(peer.report(told()).await, None, "of another kind");
        assert_eq!(peer.report(told()).await, None, "it is gone");
        drop(peer);
        assert_eq!(script.join().expect("no panic"), 1);
    }
}
