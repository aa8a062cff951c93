//! What stores in SQL databases share: the course of a call and of housekeeping, the integers of a
//! bucket's row, the decision of a batch on locked rows by the pure core, and the rows that are no
//! buckets. The statements themselves, and how they are sent, belong to each database.

pub(crate) mod database;
pub(crate) mod decide;
pub(crate) mod fields;
mod leased;
pub(crate) mod mark;

use std::fmt::{Display, Write as _};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use self::database::{Base, Database};
#[cfg(any(test, feature = "simulated"))]
pub(crate) use self::leased::forget as forget_leases;
use super::batch::{LaneState, Servers, lane};
use super::lease::Leases;
use super::options::RemoteOptions;
use super::remote::RemoteStore;
use tollgate_limit::Micros;

/// A bucket's row is kept this long after the bucket is full.
pub(crate) const ROW_MARGIN: i64 = 1_000_000;
/// The timeout of a connection attempt; requests do not wait for it.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The time an abandoned session has to end cleanly.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// The rows of a swept page: requests wait for at most one page.
pub(crate) const PAGE: i64 = 500;
/// Pages swept at a time: so many, and more while it pays, for no longer than this.
const SWEEPS: usize = 10;
const SWEEPS_MAX: usize = 40;
const SWEEP_WITHIN: Micros = Micros(250_000);
/// The demand from which a bucket is leased. A lease is a transaction, while requests without one
/// share a call of the function, so for less demand a lease costs more than it saves (measured in
/// PostgreSQL with 8: throughput for 1000 callers was half of that without leases).
pub(crate) const LEASED_LEAST: u64 = 24;
/// A transaction may be idle for as long as its requests wait for it, within these bounds. A shorter
/// timeout would end it while a gateway is only slow.
const IDLE_LEAST: Micros = Micros::from_secs(1);
const IDLE_MOST: Micros = Micros::from_secs(10);

/// Starts the thread of a store in an SQL database; `link` makes its link.
pub(crate) fn start<D: Database + Send>(
    thread: &str,
    options: RemoteOptions,
    link: impl FnOnce(Base) -> Result<D, String>,
) -> std::io::Result<RemoteStore> {
    let clock = options.clock.clone();
    let mut shared = LaneState::new(clock.clone(), options.answer_within, options.local_refusals);
    shared.leases = Some(Arc::new(Leases::new(clock, false).with_least(LEASED_LEAST)));
    shared.mind_long_quotas(options.long_quotas);
    let shared = Arc::new(shared);
    let key_secret = options.key_secret.clone();
    let link = link(Base::new(options, shared.clone())).map_err(std::io::Error::other)?;
    let servers = Servers::one(shared.clone());
    RemoteStore::start(thread, &key_secret, servers, || lane(shared, Rc::new(link)))
}

pub(crate) fn idle_within(answer_within: Micros) -> Micros {
    answer_within.clamp(IDLE_LEAST, IDLE_MOST)
}

pub(crate) fn joined(items: impl IntoIterator<Item = impl Display>) -> String {
    let mut text = String::new();
    for item in items {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{item}");
    }
    text
}

/// The pause before retry number `attempt` of a call that conflicted with another one.
pub(crate) fn pause_before(attempt: u32) -> Duration {
    Duration::from_micros(fastrand::u64(200..1_000 << attempt.min(4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_transaction_may_be_idle_as_long_as_its_requests_wait() {
        for (answer_within, idle) in [
            (Micros(50_000), Micros::from_secs(1)),
            (Micros(2_500_000), Micros(2_500_000)),
            (Micros::from_secs(60), Micros::from_secs(10)),
        ] {
            assert_eq!(idle_within(answer_within), idle);
        }
    }
}
