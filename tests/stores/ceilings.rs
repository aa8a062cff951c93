//! Ceilings over HTTP: 256 clients call a language model over four gateways on one store. They never use a unit
//! beyond the budget, and nearly all of it, also while clients leave, the upstream breaks off and a gateway is killed.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_testkit::llm::crowd::{self, Crowd, Outcome};
use tollgate_testkit::llm::tariff::{LEASED, MONEY, TOKENS, Tariff};

use crate::gateways::{Gateway, store};
use crate::servers::{Server, wait_until};

fn start(server: &Server, place: usize, upstream: &str, limit: &str) -> Gateway {
    let store = store(server, place);
    Gateway::start_on(&format!(
        "{store}{limit}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"tokens\"]\n"
    ))
}

/// Runs the crowd. `cuts`: of a hundred calls so many are broken off by the client, and as many by the upstream, and a
/// gateway is killed.
fn spend(tariff: Tariff, server: &Server, cuts: u64) {
    let model = crowd::model();
    let mut gateways: Vec<Gateway> = (0..4)
        .map(|place| start(server, place, &model.url(), tariff.limit))
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

/// Nearly all of it is usable.
pub fn is_never_exceeded(server: Server) {
    spend(TOKENS, &server, 0);
}

pub fn holds_through_cuts_and_a_killed_gateway(server: Server) {
    spend(TOKENS, &server, 3);
}

pub fn of_money_is_never_exceeded_by_a_micro_unit(server: Server) {
    spend(MONEY, &server, 0);
}

/// None of the leased units is lost.
pub fn of_leased_units_is_never_exceeded(server: Server) {
    spend(LEASED, &server, 0);
}

pub fn of_leased_units_holds_through_cuts_and_a_killed_gateway(server: Server) {
    spend(LEASED, &server, 3);
}
