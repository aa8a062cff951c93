//! Sends calls, and waits for their responses while requests wait.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::assemble::{Flight, assemble};
use super::deliver::{deliver, fail};
use super::receipt::Unmade;
use super::shared::Work;
use super::{Adjust, Answer, Ask, Batch, Correction, Link, Shared, Trouble};
use crate::StoreError;
use tollgate_limit::Timestamp;

/// When a call left, by both of our clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) clock: Timestamp,
    pub(super) boot: Timestamp,
}

/// Why a call brought no result.
pub(super) enum Failure {
    /// The server has not responded in time, and every request's deadline has passed.
    Late,
    Trouble(Trouble),
}

impl Failure {
    /// Why, in words.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Late => "no response in time".into(),
            Self::Trouble(trouble) => trouble.into_words(),
        }
    }
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
    pub(super) fn deliver(self, shared: &Shared) -> Result<(), Failure> {
        deliver(shared, self.flight, self.answer, self.sent)
            .map_err(|error| Failure::Trouble(Trouble::Corrupt(error)))
    }
}

/// Why a call brought no result, and its corrections.
struct Grounded {
    failure: Failure,
    unmade: Unmade,
}

/// The outcome of calls that were sent together.
#[must_use = "requests wait for the decisions"]
pub(super) struct Flown {
    pub(super) landed: Vec<Landed>,
    pub(super) outcome: Result<(), Failure>,
    /// Corrections that were not made because the connection was unfit; another one can make them.
    pub(super) unfit: Vec<Correction>,
    /// Corrections that were not made in time.
    pub(super) late: Vec<Correction>,
    /// Corrections that were not made because their buckets are on a server that is not known yet.
    pub(super) moved: Vec<Correction>,
    /// Corrections that were not made because the server refused the call.
    pub(super) refused: Vec<Correction>,
}

impl Flown {
    /// Queues corrections again that were not made and still can be, and counts the others as
    /// dropped.
    pub(super) fn settle(self, shared: &Shared) -> (Vec<Landed>, Result<(), Failure>) {
        shared.correct_again(self.unfit);
        shared.correct_later(self.late);
        shared.correct_elsewhere(self.moved);
        shared.drop_corrections(self.refused.len(), "the store refused them");
        (self.landed, self.outcome)
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
        let mut flights = self.0;
        let (mut landed, mut outcome) = (Vec::with_capacity(flights.len()), Ok(()));
        let (mut unfit, mut overdue) = (Vec::new(), Vec::new());
        let (mut moved, mut refused) = (Vec::new(), Vec::new());
        let mut late = false;
        let mut keep = |flown: Result<Landed, Grounded>| {
            let Grounded { failure, unmade } = match flown {
                Ok(flown) => return landed.push(flown),
                Err(grounded) => grounded,
            };
            match (unmade, &failure) {
                (Unmade::Unknown(batch), failure) => {
                    let is_refused = matches!(
                        failure,
                        Failure::Trouble(Trouble::Refused(_) | Trouble::Corrupt(_))
                    );
                    shared.keep_unknown(batch, is_refused);
                }
                (Unmade::Undone(undone), failure) => match failure {
                    Failure::Trouble(Trouble::Unfit(_) | Trouble::Lost(_) | Trouble::Astray(_)) => {
                        unfit.extend(undone);
                    }
                    Failure::Trouble(Trouble::Moved(_)) => moved.extend(undone),
                    Failure::Late => overdue.extend(undone),
                    Failure::Trouble(Trouble::Refused(_) | Trouble::Corrupt(_)) => {
                        refused.extend(undone);
                    }
                },
            }
            match failure {
                Failure::Late => late = true,
                Failure::Trouble(Trouble::Moved(_) | Trouble::Astray(_)) => {}
                failure => outcome = Err(failure),
            }
        };
        if flights.len() == 1 {
            if let Some(flight) = flights.pop() {
                keep(fly(shared, link, connection, flight, None).await);
            }
            return Flown {
                landed,
                outcome: if late { Err(Failure::Late) } else { outcome },
                unfit,
                late: overdue,
                moved,
                refused,
            };
        }
        let mut flying: Vec<_> = flights
            .into_iter()
            .map(|flight| Box::pin(fly(shared, link, connection, flight, None)))
            .collect();
        std::future::poll_fn(|context| {
            flying.retain_mut(|flight| match flight.as_mut().poll(context) {
                Poll::Ready(flown) => {
                    keep(flown);
                    false
                }
                Poll::Pending => true,
            });
            if flying.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        drop(flying);
        // A server that has responded to some of the calls is alive.
        if late && outcome.is_ok() && landed.is_empty() {
            outcome = Err(Failure::Late);
        }
        Flown {
            landed,
            outcome,
            unfit,
            late: overdue,
            moved,
            refused,
        }
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
        corrections: Vec::new(),
        errands: Vec::new(),
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
        Err(failure) => {
            if let Some(leases) = &shared.leases {
                leases.again(std::mem::take(&mut flight.returned));
            }
            let told = match &failure {
                Failure::Late => StoreError::Timeout,
                Failure::Trouble(
                    Trouble::Unfit(error) | Trouble::Refused(error) | Trouble::Moved(error),
                ) => StoreError::Unavailable(error.clone()),
                Failure::Trouble(Trouble::Lost(error) | Trouble::Astray(error)) => {
                    StoreError::Lost(error.clone())
                }
                Failure::Trouble(Trouble::Corrupt(error)) => StoreError::Garbled(error.clone()),
            };
            let undone = matches!(
                failure,
                Failure::Trouble(Trouble::Unfit(_) | Trouble::Refused(_) | Trouble::Moved(_))
            );
            let unmade = Unmade::of(flight.batch, undone);
            for ask in flight
                .members
                .into_iter()
                .flatten()
                .chain(flight.peeks.into_iter().map(|(ask, _)| ask))
            {
                fail(shared, ask, told.clone());
            }
            Err(Grounded { failure, unmade })
        }
    }
}

/// The corrections of a call that did nothing, without heartbeats: the next one reports the places
/// anew.
pub(super) fn corrections_of(batch: &mut Batch) -> Vec<Correction> {
    let corrections = std::mem::take(&mut batch.corrections).into_iter();
    corrections
        .filter(|(_, adjust)| !matches!(adjust, Adjust::Hold(_)))
        .map(|(bucket, adjust)| {
            let (name, shape) = &batch.buckets[bucket as usize];
            Correction {
                name: *name,
                shape: Arc::clone(shape),
                adjust,
            }
        })
        .collect()
}

/// Waits for the call until `late`, and as long as a request has time left; each request whose
/// deadline passes gets its timeout.
async fn call_until_late(
    shared: &Shared,
    flight: &mut Flight,
    call: impl Future<Output = Result<Answer, Trouble>>,
    late: Timestamp,
) -> Result<Answer, Failure> {
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
            return Err(Failure::Late);
        };
        // Requests that did not fit in the call are older than some of those in it.
        let next = shared.tell_late(now).map_or(next, |first| first.min(next));
        tokio::select! {
            biased;
            outcome = &mut call => return outcome.map_err(Failure::Trouble),
            () = &mut hurried => hurried.set(shared.hurried.notified()),
            () = tokio::time::sleep(next.since(now).into()) => {}
        }
    }
}
