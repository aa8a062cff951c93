//! Sorts the queue into calls: each bucket once, equal requests as one group.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::deliver::fail;
use super::queue::{Unmade, Work};
use super::{
    Adjust, Ask, Batch, Correction, GROUPS_MAX, Group, LaneState, Link, Part, Wanted, Wants, answer,
};
use crate::StoreError;
use crate::lease::{Errand, Held, Leases, Pending, Returned};
use crate::wire_form::{Name, WireForm};
use tollgate_limit::{Draw, Timestamp};

/// A batch with the requests that wait for it: `members[g]` are those of group `g`, in order of arrival.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) batch: Batch,
    pub(super) members: Vec<Vec<Ask>>,
    pub(super) peeks: Vec<(Ask, SmallVec<[u32; 2]>)>,
    pub(super) pending: Vec<Pending>,
    /// Of the leases given back, the units left and until when their return is in time.
    pub(super) returned: Vec<(u64, Timestamp)>,
    /// Whether its requests have been told that it gets no response in time.
    pub(super) is_late: bool,
    buckets: HashTable<u32>,
    groups: HashTable<u32>,
}

pub(super) fn assemble<L: Link>(shared: &LaneState, link: &L, work: Work) -> Vec<Flight> {
    let now = shared.clock.now();
    let mut flights: SmallVec<[((u32, u32), Flight); 1]> = SmallVec::new();
    let (mut later, mut corrections_later) = (Vec::new(), Vec::<Correction>::new());
    // A heartbeat that is sent again after a conflict would report the places of before a grant in
    // its own call, and so free a place that was just granted.
    let is_hold = |correction: &Correction| matches!(correction.adjust, Adjust::Hold(_));
    let holds = work.corrections.iter().any(is_hold);
    let waits = |ask: &Ask| {
        let takes_place = |wanted: &Wanted| wanted.shape.holds() && wanted.cost > 0;
        holds && link.sends_again() && !ask.peek && ask.wants.iter().any(takes_place)
    };
    for correction in work.corrections {
        // Corrections of one bucket keep their order: one that frees places must not overtake a
        // heartbeat that reports them.
        let mut earlier = corrections_later.iter();
        let overtakes = earlier.any(|earlier| earlier.name == correction.name);
        let flight = flight_for(&mut flights, (link.part(&correction.name), u32::MAX));
        let bucket = flight.bucket_of_any_numbers(&correction.name, &correction.shape);
        match bucket.filter(|_| !overtakes) {
            Some(bucket) => flight.batch.corrections.push((bucket, correction.adjust)),
            None => corrections_later.push(correction),
        }
    }
    shared.unmade(corrections_later, Unmade::Again);
    for errand in work.tasks {
        let Some(leases) = &shared.leases else {
            continue;
        };
        let name = errand.name();
        // Together with the requests that use the same script.
        let flight = flight_for(&mut flights, (link.part(name), link.lane_of(&Wants::new())));
        match errand {
            Errand::Renew(held) => match flight.bucket(&held.name, &held.shape) {
                Some(bucket) => flight.renew(bucket, &held, leases),
                None => {
                    held.not_sent(leases);
                    shared.call_for_errands();
                }
            },
            Errand::Return(returned) => {
                match flight.bucket_of_any_numbers(&returned.name, &returned.shape) {
                    Some(bucket) => flight.give_back(bucket, &returned),
                    None => leases.queue(Errand::Return(returned)),
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
        if waits(&ask) {
            later.push(ask);
            continue;
        }
        let Some(first) = ask.wants.first() else {
            let draw = Draw {
                granted: true,
                ..Draw::default()
            };
            answer(ask, Ok(draw));
            continue;
        };
        let part = link.part(&first.name);
        let is_elsewhere = |wanted: &Wanted| link.part(&wanted.name) != part;
        if ask.wants.iter().any(is_elsewhere) {
            let why = "the limits of this request lie in different cluster slots";
            fail(shared, ask, StoreError::Unavailable(why.into()));
            continue;
        }
        let lane = match ask.peek {
            true => u32::MAX,
            false => link.lane_of(&ask.wants),
        };
        if let Err(ask) = flight_for(&mut flights, (part, lane)).add(ask) {
            later.push(ask);
        }
    }
    shared.put_back(later);
    let flights: Vec<Flight> = flights.into_iter().map(|(_, flight)| flight).collect();
    let members = flights.iter().flat_map(|flight| &flight.members);
    let asked = members.map(Vec::len).sum::<usize>() as u64;
    shared.counters.asked.fetch_add(asked, Ordering::Relaxed);
    flights
}

fn flight_for(flights: &mut SmallVec<[((u32, u32), Flight); 1]>, part: (u32, u32)) -> &mut Flight {
    let known = flights.iter().position(|(known, _)| *known == part);
    let index = known.unwrap_or_else(|| {
        flights.push((part, Flight::default()));
        flights.len() - 1
    });
    &mut flights[index].1
}

impl Flight {
    pub(super) fn again(batch: Batch) -> Self {
        Self {
            batch,
            ..Self::default()
        }
    }

    pub(super) fn take_asks(&mut self) -> impl Iterator<Item = Ask> {
        let members = std::mem::take(&mut self.members).into_iter().flatten();
        let peeks = std::mem::take(&mut self.peeks).into_iter();
        members.chain(peeks.map(|(ask, _)| ask))
    }

    /// The index of a bucket in this call. `None` if it is in the call under other numbers (during
    /// a reload): one call must not use two sets of numbers for one bucket.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a call has fewer than 2^32 buckets; a hash may be cut"
    )]
    fn bucket(&mut self, name: &Name, shape: &Arc<WireForm>) -> Option<u32> {
        let hash = name.hash as u64;
        let buckets = &mut self.batch.buckets;
        let is_it = |&index: &u32| buckets[index as usize].0.hash == name.hash;
        if let Some(&index) = self.buckets.find(hash, is_it) {
            return Arc::ptr_eq(&buckets[index as usize].1, shape).then_some(index);
        }
        let index = buckets.len() as u32;
        buckets.push((*name, shape.clone()));
        self.buckets
            .insert_unique(hash, index, |&index| buckets[index as usize].0.hash as u64);
        Some(index)
    }

    /// The index of a bucket for a correction, which is settled in the numbers the bucket is stored
    /// under, whatever numbers it has here.
    #[expect(clippy::cast_possible_truncation, reason = "a hash may be cut")]
    fn bucket_of_any_numbers(&mut self, name: &Name, shape: &Arc<WireForm>) -> Option<u32> {
        let known = self.buckets.find(name.hash as u64, |&index| {
            self.batch.buckets[index as usize].0.hash == name.hash
        });
        match known {
            Some(&index) => {
                let here = self.batch.buckets[index as usize].1.algorithm();
                here.has_buckets_of(shape.algorithm()).then_some(index)
            }
            None => self.bucket(name, shape),
        }
    }

    fn renew(&mut self, bucket: u32, held: &Arc<Held>, leases: &Arc<Leases>) {
        let (pending, used_up) = held.depart(leases);
        for returned in used_up {
            self.give_back(bucket, &returned);
        }
        self.batch.leases.push((bucket, pending.request()));
        self.pending.push(pending);
    }

    fn give_back(&mut self, bucket: u32, returned: &Returned) {
        self.batch.returns.push((bucket, returned.back));
        self.returned.push((returned.back.left, returned.in_time));
    }

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
            let buckets = parts.iter().map(|part| part.bucket).collect();
            self.peeks.push((ask, buckets));
            return Ok(());
        }
        let groups = &mut self.batch.groups;
        let hash = hash_of(&parts);
        let is_it = |&index: &u32| groups[index as usize].parts == parts;
        if let Some(&index) = self.groups.find(hash, is_it) {
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
    FixedState::default().hash_one(parts)
}
