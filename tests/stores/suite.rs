//! The suite of the shared stores: what is the same for each, on every kind of server.
//!
//! A line is a module with one test for each kind of its list: `suite::hot_total_is_granted_in_the_process::galera`. The
//! first list has every kind; each of the others says why it lacks some.

use crate::servers::{Server, StoreKind};
use crate::{
    calendars, ceilings, corrections, deciding, drains, gateways, half_open, leases, losses,
    many_callers, names, outages, overrides, parity, penalties, resets, spanning, sql_conflicts,
    sql_faults, unanswered,
};

macro_rules! suite {
    ($($kinds:tt { $($name:ident: $test:expr,)* })*) => {
        $($(mod $name { suite!(@on $kinds $test); })*)*
    };
    (@on [$($kind:ident)*] $test:expr) => {
        use super::*;
        $(
            #[test]
            fn $kind() {
                run(StoreKind::named(stringify!($kind)), $test);
            }
        )*
    };
}

/// A test of whole gateways, which waits for them itself, or of a store, which is polled.
trait Test<Kind> {
    fn run(self, server: Server);
}

struct OfGateways;
struct OfStores;

impl<F: FnOnce(Server)> Test<OfGateways> for F {
    fn run(self, server: Server) {
        self(server);
    }
}

impl<F: AsyncFnOnce(Server)> Test<OfStores> for F {
    fn run(self, server: Server) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(self(server));
    }
}

fn run<Kind>(kind: StoreKind, test: impl Test<Kind>) {
    if let Some(server) = kind.start_durable() {
        test.run(server);
    }
}

