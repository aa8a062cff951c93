//! Every interleaving of the threads that use one set.

mod charges;
mod moves;
mod readers;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as Modelled;

use super::*;

impl LockWord for Modelled {
    fn wait_while(&self, _bits: u64) {
        loom::thread::yield_now();
    }
}

type Words = Lines<Modelled>;

/// The set as `tag` sees it: keys from 100 on belong to the second line.
fn set(words: &Words, tag: u64) -> Set<'_, Modelled> {
    Set::new(words, usize::from(tag >= 100))
}

fn empty() -> Arc<Words> {
    Arc::new(std::array::from_fn(|_| {
        std::array::from_fn(|_| Modelled::new(0))
    }))
}

/// Takes one unit for `tag` under the lock, inheriting when it is new; the arrival time it left.
fn take(words: &Words, tag: u64) -> Option<u64> {
    let mut set = set(words, tag).lock()?;
    let (slot, arrival) = match set.find(tag) {
        Some(slot) => (slot, set.hold(slot)),
        None => set.hold_for_newcomer(0),
    };
    set.write(slot, tag, arrival + 1);
    Some(arrival + 1)
}

/// Where `tag` is, found without a lock.
fn look(words: &Words, tag: u64) -> Option<(Line<'_, Modelled>, SlotView)> {
    let home = usize::from(tag >= 100);
    [home, 1 - home].into_iter().find_map(|line| {
        let line = Line::new(&words[line]);
        let seen = line.peek(tag)?;
        Some((line, seen))
    })
}

/// Takes one unit for `tag` in one step; the arrival time it left.
fn step(words: &Words, tag: u64) -> Option<u64> {
    let (line, seen) = look(words, tag)?;
    line.advance(seen, seen.arrival() + 1)
        .then(|| seen.arrival() + 1)
}

/// Takes one unit for `tag` where arrival times may shrink; the arrival time it left.
fn held(words: &Words, tag: u64) -> Option<u64> {
    let (line, seen) = look(words, tag)?;
    line.hold(tag, seen).then(|| {
        line.release(seen, seen.arrival() + 1);
        seen.arrival() + 1
    })
}

/// As a table draws: in one step if no other thread comes in between, otherwise under the lock.
fn draw(words: &Words, tag: u64) -> Option<u64> {
    step(words, tag).or_else(|| take(words, tag))
}

/// Gives `units` back to `tag`, if it is still known.
fn refund(words: &Words, tag: u64, units: u64) {
    let mut set = set(words, tag).lock().expect("never moves");
    if let Some(slot) = set.find(tag) {
        let arrival = set.hold(slot);
        set.write(slot, tag, arrival - units);
    }
}

/// A full set of keys of the first line in which 1 owes least, the keys coming in this order.
fn filled(order: [u64; SLOTS]) -> Arc<Words> {
    let words = empty();
    for tag in order
        .into_iter()
        .chain(order.into_iter().filter(|tag| *tag != 1))
    {
        assert!(take(&words, tag).is_some());
    }
    words
}

/// Not in slot 0, whose word guards the set as well.
fn full() -> Arc<Words> {
    filled([2, 1, 3, 4, 5, 6, 7, 8])
}

/// In slot 0.
fn full_from_first() -> Arc<Words> {
    filled([1, 2, 3, 4, 5, 6, 7, 8])
}

/// In the line it does not belong to.
fn full_beyond() -> Arc<Words> {
    filled([2, 3, 4, 5, 6, 1, 7, 8])
}

const FULL: [fn() -> Arc<Words>; 3] = [full, full_from_first, full_beyond];

fn seen(words: &Words, tag: u64) -> Option<u64> {
    look(words, tag).map(|(_, seen)| seen.arrival())
}

/// What is owed in all slots together.
fn owed(words: &Words) -> u64 {
    let set = set(words, 0).lock().expect("never moves");
    (0..SLOTS).map(|slot| set.arrival(slot)).sum()
}

fn is_unlocked(words: &Words) -> bool {
    (0..SLOTS).all(|slot| arrival_of(words, slot).load(Ordering::Relaxed) & LOCK == 0)
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    loom::model::Builder::new().check(model);
}
