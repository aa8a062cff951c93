//! The other process of a handover, which is asked one question after another.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::message::Message;
use super::wire::{Wire, is_gone};

/// The other process, reached over the socket by a thread of its own. Clones share the thread.
#[derive(Clone, Debug)]
pub(super) struct Peer(mpsc::Sender<Job>);

/// A message, and what takes its response; `None`: the message has no response.
type Job = (Message, Option<Reply>);

/// Takes a response, or why there is none, and returns whether it belongs to the question.
type Reply = Box<dyn FnOnce(Result<Message, Unanswered>) -> bool + Send>;

/// The reason why a question has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The other process lives, as far as is known, and does not respond.
    Silent,
    /// The other process has ended.
    Ended,
}

/// The other process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Other {
    /// It has taken the buckets over.
    New,
    /// It has the permits that it opened.
    Old,
}

/// The messages that can still be exchanged with the other process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Responds,
    /// It is asked no more: a response that comes now may be one to an earlier question. It still
    /// reads messages that have no response.
    Silent,
    /// A message was sent in part, so that no other one can follow.
    Cut,
    Ended,
}

impl Peer {
    /// Starts the thread.
    ///
    /// The socket stays open as long as the thread, even if nothing more is sent: its end tells the
    /// other process that this one has ended, and that the places of its requests are free.
    pub(super) fn start(other: Other, mut wire: Wire) -> io::Result<Self> {
        wire.patience(Some(ANSWER_WITHIN))?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let work = move || {
            let mut state = State::Responds;
            for job in queue {
                let after = state.after(&mut wire, job);
                if after != state {
                    after.log(other);
                }
                state = after;
            }
        };
        let thread = match other {
            Other::New => "relay",
            Other::Old => "reports",
        };
        let thread = std::thread::Builder::new().name(thread.to_owned());
        thread.spawn(work)?;
        Ok(Self(jobs))
    }

    /// Sends a message at once; returns what `read` finds in the response.
    ///
    /// # Errors
    /// The other process has ended; or it has not responded in time, or with a message that is no
    /// response to this one. It is asked no more then.
    pub(super) fn ask<T: Send + 'static, R: FnOnce(Message) -> Option<T> + Send + 'static>(
        &self,
        message: Message,
        read: R,
    ) -> impl Future<Output = Result<T, Unanswered>> + Send + use<T, R> {
        let (asker, response) = oneshot::channel();
        let reply = move |response: Result<Message, Unanswered>| {
            let found = response.and_then(|message| read(message).ok_or(Unanswered::Silent));
            let belongs = found.is_ok();
            // The task that asked may have ended.
            let _ = asker.send(found);
            belongs
        };
        // The thread ends when the last clone is dropped, and not before.
        let sent = self.0.send((message, Some(Box::new(reply))));
        async move {
            sent.map_err(|_| Unanswered::Silent)?;
            response.await.unwrap_or(Err(Unanswered::Silent))
        }
    }

    /// Sends a message without a response.
    pub(super) fn tell(&self, message: Message) {
        // Otherwise the other process has ended, and its buckets are lost.
        let _ = self.0.send((message, None));
    }
}

impl State {
    /// Logs that less can be exchanged than before.
    fn log(self, other: Other) {
        match (self, other) {
            (Self::Silent | Self::Cut, Other::New) => tracing::error!(
                "the new process does not respond: requests on the connections of this one are refused (503) until it has ended, unless their limits only count"
            ),
            (Self::Ended, Other::New) => tracing::error!(
                "the new process has ended: this one decides by its own copy of the buckets"
            ),
            (Self::Silent | Self::Cut, Other::Old) => tracing::error!(
                "the gateway before this one does not respond: reports for its permits are lost"
            ),
            // Its end is expected, and the relay logs it.
            (Self::Ended, Other::Old) | (Self::Responds, _) => {}
        }
    }

