//! Looks for changes a few times a second while the events have a reader, and makes the figures.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::super::Options;
use super::super::figures::{LimitFigures, PerSecond};
use super::changes::Changes;
use tollgate_limit::Timestamp;

/// Looks for changes as long as it is polled, while there is a reader.
pub(in crate::admin) async fn watch(options: Arc<Options>) {
    let events = &options.live.events;
    loop {
        events.read().await;
        events.begin();
        let (mut changes, mut rates) = (Changes::default(), Rates::default());
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A page that is loaded again, or connects again, misses nothing.
        let mut unread = 0;
        while unread <= LINGER {
            ticks.tick().await;
            unread = if events.readers() > 0 { 0 } else { unread + 1 };
            let (mut figures, observed) = options.observe().await;
            changes.compare(&figures, &observed, &options.live);
            if unread == 0 {
                rates.add(observed.at, &mut figures.limits);
                events.show(&figures);
            }
        }
        events.pause();
    }
}

/// The counters of the last moments.
#[derive(Debug, Default)]
struct Rates(VecDeque<(Timestamp, Vec<LimitFigures>)>);

impl Rates {
    /// Works out the rates of `limits`.
    fn add(&mut self, at: Timestamp, limits: &mut [LimitFigures]) {
        let now = limits.to_vec();
        if let Some((from, before)) = self.0.front() {
            let micros = at.since(*from).0;
            for (place, limit) in limits.iter_mut().enumerate() {
                let before = before.get(place).filter(|before| before.is_of(limit));
                limit.per_second = before
                    .filter(|_| micros > 0)
                    .map(|before| PerSecond::between(before, limit, micros));
            }
        }
        if self.0.len() >= SPAN {
            self.0.pop_front();
        }
        self.0.push_back((at, now));
    }
}

const EVERY: Duration = Duration::from_millis(500);

/// How often they are looked for after the last reader has left.
const LINGER: u32 = 30;

/// Rates are of the time between this many looks.
const SPAN: usize = 4;
