//! Moves buckets between tables: from a predecessor to its successor at a reload, and to a
//! snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::bucket::{Bucket, Moving, Whose};
use crate::local::set::{LATEST, LINES, Locked, SLOTS};
use tollgate_limit::Timestamp;
use tollgate_limit::bucket::State;

use super::{LATE, PackedTable, span};

impl PackedTable {
    /// Passes every bucket to `adopt` and redirects later draws to the successor, set by set under
    /// the set's lock.
    pub(crate) fn move_to(&self, congruent: bool, now: Timestamp, adopt: impl Fn(Moving)) {
        // Before any draw is redirected: a key that comes to an untouched set goes to the successor
        // at once, and must have the same debt there. (A floor that grows from now on belongs to a
        // set with keys, and is passed again.)
        self.hand_over_birth(now, &adopt);
        for index in 0..self.floors.as_ref().map_or(0, |floors| floors.len()) {
            let floor = self.floor(index).filter(|floor| *floor > 0);
            if floor.is_some() && self.sets.of_line(index * LINES).is_untouched() {
                self.hand_over_floor(floor, index, now, &adopt);
            }
        }
        self.closing.store(true, Ordering::SeqCst);
        for index in 0..self.sets.len() {
            let set = self.sets.of_line(index * LINES);
            // Untouched memory stays untouched: it holds no keys, and a later thread sees that the
            // table is closing.
            if set.is_untouched() {
                continue;
            }
            let Some(mut set) = set.lock() else { continue };
            for slot in 0..SLOTS {
                set.hold(slot);
            }
            self.hand_over(index, &set, congruent, now, &adopt);
            set.mark_moved();
        }
    }

    /// Passes every bucket to `visit`, set by set under the set's lock.
    pub(crate) fn visit(&self, now: Timestamp, visit: impl Fn(Moving)) {
        for index in 0..self.sets.len() {
            let set = self.sets.of_line(index * LINES);
            if set.is_untouched() {
                self.hand_over_floor(self.floor(index), index, now, &visit);
            } else if let Some(set) = set.lock() {
                self.hand_over(index, &set, false, now, &visit);
            }
        }
        self.hand_over_birth(now, visit);
    }

    fn hand_over(
        &self,
        index: usize,
        set: &Locked<'_, AtomicU64>,
        congruent: bool,
        now: Timestamp,
        to: &impl Fn(Moving),
    ) {
        for slot in 0..SLOTS {
            self.hand_over_word(
                set.arrival(slot),
                Whose::Bucket { tag: set.tag(slot) },
                now,
                to,
            );
        }
        if !congruent {
            self.hand_over_floor(
                self.floor(index).or_else(|| Some(set.smallest())),
                index,
                now,
                to,
            );
        }
    }

    /// The debt of forgotten keys, if it is stored explicitly.
    fn floor(&self, index: usize) -> Option<u64> {
        self.floors
            .as_ref()
            .map(|floors| floors[index].load(Ordering::Relaxed))
    }

    fn hand_over_floor(
        &self,
        floor: Option<u64>,
        index: usize,
        now: Timestamp,
        to: &impl Fn(Moving),
    ) {
        let line = index * LINES;
        let (first, _) = span(line, self.sets.lines());
        let (_, last) = span(line + LINES - 1, self.sets.lines());
        self.hand_over_word(floor.unwrap_or(0), Whose::Floor { first, last }, now, to);
    }

    fn hand_over_birth(&self, now: Timestamp, to: impl Fn(Moving)) {
        self.hand_over_word(self.birth.load(Ordering::Relaxed), Whose::Birth, now, &to);
    }

    fn hand_over_word(&self, word: u64, whose: Whose, now: Timestamp, to: &impl Fn(Moving)) {
        if let Some((level, beyond)) = self.packed.unpack(word, now, LATE) {
            let bucket = Bucket::new(State::Level(level), beyond, 0);
            to(Moving { whose, bucket });
        }
    }

    /// Takes over an item from a predecessor.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        // States of other algorithms are never passed to a token bucket.
        let Moving { whose, bucket } = moving;
        let State::Level(level) = bucket.state else {
            return;
        };
        let word = self.packed.pack(level, bucket.beyond).min(LATEST);
        match whose {
            Whose::Bucket { tag } => {
                if let Some(mut slot) = self.lock(tag, now) {
                    // With another geometry a set may receive more keys than it holds: then the
                    // smallest debts go to the floor.
                    slot.adopt(word);
                }
            }
            // Without floors, the slots of the same geometry imply them.
            Whose::Floor { first, last } => {
                for index in self.line(first) / LINES..=self.line(last) / LINES {
                    if let Some(floors) = &self.floors {
                        floors[index].fetch_max(word, Ordering::Relaxed);
                    }
                }
            }
            Whose::Birth => {
                self.birth.fetch_max(word, Ordering::Relaxed);
            }
        }
    }
}
