//! Sends calls, and waits for their responses while requests wait.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use super::assemble::{Flight, assemble};
use super::deliver::{deliver, fail};
use super::queue::Unmade;
use super::{Answer, Ask, Correction, LaneState, Link, Reply, Trouble, Unanswered, each};
use crate::StoreError;
use tollgate_limit::Timestamp;

/// When a call left, by both of our clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) clock: Timestamp,
    pub(super) boot: Timestamp,
}

/// A call without a usable response.
pub(super) struct Failed {
    trouble: Trouble,
    /// Its corrections that were certainly not made.
    pub(super) undone: Vec<Correction>,
}

/// What became of calls that were sent together.
#[must_use = "the corrections that were not made go again"]
pub(super) struct Flown {
    /// Whether a call had a response.
    is_alive: bool,
    pub(super) failed: Vec<Failed>,
}

impl Flown {
    /// Sees to the corrections that were not made.
    pub(super) fn settle(mut self, shared: &LaneState) -> Result<(), Trouble> {
        for Failed { trouble, undone } in &mut self.failed {
            if matches!(trouble, Trouble::Late) && !undone.is_empty() {
                shared.corrections_late();
            }
            shared.unmade(std::mem::take(undone), Unmade::from(&*trouble));
        }
        self.outcome()
    }

    pub(super) fn outcome(self) -> Result<(), Trouble> {
        let (mut outcome, mut late) = (Ok(()), false);
        for Failed { trouble, .. } in self.failed {
            match trouble {
                Trouble::Late => late = true,
                Trouble::Moved(_) | Trouble::Astray(_) => {}
                trouble => outcome = Err(trouble),
            }
        }
        // A server that has responded to some of the calls is alive.
        if late && outcome.is_ok() && !self.is_alive {
            outcome = Err(Trouble::Late);
        }
        outcome
    }
}

/// The next calls: one whose corrections the store may have made, if it is time to send it again, or
/// those of the queue.
pub(super) fn next_calls<L: Link>(shared: &LaneState, link: &L) -> Option<Vec<Flight>> {
    // Work whose requests are all over makes no call, which would pass for one that succeeded.
    let mut work = std::iter::from_fn(|| Some(assemble(shared, link, shared.take()?)));
    let again = shared
        .take_unknown()
        .map(|batch| vec![Flight::again(batch)]);
    again.or_else(|| work.find(|flights| !flights.is_empty()))
}

/// Sends all calls at once and delivers their results. With `late`, this waits for a late call, too, and
/// notifies of it: the response still says what the call drew for requests that were refused meanwhile.
pub(super) async fn fly<L: Link>(
    shared: &LaneState,
    link: &L,
    connection: &L::Connection,
    flights: Vec<Flight>,
    late: Option<&Notify>,
) -> Flown {
    let mut flown = Flown {
        is_alive: false,
        failed: Vec::new(),
    };
    let calls = flights.into_iter();
    let calls = calls.map(|flight| call(shared, link, connection, flight, late));
    each(calls, |ended| match ended {
        Ok(()) => flown.is_alive = true,
        Err(failed) => flown.failed.push(failed),
    })
    .await;
    flown
}

