//! Tells when a key has used a percentage of its units (`events` of a limit): once for each window, on all
//! gateways that share the bucket.
//!
//! Workers note which buckets were spent from. Once a second their use is read, and the first gateway that
//! finds a percentage reached takes the event, by a draw from a bucket under a key beside the one that it
//! is about. While the store does not respond no event is taken: the next settlement finds it, or it is lost
//! with the window.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::Options;
use super::events::Kind;
use super::events::changes::Bucket;
use super::live::{Live, in_force};
use crate::moments::moment;
use tollgate_gateway::refusals::Spent;
use tollgate_limit::{Claim, Timestamp, key, words};
use tollgate_policy::Rule;

#[derive(Debug, Default)]
struct Seen {
    /// The highest percentage that was reported of each bucket, and its window: what is not here is asked for again.
    highest: HashMap<Bucket, (Timestamp, u8)>,
    /// The events of this look.
    events: usize,
}

pub(super) async fn watch(options: Arc<Options>) {
    let Some(refusals) = &options.live.refusals else {
        return;
    };
    let mut seen = Seen::default();
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for spent in refusals.take_spent() {
            if options
                .live
                .tell_thresholds(&spent, &mut seen)
                .await
                .is_none()
            {
                tracing::debug!(limit = &*spent.limit.name, "what was used is not known");
            }
        }
        let more = std::mem::take(&mut seen.events).saturating_sub(LOGGED_MAX);
        if more > 0 {
            tracing::info!("{more} more percentages of limits were used by keys");
        }
    }
}

impl Live {
    /// Tells of what was used of one bucket; `None`: that is not known.
    async fn tell_thresholds(&self, spent: &Spent, seen: &mut Seen) -> Option<()> {
        let (policy, limiter) = {
            let current = self.current.load();
            (Arc::clone(&current.policy), current.limiter.clone())
        };
        let limit = in_force(&limiter, &spent.limit)?;
        let bucket = (Arc::clone(&limit.name), spent.key.clone());
        let before = seen
            .highest
            .get(&bucket)
            .filter(|(end, _)| *end == spent.window_end);
        let before = before.map_or(0, |(_, percent)| *percent);
        if limit.events.iter().all(|percent| *percent <= before) {
            return Some(());
        }
        // Under the numbers of an override, too.
        let whole = limiter.peek(Claim::new(limit, &spent.key, 0)).await.ok()?;
        let mut rules = policy.rules.iter();
        let rule = rules.find(|rule| rule.name == limit.name);
        let used = if rule.is_some_and(Rule::reserves) {
            let counted = key::beside(&spent.key, spent.window_end, key::USED);
            let peeked = limiter.peek(Claim::new(limit, &counted, 0)).await.ok()?;
            i128::from(limit.algorithm.capacity()) - i128::from(peeked.standing.left)
        } else if whole.standing.window_end == spent.window_end {
            i128::from(whole.capacity) - i128::from(whole.standing.left)
        } else {
            return Some(());
        };
        let of = whole.capacity;
        let used = u64::try_from(used).unwrap_or(0);
        let is_reached =
            |percent: u8| u128::from(used) * 100 >= u128::from(of) * u128::from(percent);
        for percent in limit.events.iter().copied() {
            if percent <= before || !is_reached(percent) {
                continue;
            }
            let event = key::beside(&spent.key, spent.window_end, &[percent]);
            if limiter.is_first(limit, &event).await.ok()? {
                seen.events += 1;
                let is_logged = seen.events <= LOGGED_MAX;
                self.tell_threshold(spent, percent, [used, of], is_logged);
            }
            if seen.highest.len() >= HIGHEST_MAX {
                seen.highest.clear();
            }
            let reported = (spent.window_end, percent);
            seen.highest.insert(bucket.clone(), reported);
        }
        Some(())
    }

    fn tell_threshold(&self, spent: &Spent, percent: u8, [used, of]: [u64; 2], is_logged: bool) {
        let (limit, key) = (&spent.limit, self.key(&spent.key));
        let currency = limit.currency.as_deref();
        if is_logged {
            tracing::info!(
                limit = &*limit.name,
                key = key.words(),
                "{percent} % of the limit are used: {} of {}",
                words::units(used, currency),
                words::units(of, currency)
            );
        }
        // Without a currency the two numbers are units, with one they are its millionths.
        let event = json!({
            "limit": &*limit.name, "tier": limit.tier.as_deref(), "key": key.key, "name": key.name,
            "percent": percent, "used": used, "of": of, "currency": currency,
            "until": moment(spent.window_end),
        });
        self.events.emit(Kind::Threshold, &event);
    }
}

/// The time between two looks at what was used.
const EVERY: Duration = Duration::from_secs(1);

/// The most events of one look that are logged one by one, so that callers cannot fill a disk.
const LOGGED_MAX: usize = 20;

/// The buckets of which it is remembered what was reported.
const HIGHEST_MAX: usize = 4_096;
