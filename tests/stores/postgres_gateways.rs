//! Whole gateways, as processes, on one PostgreSQL: what they grant together.

use crate::gateways::{example, share_exactly, share_one_burst};
use crate::servers::Postgres;

#[test]
fn one_to_four_gateways_of_the_example_share_a_limit_exactly() {
    if !Postgres::available() {
        return;
    }
    for count in 1..=4 {
        let server = Postgres::start_with(&[]);
        share_exactly(
            &example(
                "postgres",
                &server.url(),
                "rate = \"10/second\"\nburst = 10",
            ),
            count,
        );
    }
}

#[test]
fn two_gateways_of_the_example_give_out_a_burst_once() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    share_one_burst(&example(
        "postgres",
        &server.url(),
        "rate = \"1/hour\"\nburst = 20",
    ));
}