/// One call. It is late when the server has had the whole time for it. Most requests have as much
/// time; a request with less must not make the server seem late.
async fn call<L: Link>(
    shared: &LaneState,
    link: &L,
    connection: &L::Connection,
    mut flight: Flight,
    late: Option<&Notify>,
) -> Result<(), Failed> {
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
    let until = sent.clock.after(shared.answer_within);
    let answered = {
        let mut call = pin!(link.call(connection, &batch));
        match call_until_late(shared, &mut flight, &mut call, until).await {
            Some(answered) => answered,
            // Corrections with a receipt are sent again, and must not be made by both calls.
            None if batch.receipt.number > 0 => Err(Trouble::Late),
            None => {
                match late.zip(Straggler::new(shared)) {
                    None => Err(Trouble::Late),
                    Some((late, _one)) => {
                        // The lane goes on without it.
                        late.notify_one();
                        flight.is_late = true;
                        let within = tokio::time::timeout(STRAGGLES, call);
                        within.await.unwrap_or(Err(Trouble::Late))
                    }
                }
            }
        }
    };
    flight.batch = batch;
    match answered {
        Ok(answer) => {
            if corrects {
                shared.corrections_landed();
            }
            if let Some(leases) = &shared.leases {
                for (left, in_time) in flight.returned.drain(..) {
                    leases.returned(left, in_time);
                }
            }
            deliver(shared, flight, answer, sent).map_err(|trouble| Failed {
                trouble,
                undone: Vec::new(),
            })
        }
        Err(trouble) => {
            if let Some(leases) = &shared.leases {
                let left = flight.returned.drain(..).map(|(left, _)| left);
                leases.forfeit(left.sum());
                // The store may have leased what was asked for.
                if matches!(trouble, Trouble::Late | Trouble::Lost(_)) {
                    let asked = flight.pending.iter().map(|one| one.request().units);
                    leases.forfeit(asked.sum());
                }
            }
            let to_send = StoreError::from(&trouble);
            let mut again = Vec::new();
            for ask in flight.take_asks() {
                match trouble {
                    // Nothing was sent, or done.
                    Trouble::Unfit(_) if ask.repeats < REPEATS_MAX => again.push(ask),
                    _ => fail(shared, ask, to_send.clone()),
                }
            }
            for ask in &mut again {
                ask.repeats += 1;
            }
            shared.put_back(again);
            let undone = shared.undone(flight.batch, &trouble);
            Err(Failed { trouble, undone })
        }
    }
}

/// Tells a request that its call gets no response in time.
fn time_out(shared: &LaneState, ask: &mut Ask) {
    let Some(reply) = ask.reply.take() else {
        return;
    };
    let to_send = Reply {
        unanswered: (!ask.peek).then(Arc::<Unanswered>::default),
        ..Reply::from(Err(StoreError::Timeout))
    };
    ask.unanswered.clone_from(&to_send.unanswered);
    if let Err(untaken) = reply.send(to_send) {
        shared.untaken(&untaken);
    }
}

/// A call that is late and still waited for.
struct Straggler<'s>(&'s LaneState);

impl<'s> Straggler<'s> {
    /// `None`: there are too many.
    fn new(shared: &'s LaneState) -> Option<Self> {
        let one = Self(shared);
        let others = shared.stragglers.fetch_add(1, Ordering::Relaxed);
        (others < STRAGGLERS_MAX).then_some(one)
    }
}

impl Drop for Straggler<'_> {
    fn drop(&mut self) {
        self.0.stragglers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a late call is waited for, and how many are at most.
pub(crate) const STRAGGLES: Duration = Duration::from_secs(10);
const STRAGGLERS_MAX: usize = 64;
/// How often a request goes again because its connection had ended: it may meet that of each lane.
const REPEATS_MAX: u8 = 4;

/// Waits for the call until `late`, and as long as a request has time left; each request whose
/// deadline passes gets its timeout. `None`: the call is late.
async fn call_until_late(
    shared: &LaneState,
    flight: &mut Flight,
    call: &mut Pin<&mut impl Future<Output = Result<Answer, Trouble>>>,
    late: Timestamp,
) -> Option<Result<Answer, Trouble>> {
    let mut hurried = pin!(shared.hurried.notified());
    loop {
        // Before the queue is read: a request that queues afterwards is noticed.
        hurried.as_mut().enable();
        let now = shared.clock.now();
        let mut next = (late > now).then_some(late);
        let peeks = flight.peeks.iter_mut().map(|(ask, _)| ask);
        for ask in flight.members.iter_mut().flatten().chain(peeks) {
            if ask.reply.is_none() {
                continue;
            }
            if ask.deadline <= now {
                shared.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                time_out(shared, ask);
            } else {
                next = Some(next.map_or(ask.deadline, |earliest| earliest.min(ask.deadline)));
            }
        }
        let next = next?;
        // Requests that did not fit in the call are older than some of those in it.
        let next = shared.tell_late(now).map_or(next, |first| first.min(next));
        tokio::select! {
            biased;
            outcome = &mut *call => return Some(outcome),
            () = &mut hurried => hurried.set(shared.hurried.notified()),
            () = tokio::time::sleep(next.since(now).into()) => {}
        }
    }
}