    /// Sends a message, and waits for its response.
    fn after(mut self, wire: &mut Wire, (message, reply): Job) -> Self {
        // Nothing is received any more, so its end is looked for.
        if matches!(self, Self::Silent | Self::Cut) && wire.has_ended() {
            self = Self::Ended;
        }
        let is_sent = match (&self, &reply) {
            (Self::Responds, _) | (Self::Silent, None) => true,
            (Self::Silent, Some(_)) | (Self::Cut | Self::Ended, _) => false,
        };
        let state = match is_sent.then(|| wire.send(&message)) {
            Some(Err(error)) if is_gone(&error) => Self::Ended,
            Some(Err(_)) => Self::Cut,
            Some(Ok(())) | None => self,
        };
        let Some(reply) = reply else { return state };
        let response = match state {
            Self::Responds => wire.receive(),
            Self::Ended => Ok(None),
            Self::Silent | Self::Cut => Err(io::ErrorKind::TimedOut.into()),
        };
        let response = match response {
            Ok(response) => response.ok_or(Unanswered::Ended),
            Err(_) => Err(Unanswered::Silent),
        };
        let ended = response == Err(Unanswered::Ended);
        match (reply(response), state) {
            (true, state) => state,
            (false, _) if ended => Self::Ended,
            (false, Self::Responds) => Self::Silent,
            (false, state) => state,
        }
    }
}

/// The other process responds from memory, so this passes only if it is stopped or dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tollgate_gateway::decide::{Outcome, Told};

    use super::*;

    fn told() -> Message {
        let text = r#"{"give_back":{"permit":"p"}}"#;
        let told: Told = serde_json::from_str(text).expect("a report");
        Message::Report(told)
    }

    fn outcome(message: Message) -> Option<Outcome> {
        match message {
            Message::Reported(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The other process sends two messages for each question, and the first is no response. The
    /// second one is not taken for the response to the next question. It learns what needs no
    /// response, such as the ends of requests whose places it counts.
    #[tokio::test]
    async fn handover_peer_that_sends_an_unexpected_message_is_asked_no_more_but_told() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let script = std::thread::spawn(move || {
            let mut wire = Wire::new(there);
            let mut received = Vec::new();
            while let Ok(Some(message)) = wire.receive() {
                if message == told() {
                    for message in [Message::Ready, Message::Reported(Outcome::GivenBack)] {
                        wire.send(&message).expect("sent");
                    }
                }
                received.push(message);
            }
            received
        });
        let peer = Peer::start(Other::Old, Wire::new(here)).expect("a thread");
        for _ in 0..2 {
            assert_eq!(peer.ask(told(), outcome).await, Err(Unanswered::Silent));
        }
        peer.tell(Message::Go);
        drop(peer);
        assert_eq!(script.join().expect("no panic"), [told(), Message::Go]);
    }

    #[tokio::test]
    async fn handover_peer_whose_process_ends_is_told_from_one_that_is_silent() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let peer = Peer::start(Other::Old, Wire::new(here)).expect("a thread");
        drop(there);
        for _ in 0..2 {
            assert_eq!(peer.ask(told(), outcome).await, Err(Unanswered::Ended));
        }
    }

    /// The other process reads a question and says nothing, then sends something late, and ends. No
    /// message without a response is sent that would find out.
    #[tokio::test]
    async fn handover_peer_that_ends_after_it_was_silent_is_known_to_have_ended() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let mut other = Wire::new(there);
        let peer = Peer::start(Other::Old, Wire::new(here)).expect("a thread");
        other.send(&Message::Ready).expect("sent");
        assert_eq!(peer.ask(told(), outcome).await, Err(Unanswered::Silent));
        assert_eq!(peer.ask(told(), outcome).await, Err(Unanswered::Silent));
        let late = Message::Reported(Outcome::GivenBack);
        other.send(&late).expect("sent");
        drop(other);
        for _ in 0..2 {
            assert_eq!(peer.ask(told(), outcome).await, Err(Unanswered::Ended));
        }
    }

    /// A message that was sent in part is followed by no other, and its end is seen all the same.
    #[tokio::test]
    async fn handover_peer_that_ends_after_a_message_was_cut_is_known_to_have_ended() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let mut wire = Wire::new(here);
        let ask = |state: State, wire: &mut Wire| {
            let (said, why) = mpsc::channel();
            let reply: Reply = Box::new(move |response| {
                said.send(response).expect("it is waited for");
                false
            });
            let state = state.after(wire, (told(), Some(reply)));
            (state, why.recv().expect("a reply"))
        };
        let (state, why) = ask(State::Cut, &mut wire);
        assert_eq!(why, Err(Unanswered::Silent));
        drop(there);
        let (state, why) = ask(state, &mut wire);
        assert_eq!(why, Err(Unanswered::Ended));
        assert!(matches!(state, State::Ended));
    }
}
