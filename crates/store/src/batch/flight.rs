//! One round of a lane: sorts the queue into calls, sends them, and waits while requests wait.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::deliver::{deliver, fail};
use super::shared::Work;
use super::{
    Adjust, Answer, Ask, Batch, Correction, GROUPS_MAX, Group, Link, Part, Shared, Trouble, Wants,
    answer,
};
use crate::StoreError;
use crate::lease::{Errand, Held, Leases, Return, Wishing};
use crate::wire_form::{Name, WireForm};
use tollgate_limit::{Draw, Timestamp};

/// With fewer requests it cannot be determined whether they draw from many buckets.
const TELLING: u64 = 8;

/// A batch with the requests that wait for it: `members[g]` are those of group `g`, in order of arrival.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) batch: Batch,
    pub(super) members: Vec<Vec<Ask>>,
    pub(super) peeks: Vec<(Ask, SmallVec<[u32; 2]>)>,
    /// The lease requests, in order.
    pub(super) wishing: Vec<Wishing>,
    /// The leases that are returned.
    returned: Vec<Return>,
    buckets: HashTable<u32>,
    groups: HashTable<u32>,
}

/// When a call left, by both of our clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) clock: Timestamp,
    pub(super) boot: Timestamp,
}

/// Why a call brought no result.
pub(super) enum Failure {
    /// Every request's deadline has passed.
    Late,
    Trouble(Trouble),
}

impl Failure {
    /// Why, in words.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Late => "no answer in time".into(),
            Self::Trouble(trouble) => trouble.into_words(),
        }
    }
}

/// A call whose response is not delivered yet.
#[must_use = "somebody waits for the answer"]
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

/// Why a call brought no result, and the corrections that it certainly did not make.
struct Grounded {
    failure: Failure,
    undone: Vec<Correction>,
}

/// The outcome of calls that were sent together.
#[must_use = "somebody waits for the answers"]
pub(super) struct Flown {
    pub(super) landed: Vec<Landed>,
    pub(super) outcome: Result<(), Failure>,
    /// Corrections that were not made because the connection was unfit; another one can make them.
    pub(super) unfit: Vec<Correction>,
    /// Corrections that were not made because their buckets are on a server that is not known yet.
    pub(super) moved: Vec<Correction>,
    /// Corrections that were not made because the server refused the call.
    pub(super) refused: Vec<Correction>,
}

impl Flown {
    /// Queues corrections again that another connection or server can make, and counts the others
    /// as dropped.
    pub(super) fn settle(self, shared: &Shared) -> (Vec<Landed>, Result<(), Failure>) {
        shared.correct_again(self.unfit);
        shared.correct_elsewhere(self.moved);
        shared
            .counters
            .corrections_dropped
            .fetch_add(self.refused.len() as u64, Ordering::Relaxed);
        (self.landed, self.outcome)
    }
}

/// Calls that are sent together: as many as there are parts (one, outside a cluster).
#[must_use = "somebody waits for the answer"]
pub(super) struct Departing(Vec<Flight>);

impl Departing {
    pub(super) fn of<L: Link>(shared: &Shared, link: &L, work: Work) -> Self {
        Self(assemble(shared, link, work))
    }

