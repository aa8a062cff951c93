//! Whole gateways, as processes, on one MariaDB: what they grant together.

use crate::gateways::{example, share_exactly, share_one_burst};
use crate::servers::Maria;

#[test]
fn mysql_one_to_four_gateways_share_a_limit_exactly() {
    if !Maria::available() {
        return;
    }
    for count in 1..=4 {
        let server = Maria::start();
        share_exactly(
            &example("mysql", &server.url(), "rate = \"10/second\"\nburst = 10"),
            count,
        );
    }
}

#[test]
fn mysql_two_gateways_give_out_a_burst_once() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start();
    share_one_burst(&example(
        "mysql",
        &server.url(),
        "rate = \"1/hour\"\nburst = 20",
    ));
}
