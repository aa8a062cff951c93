//! The ring keeps what fits, and finds it by the id that a client was received.

use tollgate_policy::identity::address::AddressPolicy;
use tollgate_policy::{PolicyParts, Reset, Responses};

use super::*;

fn policy() -> Arc<Policy> {
    let parts = PolicyParts {
        address: AddressPolicy::default(),
        identities: Vec::new(),
        rules: Vec::new(),
        upstreams: Vec::new(),
        domains: tollgate_policy::Domains::default(),
        routes: Vec::new(),
        responses: Responses {
            headers: Vec::new(),
            reset: Reset::Seconds,
            refusal: None,
        },
        egress: false,
        keeps_slashes: false,
        body: tollgate_policy::BodySettings::default(),
    };
    Arc::new(Policy::build(parts).expect("an empty policy is valid"))
}

fn keep(writer: &RefusalWriter, policy: &Arc<Policy>, id: u64, path: &str) {
    let refused = RefusedRequest {
        path: path.to_owned(),
        ..refused(id)
    };
    writer.keep(policy, refused, &Claims::default(), None);
}

fn refused(id: u64) -> RefusedRequest {
    RefusedRequest {
        id,
        trace: None,
        at: Timestamp::from_micros(id),
        status: StatusCode::TOO_MANY_REQUESTS,
        reason: "denied",
        method: "GET".to_owned(),
        host: "api.example".to_owned(),
        path: "/".to_owned(),
        client: None,
        route: None,
        caller: None,
        tier: None,
        target: 0,
        limits: Vec::new(),
        retry_after: None,
    }
}

fn found(refusals: &Refusals, id: u64) -> Option<Refusal> {
    refusals.find(DecisionId::of(id).as_str())
}

#[test]
fn refusals_beyond_the_budget_make_the_oldest_go() {
    let refusals = Refusals {
        budget: 64 << 10,
        ..Refusals::new(1)
    };
    let (writer, policy) = (refusals.writer(), policy());
    let long = "/".repeat(PATH_MAX);
    for id in 0..10_000 {
        keep(&writer, &policy, id, &long);
    }
    let (count, oldest) = refusals.kept();
    assert!((40..=120).contains(&count), "{count} in 64 KiB");
    let last = found(&refusals, 9_999).expect("the last one is kept");
    assert_eq!(
        (last.host.as_str(), last.path.len()),
        ("api.example", PATH_MAX)
    );
    let oldest = oldest.expect("there are some").as_micros();
    assert!(found(&refusals, oldest).is_some(), "the oldest is found");
    assert!(
        found(&refusals, oldest - 1).is_none(),
        "its predecessor is gone"
    );
    assert_eq!(writer.kept.lock().ring.kept().0, count);
}

#[test]
fn refusals_of_every_worker_are_found() {
    let refusals = Refusals::new(2);
    let policy = policy();
    let writers = [refusals.writer(), refusals.writer()];
    keep(&writers[0], &policy, 1, "/one");
    keep(&writers[1], &policy, 2, "/two");
    assert_eq!(
        found(&refusals, 1).map(|one| one.path.clone()).as_deref(),
        Some("/one")
    );
    assert_eq!(
        found(&refusals, 2).map(|two| two.path.clone()).as_deref(),
        Some("/two")
    );
    assert!(found(&refusals, 3).is_none());
}

#[test]
fn refusals_of_a_policy_replaced_twice_are_forgotten() {
    let refusals = Refusals::new(1);
    let writer = refusals.writer();
    let policies = [policy(), policy(), policy()];
    keep(&writer, &policies[0], 1, "/");
    keep(&writer, &policies[1], 2, "/");
    assert!(found(&refusals, 1).is_some());
    keep(&writer, &policies[2], 3, "/");
    assert!(found(&refusals, 1).is_none());
    assert!(found(&refusals, 2).is_some() && found(&refusals, 3).is_some());
    assert_eq!(Arc::strong_count(&policies[0]), 1, "the policy is let go");
}

#[test]
fn refusals_of_two_policies_in_turn_are_all_kept() {
    let refusals = Refusals::new(1);
    let writer = refusals.writer();
    let policies = [policy(), policy()];
    // Requests that began before a reload are refused after newer ones.
    for id in 0..6 {
        keep(&writer, &policies[usize::from(id % 2 == 1)], id, "/");
    }
    assert!((0..6).all(|id| found(&refusals, id).is_some()));
    keep(&writer, &policy(), 6, "/");
    let kept: Vec<u64> = (0..7)
        .filter(|id| found(&refusals, *id).is_some())
        .collect();
    assert_eq!(
        kept,
        [1, 3, 5, 6],
        "those of the policy before last are forgotten"
    );
}

#[test]
fn refusals_example_has_the_trace_of_its_own_request() {
    let refusals = Refusals {
        budget: 64 << 10,
        ..Refusals::new(1)
    };
    let (writer, policy) = (refusals.writer(), policy());
    // More refusals than the ring has room for; every third belongs to a trace.
    for id in 1..=2_000_u64 {
        let trace = format!("00-{id:032x}-00000000000000aa-01");
        let trace = (id % 3 == 0).then(|| TraceParent::parse(trace.as_bytes()).expect("a trace"));
        let refused = RefusedRequest {
            trace,
            ..refused(id)
        };
        writer.keep(&policy, refused, &Claims::default(), None);
        let latest = refusals.latest();
        let (_, exemplar) = latest.by_reason().next().expect("one reason");
        let mut expected = vec![("decision_id", DecisionId::of(id).as_str().to_owned())];
        if id % 3 == 0 {
            expected.push(("trace_id", format!("{id:032x}")));
        }
        assert_eq!(exemplar.labels, expected, "refusal {id}");
    }
}