    /// Whether most of its requests draw from buckets of their own; `None`: too few requests to
    /// know.
    pub(super) fn is_spread(&self) -> Option<bool> {
        let [flight] = self.0.as_slice() else {
            return Some(false);
        };
        let asks: u64 = flight
            .batch
            .groups
            .iter()
            .map(|group| u64::from(group.count))
            .sum();
        (asks >= TELLING).then(|| 2 * flight.batch.groups.len() as u64 >= asks)
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
        let (mut unfit, mut moved, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut late = false;
        let mut keep = |flown: Result<Landed, Grounded>| {
            let Grounded { failure, undone } = match flown {
                Ok(flown) => return landed.push(flown),
                Err(grounded) => grounded,
            };
            match &failure {
                Failure::Trouble(Trouble::Unfit(_)) => unfit.extend(undone),
                Failure::Trouble(Trouble::Moved(_)) => moved.extend(undone),
                _ => refused.extend(undone),
            }
            match failure {
                Failure::Late => late = true,
                Failure::Trouble(Trouble::Moved(_) | Trouble::Astray(_)) => {}
                failure => outcome = Err(failure),
            }
        };
        if flights.len() == 1 {
            if let Some(flight) = flights.pop() {
                keep(fly(shared, link, connection, flight).await);
            }
            return Flown {
                landed,
                outcome: if late { Err(Failure::Late) } else { outcome },
                unfit,
                moved,
                refused,
            };
        }
        let mut flying: Vec<_> = flights
            .into_iter()
            .map(|flight| Box::pin(fly(shared, link, connection, flight)))
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
            moved,
            refused,
        }
    }
}

/// Sends `work` and waits for the results.
#[cfg(test)]
pub(super) async fn flush<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    work: Work,
) -> (Vec<Landed>, Result<(), Failure>) {
    Departing::of(shared, link, work)
        .fly(shared, link, connection)
        .await
        .settle(shared)
}

