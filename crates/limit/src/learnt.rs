//! What a limit has learnt of its upstream, so that a clean restart need not begin again.

use super::algorithm::Algorithm;
use super::time::{Micros, Timestamp};

/// What moves a limit between the file's numbers, as it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// How many places an adaptive concurrency limit has found.
    Places(Places),
    /// How far a rate that follows its upstream's health has fallen.
    Share(Share),
}

/// What an adaptive concurrency limit has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Places, in 1/1024.
    pub limit: u64,
    /// The time of an answer that did not queue, in 1/1024 microsecond; 0: none yet.
    pub unloaded: u64,
}

/// How far a rate has fallen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The factor in 1/1024, and the moment from which it climbs.
    pub factor: (u64, Timestamp),
    /// The most that the upstream's quota leaves, in 1/1024, and the moment until which that is so.
    pub bound: (u64, Timestamp),
    /// Nothing is granted before this moment.
    pub opens: Timestamp,
}

impl Learnt {
    /// The same on a clock that is `behind` the one it was learnt by.
    pub fn earlier(self, behind: Micros) -> Self {
        let earlier =
            |moment: Timestamp| Timestamp::from_micros(moment.as_micros().saturating_sub(behind.0));
        match self {
            Self::Places(places) => Self::Places(places),
            Self::Share(Share {
                factor,
                bound,
                opens,
            }) => Self::Share(Share {
                factor: (factor.0, earlier(factor.1)),
                bound: (bound.0, earlier(bound.1)),
                opens: earlier(opens),
            }),
        }
    }
}

impl Algorithm {
    /// What it has learnt of its upstream; `None`: it does not learn.
    pub fn learnt(&self) -> Option<Learnt> {
        match self {
            Self::InFlight(limit) => limit
                .ceiling()
                .map(|ceiling| Learnt::Places(ceiling.learnt())),
            _ => self.health().map(|health| Learnt::Share(health.learnt())),
        }
    }

    /// Goes on from what was learnt, within its own numbers, as of `now`. What another kind of limit learnt means nothing.
    pub fn relearn(&self, learnt: Learnt, now: Timestamp) {
        match (self, learnt) {
            (Self::InFlight(limit), Learnt::Places(places)) => {
                if let Some(ceiling) = limit.ceiling() {
                    ceiling.relearn(places);
                }
            }
            (_, Learnt::Share(share)) => {
                if let Some(health) = self.health() {
                    health.relearn(share, now);
                }
            }
            (_, Learnt::Places(_)) => {}
        }
    }
}
