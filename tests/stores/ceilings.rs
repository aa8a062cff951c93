//! Ceilings over HTTP: 256 clients call a language model over four gateways on one store. They never use a unit
//! beyond the budget, and nearly all of it, also while clients leave, the upstream breaks off and a gateway is killed.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_testkit::llm::crowd::{self, Crowd, Outcome};
use tollgate_testkit::llm::tariff::{LEASED, MONEY, TOKENS, Tariff};

use crate::gateways::Gateway;
use crate::servers::{Postgres, Redis, available, wait_until};

fn start(kind: &str, url: &str, upstream: &str, limit: &str) -> Gateway {
    Gateway::start_on(&format!(
        "[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"5s\"\n\
         key_secret_file = \"secret\"\n{limit}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"tokens\"]\n"
    ))
}

/// Runs the crowd. `cuts`: of a hundred calls so many are broken off by the client, and as many by the upstream, and a
/// gateway is killed.
fn spend(tariff: Tariff, kind: &str, url: &str, cuts: u64) {
    let model = crowd::model();
    let mut gateways: Vec<Gateway> = (0..4)
        .map(|_| start(kind, url, &model.url(), tariff.limit))
        .collect();
    let addresses = gateways
        .iter()
        .map(|gateway| SocketAddr::from(([127, 0, 0, 1], gateway.port)));
    let crowd = Crowd {
        gateways: addresses.collect(),
        clients: 256,
        cuts,
        seed: 7 + cuts,
        tariff,
    };
    // Until the whole budget is reserved, no call ends.
    model.hold();
    let outcome = crowd.run(|outcome: &Outcome| {
        wait_until("the budget is reserved", || {
            outcome.refused.load(Ordering::SeqCst) > 0
        });
        let reserved = tariff.reserved_by(&model);
        assert!(reserved <= tariff.budget, "{reserved} are reserved");
        model.release();
        if cuts > 0 {
            wait_until("calls have ended", || {
                outcome.whole.load(Ordering::SeqCst) > 100
            });
            gateways[3].process.kill();
        }
    });
    // Leases end within 1.3 s by the store's clock; the question before may have brought one.
    let charged = || {
        std::thread::sleep(Duration::from_millis(1500));
        crowd::charged(&tariff, crowd.gateways[0])
    };
    crowd::check(&model, &outcome, &tariff, charged, cuts == 0);
}

#[test]
fn ceiling_on_redis_is_never_exceeded_and_nearly_all_of_it_is_usable() {
    if available("redis-server") {
        let server = Redis::start();
        spend(TOKENS, "redis", &server.url(), 0);
    }
}

#[test]
fn ceiling_on_redis_holds_through_cuts_and_a_killed_gateway() {
    if available("redis-server") {
        let server = Redis::start();
        spend(TOKENS, "redis", &server.url(), 3);
    }
}

#[test]
fn reservations_of_leased_units_on_redis_hold_through_cuts_and_a_killed_gateway() {
    if available("redis-server") {
        let server = Redis::start();
        spend(LEASED, "redis", &server.url(), 3);
    }
}

#[test]
fn reservations_of_leased_units_on_redis_are_never_exceeded_and_none_is_lost() {
    if available("redis-server") {
        let server = Redis::start();
        spend(LEASED, "redis", &server.url(), 0);
    }
}

#[test]
fn ceiling_on_postgres_is_never_exceeded_and_nearly_all_of_it_is_usable() {
    if Postgres::available() {
        let server = Postgres::start_with(&[]);
        spend(TOKENS, "postgres", &server.url(), 0);
    }
}

#[test]
fn ceiling_on_postgres_holds_through_cuts_and_a_killed_gateway() {
    if Postgres::available() {
        let server = Postgres::start_with(&[]);
        spend(TOKENS, "postgres", &server.url(), 3);
    }
}

#[test]
fn ceiling_of_money_on_postgres_is_never_exceeded_by_a_micro_unit() {
    if Postgres::available() {
        let server = Postgres::start_with(&[]);
        spend(MONEY, "postgres", &server.url(), 0);
    }
}