suite! {
    [redis postgres mysql views serializable proxy galera] {
        budget_is_never_exceeded_and_nearly_all_of_it_is_usable: ceilings::is_never_exceeded,
        budget_holds_through_cuts_and_a_killed_gateway: ceilings::holds_through_cuts_and_a_killed_gateway,
        call_under_way_at_a_reset_grants_once: resets::call_under_way_grants_once,
        draw_whose_client_leaves_is_given_back: unanswered::client_leaves,
        draw_that_was_refused_for_want_of_a_response_is_given_back: unanswered::refused_in_time,
        emptied_under_load_refills_no_bucket: drains::emptied_under_load_refills_no_bucket,
        first_request_after_a_close_is_decided_over_a_new_connection: unanswered::first_request_after_a_close,
        frozen_server_is_answered_for_in_time_and_found_again: sql_faults::survives_a_pause,
        gateway_whose_clock_is_days_away_shares_windows: calendars::shares_windows_with_a_clock_days_away,
        gateway_with_leases_that_is_killed_takes_nothing_along_for_good: gateways::one_that_leases_is_killed,
        gateway_with_leases_that_stops_returns_them: gateways::one_that_leases_stops,
        gateways_started_together_on_an_empty_database_make_its_tables_without_an_error: sql_faults::makes_its_tables_once,
        gateways_started_under_load_grant_nothing_from_shares: outages::starts_under_load,
        gateways_that_decide_for_others_admit_one_burst: deciding::admit_one_burst_together,
        gateways_whose_clocks_differ_never_grant_more: losses::clocks_that_differ_grant_no_more,
        half_open_connection_is_replaced_while_it_is_suspected: half_open::connection_is_replaced,
        hot_total_is_granted_in_the_process: leases::are_used_in_the_process,
        killed_server_is_answered_for_in_time_and_found_again: sql_faults::survives_a_crash,
        lease_beside_a_gateway_that_does_not_never_grants_more: leases::lease_beside_one_that_does_not,
        lease_beside_a_limit_that_refuses_loses_no_unit: leases::loses_no_unit,
        leases_under_changing_numbers_grant_no_more_than_the_largest: leases::grant_no_more_than_the_largest,
        many_callers_are_kept_apart: many_callers::keeps_many_callers_apart,
        many_requests_with_several_limits_are_charged_all_or_none: many_callers::charges_all_or_none,
        name_of_a_store_is_that_of_its_data_and_the_secret: names::is_that_of_the_data_and_the_secret,
        one_to_four_gateways_share_a_limit_exactly: gateways::one_to_four_gateways_share_exactly,
        outage_of_the_network_grants_one_burst_more_at_most: outages::of_the_network_grants_one_burst_more_at_most,
        outage_that_keeps_the_data_grants_one_burst_more_at_most: outages::of_the_server_grants_one_burst_more_at_most,
        override_changed_on_two_gateways_at_once_records_what_it_replaced: overrides::records_what_it_replaced,
        override_is_recorded_once: overrides::is_recorded_once,
        override_reaches_the_other_gateway: |server: Server| overrides::reaches_the_others(server, ""),
        override_reaches_gateways_that_lease: |server: Server| overrides::reaches_the_others(server, "lease = true\n"),
        override_stays_while_the_store_is_away_and_after_a_restart: overrides::stays_while_the_store_is_away,
        parity_with_the_pure_core: parity::decides_as_the_pure_core,
        penalty_is_of_each_gateway_and_lifted_on_all: penalties::is_of_each_gateway,
        reload_raises_the_rate_of_buckets_that_are_used_up: penalties::reload_reaches_exhausted_buckets,
        reset_reaches_the_other_gateway: resets::reaches_the_others,
        settlements_during_a_pause_of_the_server_are_made_once: corrections::survive_a_pause,
        several_limits_in_any_order_are_all_charged_or_none_and_never_deadlock: sql_conflicts::charges_all_or_none,
        store_that_closes_gives_its_leases_back_at_once: leases::are_given_back_at_a_close,
        two_gateways_give_out_a_burst_once: gateways::two_gateways_give_out_a_burst_once,
        two_stores_share_one_limit_exactly_under_storm_whatever_the_default_isolation: sql_conflicts::shares_one_limit_exactly,
    }

    // Redis has no sessions that wait for a lock, and sweeps by itself.
    [postgres mysql views serializable proxy galera] {
        caller_who_leaves_in_the_middle_leaves_no_lock: sql_faults::leaves_no_lock,
        conflicts_are_tried_again_within_the_deadline_and_charge_once: sql_conflicts::tries_again,
        deadlock_with_a_stranger_costs_time_and_nothing_else: sql_conflicts::survives_a_deadlock,
        full_buckets_are_swept_and_others_stay: sql_faults::sweeps_full_buckets,
        settlements_committed_after_they_were_given_up_are_made_once: corrections::committed_late,
        settlements_of_a_session_killed_in_its_commit_are_made_once: corrections::killed_in_commit,
        settlements_while_the_table_is_locked_are_made_once: corrections::survive_a_lock,
        what_is_asked_after_a_request_was_given_up_is_not_taken_back_with_it: sql_conflicts::keeps_what_is_asked_later,
    }

    // Redis, PostgreSQL and MariaDB lose data in ways of their own (`drains`), and Galera's nodes have one another.
    [views serializable proxy] {
        deleted_under_drain_refills_no_bucket: |server: Server| spanning::emptied_under_drain_refills_no_bucket(server, "DELETE FROM tollgate_buckets"),
        restored_under_drain_refills_no_bucket: spanning::restored_under_drain_refills_no_bucket,
        truncated_under_drain_refills_no_bucket: |server: Server| spanning::emptied_under_drain_refills_no_bucket(server, "TRUNCATE tollgate_buckets"),
    }

    // The transaction of databases that span machines, of Galera too, has two replies: nothing was
    // charged if the first is lost, and the tests of settlements lose the second.
    [redis postgres mysql] {
        lost_reply_counts_as_charged_and_is_never_sent_twice: losses::lost_reply_counts_as_charged,
    }

    // MariaDB publishes nothing, and databases that span machines have no LISTEN.
    [redis postgres] {
        override_is_published: overrides::is_published,
    }

    // These take long, and differ from those above in what the gateways do, not in what the store does.
    [redis] {
        budget_of_leased_units_holds_through_cuts_and_a_killed_gateway: ceilings::of_leased_units_holds_through_cuts_and_a_killed_gateway,
        budget_of_leased_units_is_never_exceeded_and_none_is_lost: ceilings::of_leased_units_is_never_exceeded,
    }
    [postgres] {
        budget_of_money_is_never_exceeded_by_a_micro_unit: ceilings::of_money_is_never_exceeded_by_a_micro_unit,
    }
    [redis mysql] {
        override_helps_a_refused_customer_at_night: overrides::helps_a_refused_customer,
    }
}
