//! The order, on the text of a file and a clock that is moved by hand.

use std::cell::OnceCell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, HeaderValue, Method, Uri};

use super::*;
use tollgate_limit::Micros;
use tollgate_policy::{BodyFacts, Peer, Policy};
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// A file in force.
struct File {
    policy: Arc<Policy>,
    limiter: Limiter,
    clock: Clock,
}

/// What became of a request: the steps that were asked for, and the refusal.
#[derive(Debug)]
struct Outcome {
    steps: Vec<&'static str>,
    refusal: Option<Refusal>,
    account: Account,
}

fn file(text: &str) -> File {
    let secret = |_: &str| Some("0123456789abcdef0123456789abcdef".to_owned());
    let config = tollgate_config::Loader::new(&secret, START)
        .for_service()
        .text(text, "limits.toml");
    let policy = config.expect("a valid file").policy;
    let clock = Clock::manual(START);
    let shared = Arc::new(Backend::None);
    let limiter = Limiter::new(&policy.limits, shared, clock.clone(), ColdStart::Full);
    File {
        policy,
        limiter,
        clock,
    }
}

fn peer() -> Peer {
    Peer {
        address: Some([127, 0, 0, 1].into()),
        port: 0,
        tls: false,
        unnamed: false,
    }
}

impl File {
    fn send(&self, path: &'static str, headers: &[(&'static str, &str)]) -> Outcome {
        self.send_with(path, headers, |_| ())
    }

    /// Sends a request whose view is changed before its admission begins.
    fn send_with(
        &self,
        path: &'static str,
        headers: &[(&'static str, &str)],
        change: impl FnOnce(&mut RequestView<'_, '_>),
    ) -> Outcome {
        let (policy, limiter) = (&self.policy, &self.limiter);
        let mut fields = HeaderMap::new();
        for (name, value) in headers {
            fields.insert(*name, HeaderValue::from_str(value).expect("a value"));
        }
        let uri = Uri::from_static(path);
        let facts: OnceCell<BodyFacts> = OnceCell::new();
        let described = policy.describe(None, &Method::POST, &uri, &fields, peer(), None);
        let described = described.expect("a plain path");
        let now = self.clock.now();
        let mut view = RequestView::new(policy, &described, Some(0), now.as_micros() / 1_000_000);
        change(&mut view);
        let (mut admission, mut account) = (Admission::default(), Account::new(now));
        let mut steps = Vec::new();
        let refusal = loop {
            match admission.step(&mut account, &view, limiter, self.clock.now()) {
                Step::Read(_) => {
                    steps.push("read");
                    let facts = facts.get_or_init(|| BodyFacts::none(&policy.wanted));
                    view.read(Some(facts));
                }
                Step::Look => {
                    steps.push("look");
                    let look = pin!(admission.look(&mut account, limiter));
                    let polled = look.poll(&mut Context::from_waker(Waker::noop()));
                    assert_eq!(polled, Poll::Ready(()), "nothing waits");
                }
                Step::Draw => {
                    steps.push("draw");
                    let waits = admission.draw(&mut account, limiter);
                    assert!(waits.is_none(), "nothing waits");
                }
                Step::Wait => unreachable!("no reservation is noted"),
                Step::Hold(due) => {
                    steps.push("hold");
                    self.clock.advance(due.since(self.clock.now()));
                }
                Step::Admit => break None,
                Step::Refuse(refusal) => break Some(refusal),
            }
        };
        Outcome {
            steps,
            refusal,
            account,
        }
    }

    fn left(&self, limit: usize, outcome: &Outcome) -> u64 {
        assert_eq!(outcome.account.claims.charges()[limit].limit, limit);
        outcome.account.judged.outcomes()[limit]
            .standing
            .remaining()
    }
}

const BY_ADDRESS: &str = "[limits.a]\nrate = \"2/minute\"\nburst = 2\nper = \"address\"\n";

fn route(limits: &str) -> String {
    format!("[[routes]]\nmatch = \"/**\"\nlimits = [{limits}]\n")
}

#[test]
fn order_of_a_plain_request_is_one_draw() {
    let file = file(&(BY_ADDRESS.to_owned() + &route("\"a\"")));
    for left in [1, 0] {
        let outcome = file.send("/", &[]);
        assert_eq!(outcome.steps, ["draw"]);
        assert!(outcome.refusal.is_none(), "{outcome:?}");
        assert_eq!(file.left(0, &outcome), left);
    }
    let refused = file.send("/", &[]);
    assert!(matches!(refused.refusal, Some(Refusal::Denied)));
    let wait = refused.account.judged.retry_after();
    assert_eq!(wait, Some(Micros::from_secs(30)));
    // The wait is exact.
    file.clock.advance(Micros(30_000_000 - 1));
    assert!(file.send("/", &[]).refusal.is_some());
    file.clock.advance(Micros(1));
    assert!(file.send("/", &[]).refusal.is_none());
}

#[test]
fn order_without_a_route_draws_nothing() {
    let text = BY_ADDRESS.to_owned() + "[[routes]]\nmatch = \"/v1/**\"\nlimits = [\"a\"]\n";
    let outcome = file(&text).send("/v2", &[]);
    assert!(outcome.steps.is_empty());
    assert!(matches!(outcome.refusal, Some(Refusal::NoRoute)));
}

#[test]
fn order_charges_limits_by_address_before_an_identity_refuses() {
    let key = "[limits.k]\nrate = \"9/minute\"\nburst = 9\nper = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n";
    let file = file(&(BY_ADDRESS.to_owned() + key + &route("\"a\", \"k\"")));
    for left in [1, 0] {
        let outcome = file.send("/", &[]);
        assert_eq!(outcome.steps, ["draw"]);
        assert!(matches!(outcome.refusal, Some(Refusal::Unidentified(_))));
        assert_eq!(file.left(0, &outcome), left);
    }
    // Now the limit refuses first, and a caller with a key is refused by it, too.
    assert!(matches!(file.send("/", &[]).refusal, Some(Refusal::Denied)));
    let known = file.send("/", &[("x-api-key", "alice")]);
    assert!(matches!(known.refusal, Some(Refusal::Denied)));
}

#[test]
fn order_looks_before_it_verifies_a_signature() {
    let token = "[identities.user]\nkey = [\"jwt:sub\"]\nwhen_missing = \"refuse\"\n[identities.user.jwt]\n\
                 algorithms = [\"HS256\"]\nsecret = \"${SECRET}\"\n\
                 [limits.u]\nrate = \"9/minute\"\nburst = 9\nper = \"user\"\n";
    let file = file(&(BY_ADDRESS.to_owned() + token + &route("\"a\", \"u\"")));
    let header = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIiwiZXhwIjo0MDAwMDAwMDAwfQ";
    let forged = format!("Bearer {header}.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    for _ in 0..2 {
        let outcome = file.send("/", &[("authorization", &forged)]);
        assert_eq!(outcome.steps, ["look", "draw"]);
        assert!(matches!(outcome.refusal, Some(Refusal::Unidentified(_))));
    }
    // The limit by address refuses before the signature is verified, and the refusal is counted.
    let outcome = file.send("/", &[("authorization", &forged)]);
    assert_eq!(outcome.steps, ["look"]);
    assert!(matches!(outcome.refusal, Some(Refusal::Denied)));
    let counted = file.limiter.snapshot();
    assert_eq!(counted[0].count.refused, 1);
}

#[test]
fn order_of_a_request_that_is_turned_away_charges_it_first() {
    let file = file(&(BY_ADDRESS.to_owned() + &route("\"a\"")));
    let too_big = |view: &mut RequestView<'_, '_>| {
        view.turned_away = Some(StatusCode::PAYLOAD_TOO_LARGE);
    };
    for _ in 0..2 {
        let outcome = file.send_with("/", &[], too_big);
        assert!(matches!(outcome.refusal, Some(Refusal::TurnedAway)));
    }
    let outcome = file.send_with("/", &[], too_big);
    assert!(matches!(outcome.refusal, Some(Refusal::Denied)));
}

#[test]
fn order_holds_a_request_until_its_units_are_due() {
    let shaped =
        "[limits.a]\nrate = \"60/minute\"\nburst = 1\nper = \"everyone\"\nmax_wait = \"5s\"\n";
    let file = file(&(shaped.to_owned() + &route("\"a\"")));
    assert_eq!(file.send("/", &[]).steps, ["draw"]);
    let held = file.send("/", &[]);
    assert_eq!(held.steps, ["draw", "hold"]);
    assert_eq!(file.clock.now().since(START), Micros::from_secs(1));
}

#[test]
fn order_reads_the_body_only_where_it_decides() {
    let keyed = "[limits.b]\nrate = \"9/minute\"\nburst = 9\nper = \"json:user\"\nwhen_missing = \"use:address\"\n";
    let text = BY_ADDRESS.to_owned()
        + keyed
        + "[[routes]]\nmatch = \"/body\"\nlimits = [\"b\"]\n[[routes]]\nmatch = \"/**\"\nlimits = [\"a\"]\n";
    let file = file(&text);
    assert_eq!(file.send("/body", &[]).steps, ["read", "draw"]);
    assert_eq!(file.send("/other", &[]).steps, ["draw"]);
}
