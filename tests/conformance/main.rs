//! One suite over every store: whatever remembers the buckets, the verdicts are the core's.
//!
//! A store takes part by giving a [`Subject`]: how to make it, and how to move its clock. Each line of `suite!` runs all of
//! [`suite`] on one. A store that is not there (no URL in the environment) is skipped with a printed notice.

mod subject;
mod suite;

mod local;
mod shared;

use tollgate_testkit::{random, servers};

/// Every test of the suite for one subject.
macro_rules! suite {
    ($name:ident, $subject:ty) => {
        mod $name {
            suite!(@tests $subject:
                every_algorithm_answers_as_the_core_does,
                several_limits_are_charged_all_or_none,
                settlements_land_as_in_the_core,
                a_reset_fills_a_bucket_by_every_algorithm,
                what_was_drawn_before_a_reset_returns_nothing,
                overrides_grant_no_more_than_their_numbers,
                adversary_gets_no_more_than_the_largest_numbers,
                raise_of_a_used_up_window_helps_at_once_and_is_told_its_end,
                units_are_given_back_only_to_their_window,
                generations_and_tiers_of_a_limit_share_its_buckets,
                calendar_windows_are_the_cores_however_deep_the_debt_and_long_the_wait,
                a_refused_request_passes_exactly_when_told,
                a_refusal_by_one_limit_leaves_the_others_as_they_were,
                the_order_of_claims_does_not_matter,
                a_shadow_limit_never_vetoes_and_never_goes_into_debt,
                a_place_in_flight_is_free_again_once_released,
                a_peek_charges_nothing,
                keys_and_limits_have_buckets_of_their_own,
                a_clock_that_steps_back_and_forward_finds_buckets_as_the_core_does,
                a_clock_put_back_by_an_hour_delays_no_caller_for_it,
                a_burst_lowered_and_raised_again_leaves_what_was_not_drawn_from,
                reloads_leave_a_bucket_in_the_numbers_it_was_drawn_under,
                no_edit_of_a_limit_refills_a_bucket,
                the_extremes_neither_wrap_nor_round,
            );
        }
    };
    (@tests $subject:ty: $($test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                tokio::task::LocalSet::new().block_on(&runtime, crate::suite::$test::<$subject>());
            }
        )*
    };
}

suite!(on_the_local_store, crate::local::Local);
suite!(on_redis, crate::shared::Shared<crate::shared::Redis>);
suite!(on_postgres, crate::shared::Shared<crate::shared::Postgres>);
suite!(on_mysql, crate::shared::Shared<crate::shared::Mysql>);
suite!(on_views, crate::shared::Shared<crate::shared::Views>);
suite!(
    on_serializable,
    crate::shared::Shared<crate::shared::Serializable>
);
suite!(
    on_a_spanning_database,
    crate::shared::Shared<crate::shared::Proxy>
);
suite!(on_galera, crate::shared::Shared<crate::shared::Galera>);
