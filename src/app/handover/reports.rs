//! Reports about requests that the process before this one admitted for other programs: they arrive
//! here, and it has the permits.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::message::Message;
use super::wire::Wire;
use tollgate_gateway::decide::{Outcome, Permits, Predecessor, Told};

/// Carries out reports that the process which has taken over passes on, until it ends.
pub(super) fn serve(mut wire: Wire, permits: Arc<Permits>) -> io::Result<()> {
    wire.patience(None)?;
    let serve = move || {
        while let Ok(Some(Message::Report(told))) = wire.receive() {
            let outcome = permits.carry_out(&told);
            if wire.send(&Message::Reported(outcome)).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("reports".to_owned());
    thread.spawn(serve).map(drop)
}

/// The process that has the permits, reached over the socket.
#[derive(Debug)]
pub(super) struct Remote(mpsc::Sender<Job>);

type Job = (Told, oneshot::Sender<Option<Outcome>>);

impl Remote {
    pub(super) fn start(mut wire: Wire) -> io::Result<Self> {
        wire.patience(Some(ANSWER_WITHIN))?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let ask = move || {
            let mut gone = false;
            for (told, reply) in queue {
                let outcome = (!gone).then(|| pass_on(&mut wire, told)).flatten();
                gone |= outcome.is_none();
                // The program may have left.
                let _ = reply.send(outcome);
            }
        };
        let thread = std::thread::Builder::new().name("reports".to_owned());
        thread.spawn(ask)?;
        Ok(Self(jobs))
    }
}

impl Predecessor for Remote {
    fn report(&self, told: Told) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>> {
        let (reply, outcome) = oneshot::channel();
        let sent = self.0.send((told, reply));
        Box::pin(async move {
            sent.ok()?;
            outcome.await.ok().flatten()
        })
    }
}

fn pass_on(wire: &mut Wire, told: Told) -> Option<Outcome> {
    wire.send(&Message::Report(told)).ok()?;
    let reported = |message| match message {
        Message::Reported(outcome) => Ok(outcome),
        other => Err(other),
    };
    wire.expect(reported).ok().flatten()
}

/// The other process responds from memory, so this passes only if it is stopped or dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
