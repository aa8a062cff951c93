//! Ceilings of one gateway with local buckets, over HTTP: 256 clients call a language model.

use std::sync::atomic::Ordering;

use crate::harness::llm::crowd::{self, Crowd, Outcome};
use crate::harness::llm::tariff::{MONEY, TOKENS, Tariff};
use crate::harness::{Gateway, eventually};

/// Runs the crowd; of a hundred calls `cuts` are broken off by the client, and as many by the upstream.
fn spend(tariff: Tariff, cuts: u64) {
    let model = crowd::model();
    let gateway = Gateway::start(&format!(
        "{}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        tariff.limit,
        model.url()
    ));
    let crowd = Crowd {
        gateways: vec![gateway.address()],
        clients: 256,
        cuts,
        seed: 70 + cuts,
        tariff,
    };
    model.hold();
    let outcome = crowd.run(|outcome: &Outcome| {
        eventually("the budget is reserved", || {
            outcome.refused.load(Ordering::SeqCst) > 0
        });
        let reserved = tariff.reserved_by(&model);
        assert!(reserved <= tariff.budget, "{reserved} are reserved");
        model.release();
    });
    let charged = || crowd::charged(&tariff, gateway.address());
    crowd::check(&model, &outcome, &tariff, charged, cuts == 0);
}

#[test]
fn ceiling_of_local_buckets_is_never_exceeded_and_nearly_all_of_it_is_usable() {
    spend(TOKENS, 0);
}

#[test]
fn ceiling_of_local_buckets_holds_while_clients_and_the_upstream_break_off() {
    spend(TOKENS, 3);
}

#[test]
fn ceiling_of_money_in_local_buckets_is_never_exceeded_by_a_micro_unit() {
    spend(MONEY, 0);
}

#[test]
fn ceiling_of_money_in_local_buckets_holds_while_clients_and_the_upstream_break_off() {
    spend(MONEY, 3);
}
