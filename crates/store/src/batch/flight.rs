//! Sends calls, and waits for their responses while requests wait.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;

use super::assemble::{Flight, assemble};
use super::deliver::{deliver, fail};
use super::shared::Work;
use super::{Answer, Ask, Correction, Link, Shared, Trouble, each};
use crate::StoreError;
use tollgate_limit::Timestamp;

/// When a call left, by both of our clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) clock: Timestamp,
    pub(super) boot: Timestamp,
}

/// A call whose response is not delivered yet.
#[must_use = "a request waits for the decision"]
pub(super) struct Landed {
    flight: Flight,
    answer: Answer,
    sent: Sent,
}

impl Landed {
    /// Delivers the results.
    pub(super) fn deliver(self, shared: &Shared) -> Result<(), Trouble> {
        deliver(shared, self.flight, self.answer, self.sent)
    }
}

/// Why a call brought no result, and its corrections that were certainly not made.
type Grounded = (Trouble, Vec<Correction>);

/// The outcome of calls that were sent together.
#[must_use = "requests wait for the decisions"]
pub(super) struct Flown {
    landed: Vec<Landed>,
    pub(super) failed: Vec<Grounded>,
}

impl Flown {
    /// Queues corrections again that were not made and still can be, and counts the others as
    /// dropped.
    pub(super) fn settle(mut self, shared: &Shared) -> (Vec<Landed>, Result<(), Trouble>) {
        for (trouble, undone) in &mut self.failed {
            let undone = std::mem::take(undone);
            match trouble {
                // Another connection can make them.
                Trouble::Unfit(_) | Trouble::Lost(_) | Trouble::Astray(_) => {
                    shared.correct_again(undone);
                }
                Trouble::Late => shared.correct_later(undone),
                // Their buckets are on a server that is not known yet.
                Trouble::Moved(_) => shared.correct_elsewhere(undone),
                Trouble::Refused(_) | Trouble::Corrupt(_) => {
                    shared.drop_corrections(undone.len(), "the store refused them");
                }
            }
        }
        self.into_outcome()
    }

    /// The calls that have a response, and what the others say about the server.
    pub(super) fn into_outcome(self) -> (Vec<Landed>, Result<(), Trouble>) {
        let (mut outcome, mut late) = (Ok(()), false);
        for (trouble, _) in self.failed {
            match trouble {
                Trouble::Late => late = true,
                Trouble::Moved(_) | Trouble::Astray(_) => {}
                trouble => outcome = Err(trouble),
            }
        }
        // A server that has responded to some of the calls is alive.
        if late && outcome.is_ok() && self.landed.is_empty() {
            outcome = Err(Trouble::Late);
        }
        (self.landed, outcome)
    }
}

/// Calls that are sent together: as many as there are parts (one, outside a cluster).
#[must_use = "a request waits for the decision"]
pub(super) struct Departing(Vec<Flight>);

impl Departing {
    pub(super) fn of<L: Link>(shared: &Shared, link: &L, work: Work) -> Self {
        Self(assemble(shared, link, work))
    }

    /// The call whose corrections the store may have made, if it is time to send it again.
    pub(super) fn again(shared: &Shared) -> Option<Self> {
        let batch = shared.take_unknown()?;
        Some(Self(vec![Flight::again(batch)]))
    }

    /// The next call, or calls.
    pub(super) fn next<L: Link>(shared: &Shared, link: &L) -> Option<Self> {
        Self::again(shared).or_else(|| Some(Self::of(shared, link, shared.take()?)))
    }

    /// Sends all calls at once. [`Flown::settle`] sees to the corrections that were not made.
    pub(super) async fn fly<L: Link>(
        self,
        shared: &Shared,
        link: &L,
        connection: &L::Connection,
    ) -> Flown {
        let mut flown = Flown {
            landed: Vec::with_capacity(self.0.len()),
            failed: Vec::new(),
        };
        let calls = self.0.into_iter();
        let calls = calls.map(|flight| fly(shared, link, connection, flight, None));
        each(calls, |ended| match ended {
            Ok(landed) => flown.landed.push(landed),
            Err(failed) => flown.failed.push(failed),
        })
        .await;
        flown
    }
}

