//! The most units that any key of one limit asks for in a second and in a minute.

use std::collections::VecDeque;

use crate::outcome::at_least;

/// The requests of the last minute, of all keys together, and the sums of each key.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    /// Moment, key and units; the last entry of a key takes all of its requests of one moment.
    minute: VecDeque<Entry>,
    /// How many entries have left the queue at its front, and how many of all are out of the last second.
    gone: u64,
    out_of_second: u64,
    keys: Vec<Sums>,
    /// The most in any second and in any minute.
    pub(crate) most: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    key: u32,
    units: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    second: u64,
    minute: u64,
    /// The number of its last entry, counted from one.
    last: u64,
}

impl Peaks {
    /// Adds a request that comes no earlier than the last, of whatever key.
    pub(crate) fn add(&mut self, at: u64, key: u32, units: u64) {
        while let Some(entry) = self.entry(self.out_of_second)
            && at - entry.at >= SECOND
        {
            let sums = &mut self.keys[entry.key as usize];
            sums.second = sums.second.saturating_sub(entry.units);
            self.out_of_second += 1;
        }
        while let Some(entry) = self.minute.front()
            && at - entry.at >= 60 * SECOND
        {
            let sums = &mut self.keys[entry.key as usize];
            sums.minute = sums.minute.saturating_sub(entry.units);
            self.gone += 1;
            self.minute.pop_front();
        }
        let place = key as usize;
        let last = at_least(&mut self.keys, place).last;
        let known = last
            .checked_sub(self.gone + 1)
            .and_then(|place| usize::try_from(place).ok());
        match known.and_then(|place| self.minute.get_mut(place)) {
            Some(entry) if entry.at == at => entry.units = entry.units.saturating_add(units),
            _ => {
                self.minute.push_back(Entry { at, key, units });
                self.keys[place].last = self.gone + self.minute.len() as u64;
            }
        }
        let sums = &mut self.keys[place];
        sums.second = sums.second.saturating_add(units);
        sums.minute = sums.minute.saturating_add(units);
        self.most[0] = self.most[0].max(sums.second);
        self.most[1] = self.most[1].max(sums.minute);
    }

    /// The entry with this number, counted from zero.
    fn entry(&self, number: u64) -> Option<Entry> {
        let place = usize::try_from(number.checked_sub(self.gone)?).ok()?;
        self.minute.get(place).copied()
    }
}

const SECOND: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Window;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn peaks_of_all_keys_equal_those_of_a_window_for_each_key(
            steps in prop::collection::vec((prop_oneof![Just(0_u64), Just(1_000_000), Just(59_000_000), 0_u64..3_000_000, Just(70_000_000)], 0_u32..4, 1_u64..9), 1..200),
        ) {
            let (mut peaks, mut at) = (Peaks::default(), 1_700_000_000_000_000);
            let mut windows = vec![[Window::default(), Window::default()]; 4];
            for (step, key, units) in steps {
                at += step;
                peaks.add(at, key, units);
                let [second, minute] = &mut windows[key as usize];
                second.add(at, units, SECOND);
                minute.add(at, units, 60 * SECOND);
            }
            let most = |place: usize| windows.iter().map(|pair| pair[place].most).max().unwrap_or(0);
            prop_assert_eq!(peaks.most, [most(0), most(1)]);
        }
    }
}