/// Makes the call of a single request; returns whether the connection is still good.
pub(crate) async fn fly_alone<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    ask: Ask,
) -> bool {
    let work = Work {
        asks: vec![ask],
        corrections: Vec::new(),
        errands: Vec::new(),
    };
    let mut flights = assemble(shared, link, work);
    match flights.pop() {
        Some(flight) => {
            shared.counters.own_calls.fetch_add(1, Ordering::Relaxed);
            let landed = fly(shared, link, connection, flight).await;
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

/// One call.
async fn fly<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    mut flight: Flight,
) -> Result<Landed, Grounded> {
    let sent = Sent {
        clock: shared.clock.now(),
        boot: shared.clock.boot(),
    };
    shared.counters.calls.fetch_add(1, Ordering::Relaxed);
    let batch = std::mem::take(&mut flight.batch);
    let answered = call_until_late(shared, &mut flight, link.call(connection, &batch)).await;
    flight.batch = batch;
    match answered {
        Ok(answer) => {
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
            let undone = match failure {
                Failure::Trouble(Trouble::Unfit(_) | Trouble::Refused(_) | Trouble::Moved(_)) => {
                    corrections_of(&mut flight.batch)
                }
                _ => Vec::new(),
            };
            for ask in flight
                .members
                .into_iter()
                .flatten()
                .chain(flight.peeks.into_iter().map(|(ask, _)| ask))
            {
                fail(shared, ask, told.clone());
            }
            Err(Grounded { failure, undone })
        }
    }
}

/// The corrections of a call that did nothing, without heartbeats: the next one reports the places
/// anew.
fn corrections_of(batch: &mut Batch) -> Vec<Correction> {
    let corrections = std::mem::take(&mut batch.corrections).into_iter();
    corrections
        .filter(|(_, adjust)| matches!(adjust, Adjust::Change(_)))
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

/// Waits for the call while requests wait for it; each request whose deadline passes gets its
/// timeout.
async fn call_until_late(
    shared: &Shared,
    flight: &mut Flight,
    call: impl Future<Output = Result<Answer, Trouble>>,
) -> Result<Answer, Failure> {
    let mut call = pin!(call);
    // Corrections alone have no waiting request; they get the time a request would have.
    let alone = shared.clock.now().after(shared.answer_within);
    loop {
        let now = shared.clock.now();
        let mut next: Option<Timestamp> = None;
        let asks = flight
            .members
            .iter_mut()
            .flatten()
            .chain(flight.peeks.iter_mut().map(|(ask, _)| ask));
        let mut anybody = false;
        for ask in asks {
            anybody = true;
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
        if !anybody && alone > now {
            next = Some(alone);
        }
        let Some(next) = next else {
            return Err(Failure::Late);
        };
        // Requests that did not fit in the call are older than some of those in it.
        let next = shared.tell_late(now).map_or(next, |first| first.min(next));
        tokio::select! {
            biased;
            outcome = &mut call => return outcome.map_err(Failure::Trouble),
            () = tokio::time::sleep(next.since(now).into()) => {}
        }
    }
}

/// Sorts `work` into calls.
fn assemble<L: Link>(shared: &Shared, link: &L, work: Work) -> Vec<Flight> {
    let now = shared.clock.now();
    let mut flights: SmallVec<[((u32, u32), Flight); 1]> = SmallVec::new();
    let (mut later, mut corrections_later) = (Vec::new(), Vec::<Correction>::new());
    for correction in work.corrections {
        // Corrections of one bucket keep their order: one that frees places must not overtake a
        // heartbeat that reports them.
        let overtakes = corrections_later
            .iter()
            .any(|earlier| earlier.name == correction.name);
        let flight = flight_for(&mut flights, (link.part(&correction.name), u32::MAX));
        match flight
            .bucket_of_any_numbers(&correction.name, &correction.shape)
            .filter(|_| !overtakes)
        {
            Some(bucket) => flight.batch.corrections.push((bucket, correction.adjust)),
            None => corrections_later.push(correction),
        }
    }
    shared.put_corrections_back(corrections_later);
    for errand in work.errands {
        let Some(leases) = &shared.leases else {
            continue;
        };
        let name = errand.name();
        // Together with the requests that use the same script.
        let flight = flight_for(&mut flights, (link.part(name), link.lane_of(&Wants::new())));
        match errand {
            Errand::Wish(held) => match flight.bucket(held.name(), held.shape()) {
                Some(bucket) => flight.wish(bucket, &held, leases),
                None => {
                    held.not_sent(leases);
                    shared.call_for_errands();
                }
            },
            Errand::Return(returned) => {
                match flight.bucket_of_any_numbers(&returned.name, &returned.shape) {
                    Some(bucket) => flight.give_back(bucket, returned),
                    None => leases.again([returned]),
                }
            }
        }
    }
    for ask in work.asks {
        if ask.reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
            continue;
        }
        if ask.deadline <= now {
            fail(shared, ask, StoreError::Overdue);
            continue;
        }
        let Some(first) = ask.wants.first() else {
            answer(
                ask,
                Ok(Draw {
                    granted: true,
                    ..Draw::default()
                }),
            );
            continue;
        };
        let part = link.part(&first.name);
        if ask
            .wants
            .iter()
            .any(|wanted| link.part(&wanted.name) != part)
        {
            let told = "the limits of this request lie in different cluster slots";
            fail(shared, ask, StoreError::Unavailable(told.into()));
            continue;
        }
        if let Err(ask) = flight_for(
            &mut flights,
            (
                part,
                if ask.peek {
                    u32::MAX
                } else {
                    link.lane_of(&ask.wants)
                },
            ),
        )
        .add(ask)
        {
            later.push(ask);
        }
    }
    shared.put_back(later);
    let flights: Vec<Flight> = flights.into_iter().map(|(_, flight)| flight).collect();
    let asked: usize = flights
        .iter()
        .map(|flight| flight.members.iter().map(Vec::len).sum::<usize>())
        .sum();
    shared
        .counters
        .asked
        .fetch_add(asked as u64, Ordering::Relaxed);
    flights
}

fn flight_for(flights: &mut SmallVec<[((u32, u32), Flight); 1]>, part: (u32, u32)) -> &mut Flight {
    let index = flights
        .iter()
        .position(|(known, _)| *known == part)
        .unwrap_or_else(|| {
            flights.push((part, Flight::default()));
            flights.len() - 1
        });
    &mut flights[index].1
}

impl Flight {
    /// The index of a bucket in this call. `None` if it is in the call under other numbers (during
    /// a reload): one call must not use two sets of numbers for one bucket.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a call has fewer than 2^32 buckets; a hash may be cut"
    )]
    fn bucket(&mut self, name: &Name, shape: &Arc<WireForm>) -> Option<u32> {
        let hash = name.hash as u64;
        let buckets = &mut self.batch.buckets;
        if let Some(&index) = self
            .buckets
            .find(hash, |&index| buckets[index as usize].0.hash == name.hash)
        {
            return Arc::ptr_eq(&buckets[index as usize].1, shape).then_some(index);
        }
        let index = buckets.len() as u32;
        buckets.push((*name, shape.clone()));
        self.buckets
            .insert_unique(hash, index, |&index| buckets[index as usize].0.hash as u64);
        Some(index)
    }

    /// The index of a bucket for a correction, which is settled in the numbers the bucket is stored
    /// under, whatever numbers it has here. `None`: it is here a concurrency limit, and there a rate,
    /// or the other way round.
    #[expect(clippy::cast_possible_truncation, reason = "a hash may be cut")]
    fn bucket_of_any_numbers(&mut self, name: &Name, shape: &Arc<WireForm>) -> Option<u32> {
        let known = self.buckets.find(name.hash as u64, |&index| {
            self.batch.buckets[index as usize].0.hash == name.hash
        });
        match known {
            Some(&index) => {
                let here = self.batch.buckets[index as usize].1.algorithm();
                here.goes_on_as(shape.algorithm()).then_some(index)
            }
            None => self.bucket(name, shape),
        }
    }

    /// Adds a lease request to this call.
    fn wish(&mut self, bucket: u32, held: &Arc<Held>, leases: &Arc<Leases>) {
        let (wishing, used_up) = held.depart(leases);
        for returned in used_up {
            self.give_back(bucket, returned);
        }
        self.batch.wishes.push((bucket, wishing.wish()));
        self.wishing.push(wishing);
    }

    /// Adds the return of a lease to this call.
    fn give_back(&mut self, bucket: u32, returned: Return) {
        self.batch
            .returns
            .push((bucket, returned.id, returned.units()));
        self.returned.push(returned);
    }

    /// Adds a request to this call, or returns it for the next.
    #[expect(clippy::result_large_err, reason = "the request itself, handed back")]
    fn add(&mut self, ask: Ask) -> Result<(), Ask> {
        if self.batch.groups.len() >= GROUPS_MAX || self.peeks.len() >= GROUPS_MAX {
            return Err(ask);
        }
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for wanted in &ask.wants {
            match self.bucket(&wanted.name, &wanted.shape) {
                Some(bucket) => parts.push(Part {
                    bucket,
                    cost: wanted.cost,
                    enforced: wanted.enforced,
                }),
                None => return Err(ask),
            }
        }
        if ask.peek {
            self.peeks
                .push((ask, parts.iter().map(|part| part.bucket).collect()));
            return Ok(());
        }
        let groups = &mut self.batch.groups;
        let hash = hash_of(&parts);
        if let Some(&index) = self
            .groups
            .find(hash, |&index| groups[index as usize].parts == parts)
        {
            groups[index as usize].count += 1;
            self.members[index as usize].push(ask);
            return Ok(());
        }
        let index = u32::try_from(groups.len()).expect("groups are bounded by GROUPS_MAX");
        groups.push(Group { parts, count: 1 });
        self.members.push(vec![ask]);
        self.groups
            .insert_unique(hash, index, |&index| hash_of(&groups[index as usize].parts));
        Ok(())
    }
}

/// A hash of a group's claims. Its inputs are indices and costs, which no client can choose freely.
fn hash_of(parts: &[Part]) -> u64 {
    parts.iter().fold(0x9E37_79B9_7F4A_7C15, |hash: u64, part| {
        let word = u64::from(part.bucket) << 32 ^ part.cost << 1 ^ u64::from(part.enforced);
        (hash.rotate_left(23) ^ word).wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}