/// Makes the call of a single request; returns whether the connection is still good.
pub(crate) async fn fly_alone<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    ask: Ask,
) -> bool {
    let until = ask.deadline;
    let work = Work {
        asks: vec![ask],
        ..Work::default()
    };
    let mut flights = assemble(shared, link, work);
    match flights.pop() {
        Some(flight) => {
            shared.counters.own_calls.fetch_add(1, Ordering::Relaxed);
            let landed = fly(shared, link, connection, flight, Some(until)).await;
            let fine = landed.is_ok_and(|landed| landed.deliver(shared).is_ok());
            if !fine {
                // The breaker counts the lane's calls, so the following requests use the lane until
                // one of its calls gets a response.
                shared.suspect.store(true, Ordering::Release);
            }
            fine
        }
        None => true,
    }
}

/// One call. `until`: when it is late; `None`: when the server has had the whole time for it. Most
/// requests have as much time; a request with less must not make the server seem late.
async fn fly<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    mut flight: Flight,
    until: Option<Timestamp>,
) -> Result<Landed, Grounded> {
    let sent = Sent {
        clock: shared.clock.now(),
        boot: shared.clock.boot(),
    };
    shared.counters.calls.fetch_add(1, Ordering::Relaxed);
    let mut batch = std::mem::take(&mut flight.batch);
    let corrects = !batch.corrections.is_empty();
    if corrects && batch.receipt.number == 0 && link.keeps_receipts() {
        batch.receipt.number = shared.next_receipt();
    }
    let late = until.unwrap_or_else(|| sent.clock.after(shared.answer_within));
    let call = link.call(connection, &batch);
    let answered = call_until_late(shared, &mut flight, call, late).await;
    flight.batch = batch;
    match answered {
        Ok(answer) => {
            if corrects {
                shared.corrections_landed();
            }
            if let Some(leases) = &shared.leases {
                leases.returned(std::mem::take(&mut flight.returned));
            }
            Ok(Landed {
                flight,
                answer,
                sent,
            })
        }
        Err(trouble) => {
            if let Some(leases) = &shared.leases {
                leases.again(std::mem::take(&mut flight.returned));
            }
            let told = StoreError::from(&trouble);
            for ask in flight.take_asks() {
                fail(shared, ask, told.clone());
            }
            let undone = shared.undone(flight.batch, &trouble);
            Err((trouble, undone))
        }
    }
}

/// Waits for the call until `late`, and as long as a request has time left; each request whose
/// deadline passes gets its timeout.
async fn call_until_late(
    shared: &Shared,
    flight: &mut Flight,
    call: impl Future<Output = Result<Answer, Trouble>>,
    late: Timestamp,
) -> Result<Answer, Trouble> {
    let mut call = pin!(call);
    let mut hurried = pin!(shared.hurried.notified());
    loop {
        // Before the queue is read: a request that queues afterwards is noticed.
        hurried.as_mut().enable();
        let now = shared.clock.now();
        let mut next = (late > now).then_some(late);
        let asks = flight
            .members
            .iter_mut()
            .flatten()
            .chain(flight.peeks.iter_mut().map(|(ask, _)| ask));
        for ask in asks {
            if ask.reply.is_none() {
                continue;
            }
            if ask.deadline <= now {
                shared.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                if let Some(reply) = ask.reply.take() {
                    // A client that is gone needs no response.
                    let _ = reply.send(Err(StoreError::Timeout));
                }
            } else {
                next = Some(next.map_or(ask.deadline, |earliest| earliest.min(ask.deadline)));
            }
        }
        let Some(next) = next else {
            return Err(Trouble::Late);
        };
        // Requests that did not fit in the call are older than some of those in it.
        let next = shared.tell_late(now).map_or(next, |first| first.min(next));
        tokio::select! {
            biased;
            outcome = &mut call => return outcome,
            () = &mut hurried => hurried.set(shared.hurried.notified()),
            () = tokio::time::sleep(next.since(now).into()) => {}
        }
    }
}
