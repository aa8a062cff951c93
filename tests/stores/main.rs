//! The shared stores against real servers, started here and stopped here: parity with the pure core, and faults.
//! `tests/STORES.md` says which test is about which fault; `coverage` checks that they are all there.

#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests measure real servers by real clocks"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod calendars;
mod ceilings;
mod corrections;
mod coverage;
mod deciding;
mod drains;
mod faults;
mod galera;
mod gateways;
mod half_open;
mod leases;
mod limits;
mod losses;
mod many_callers;
mod mysql_calls;
mod mysql_faults;
mod mysql_kills;
mod mysql_losses;
mod mysql_setup;
mod names;
mod outages;
mod overrides;
mod parity;
mod penalties;
mod postgres_encrypted;
mod postgres_faults;
mod postgres_losses;
mod postgres_rows;
mod postgres_setup;
mod process;
mod redis_addresses;
mod redis_audit;
mod redis_cluster;
mod redis_encrypted;
mod redis_faults;
mod redis_sentinel;
mod resets;
mod spanning;
mod sql_conflicts;
mod sql_faults;
mod suite;
mod unanswered;
mod unreachable;

use tollgate_testkit::servers;
