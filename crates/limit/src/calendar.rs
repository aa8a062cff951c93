//! Window boundaries of a calendar, such as midnight in a time zone. The core does not compute time
//! zones: it receives a list of boundaries.

use super::time::{Micros, Timestamp};

/// Window boundaries in ascending order, computed outside the core.
///
/// One window reaches from the epoch to the first boundary. After the last boundary, windows
/// continue with the length of the last listed window: the list should outlast the process, but a
/// limit must still reset after the list ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The starts of consecutive windows, at least two; the last one ends the last window.
    pub boundaries: Vec<Timestamp>,
    /// A description: "day in Europe/Berlin".
    pub words: String,
}

impl Calendar {
    /// How many boundaries are at or before `moment`: the window's number.
    pub fn position(&self, moment: Timestamp) -> u64 {
        let earlier = |boundary: &Timestamp| *boundary <= moment;
        let within = self.boundaries.partition_point(earlier) as u64;
        match self.boundaries.last() {
            Some(last) if moment >= *last => within + moment.since(*last).0 / self.last_length().0,
            _ => within,
        }
    }

    /// The start of the window with this number.
    pub fn boundary(&self, position: u64) -> Timestamp {
        let Some(index) = position.checked_sub(1) else {
            return Timestamp::default();
        };
        let listed = self.boundaries.len() as u64;
        match usize::try_from(index)
            .ok()
            .and_then(|index| self.boundaries.get(index))
        {
            Some(boundary) => *boundary,
            None => {
                let last = self.boundaries.last().copied().unwrap_or_default();
                last.after(Micros(
                    self.last_length().0.saturating_mul(index + 1 - listed),
                ))
            }
        }
    }

    /// The start and the end of the window that contains `moment`.
    pub fn window(&self, moment: Timestamp) -> (Timestamp, Timestamp) {
        let position = self.position(moment);
        (self.boundary(position), self.boundary(position + 1))
    }

    fn last_length(&self) -> Micros {
        match self.boundaries.as_slice() {
            [.., before, last] => Micros(last.since(*before).0.max(1)),
            _ => Micros::from_secs(86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_between_boundaries_and_go_on_after_the_last() {
        let at = Timestamp::from_micros;
        let calendar = Calendar {
            boundaries: vec![at(100), at(200), at(350)],
            words: String::new(),
        };
        for (moment, window) in [
            (0, (0, 100)),
            (99, (0, 100)),
            (100, (100, 200)),
            (349, (200, 350)),
            (350, (350, 500)),
            (499, (350, 500)),
            (500, (500, 650)),
        ] {
            assert_eq!(
                calendar.window(at(moment)),
                (at(window.0), at(window.1)),
                "{moment}"
            );
        }
    }
}
