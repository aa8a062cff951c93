//! What overrides and penalties ask of a store: a bucket that is drawn under other numbers for a while, and a bucket that
//! blocks a key.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{
    Algorithm, Change, Claim, Kind, Limit, Micros, Penalty, Rate, Settlement, Timestamp, Verdict,
};
use tollgate_store::Store;

use crate::random::{self, START};
use crate::subject::{Subject, caller, limit, terms};

const MINUTE: Micros = Micros::from_secs(60);

/// A key is blocked from the charge on, exactly as long as the penalty says, whether or not it is asked and however many
/// gateways charge; a reset lifts the block.
pub(crate) async fn a_penalty_blocks_a_key_exactly_until_its_end<S: Subject>() {
    let now = Timestamp::from_micros(START);
    let algorithm = Algorithm::new(&terms::<S>(Kind::TokenBucket, 10, MINUTE)).expect("good");
    let of = Limit {
        penalty: Some(Penalty {
            refusals: 20,
            span: MINUTE,
            block: Micros::from_secs(600),
        }),
        ..Limit::clone(&limit::<S>(0, algorithm))
    };
    let bucket = Arc::new(of.penalty_bucket().expect("it has a penalty"));
    let Some(mut subject) = S::new(&[Arc::clone(&bucket)], now).await else {
        return;
    };
    let [bad, good] = ["bad", "good"].map(caller);
    assert_eq!(wait(&subject, &bucket, &bad).await, None);
    for round in 0..2 {
        let began = now.after(Micros(round * 600_000_000));
        settle(&subject, &bucket, &bad, Penalty::BLOCK).await;
        assert_eq!(
            wait(&subject, &bucket, &bad).await,
            Some(Micros::from_secs(600))
        );
        assert_eq!(wait(&subject, &bucket, &good).await, None);
        subject.set_time(began.after(Micros::from_secs(100)));
        settle(&subject, &bucket, &bad, Penalty::BLOCK).await;
        assert_eq!(
            wait(&subject, &bucket, &bad).await,
            Some(Micros::from_secs(500))
        );
        subject.set_time(began.after(Micros(599_999_999)));
        assert_eq!(wait(&subject, &bucket, &bad).await, Some(Micros(1)));
        subject.set_time(began.after(Micros(600_000_000)));
        assert_eq!(wait(&subject, &bucket, &bad).await, None);
    }
    settle(&subject, &bucket, &bad, Penalty::BLOCK).await;
    let units = bucket.algorithm.depth().expect("units");
    settle(&subject, &bucket, &bad, Change::Refund { units }).await;
    assert_eq!(wait(&subject, &bucket, &bad).await, None);
}

/// The wait of a claim of no units, drawn and looked at; `None`: it is granted.
async fn wait<S: Subject>(subject: &S, bucket: &Limit, key: &[u8]) -> Option<Micros> {
    let claims = [Claim::new(bucket, key, 0)];
    let looked = subject.store().peek(&claims).await.expect("it answers")[0];
    let drawn = subject.store().draw(&claims).await.expect("it answers");
    let wait = |verdict| match verdict {
        Verdict::Deny { retry_after } => Some(retry_after.expect("a time")),
        Verdict::Allow { .. } => None,
    };
    assert_eq!(drawn.granted, looked.verdict.is_allow());
    assert_eq!(wait(drawn.standings[0].verdict), wait(looked.verdict));
    wait(looked.verdict)
}

async fn settle<S: Subject>(subject: &S, bucket: &Limit, key: &[u8], change: Change) {
    subject
        .store()
        .settle(&[Settlement::new(bucket, key, change)]);
    subject.settled().await;
}

/// A caller that was refused is raised while it waits, and the store is told later: what it had
/// earned of a unit stays, and the new rate counts from the moment at which it began.
pub(crate) async fn raise_keeps_the_earned_part_of_a_unit_and_counts_from_its_beginning<
    S: Subject,
>() {
    if !S::SHARED {
        return;
    }
    let start = Timestamp::from_micros(START);
    for (kind, due) in [
        // Nine tenths of a unit, and the rest at twice the rate.
        (Kind::TokenBucket, 9_500_000),
        (Kind::Interval, 10_000_000),
        (Kind::FixedWindow, 10_000_000),
    ] {
        let numbers = |amount, seconds| {
            let terms = terms::<S>(kind, amount, Micros::from_secs(seconds));
            limit::<S>(0, Algorithm::new(&terms).expect("good"))
        };
        let (own, raised) = (numbers(1, 10), numbers(1, 5));
        let Some(mut subject) = S::new(&[Arc::clone(&own)], start).await else {
            return;
        };
        let key = caller("raised");
        assert!(draw(&subject, &own, &key).await);
        // It is told two tenths of a second late, and looked at before it is due.
        subject.set_time(start.after(Micros(9_200_000)));
        let ago = Micros(200_000);
        subject.store().take_numbers(&raised, &key, ago);
        subject.settled().await;
        subject.set_time(start.after(Micros(due - 1)));
        assert!(!draw(&subject, &raised, &key).await, "{kind:?}");
        subject.set_time(start.after(Micros(due)));
        assert!(draw(&subject, &raised, &key).await, "{kind:?}");
    }
}

async fn draw<S: Subject>(subject: &S, limit: &Limit, key: &[u8]) -> bool {
    let claims = [Claim::new(limit, key, 1)];
    subject
        .store()
        .draw(&claims)
        .await
        .expect("it answers")
        .granted
}

/// A time in which these numbers were in force, and what was granted then.
struct Spell {
    burst: u64,
    rate: u64,
    granted: u64,
    lasted: Micros,
}

/// Overrides begin, end, follow one another and are lifted, between requests and pauses. In no span more is granted than the
/// largest burst in it, and what its rates yield: no beginning and no end refills, and none leaves its rate behind. (Those of
/// the process have a trace of their own in the limiter's tests.)
pub(crate) async fn overrides_grant_no_more_than_their_numbers<S: Subject>() {
    if !S::SHARED {
        return;
    }
    for kind in [Kind::TokenBucket, Kind::Interval, Kind::FixedWindow] {
        for seed in 0..S::RUNS.min(4) {
            trace::<S>(kind, &mut Rng::with_seed(seed ^ 0x0e44)).await;
        }
    }
}

async fn trace<S: Subject>(kind: Kind, rng: &mut Rng) {
    let mut now = Timestamp::from_micros(START);
    let algorithm = Algorithm::new(&terms::<S>(kind, 20, MINUTE)).expect("good");
    let own = limit::<S>(0, algorithm);
    let Some(mut subject) = S::new(&[Arc::clone(&own)], now).await else {
        return;
    };
    let key = caller("traced");
    let mut spells: Vec<Spell> = Vec::new();
    let mut in_force = Limit::clone(&own);
    let mut history = Vec::new();
    for _ in 0..40 {
        let mut spell = Spell {
            burst: in_force.algorithm.burst(),
            rate: in_force.algorithm.quota().expect("a rate").amount,
            granted: 0,
            lasted: Micros::ZERO,
        };
        for _ in 0..rng.u32(1..4) {
            // A key without a limit, or a blocked one, draws nothing.
            for _ in 0..rng.u32(0..30) {
                let claims = [Claim::new(&in_force, &key, 1)];
                let drawn = subject.store().draw(&claims).await.expect("it answers");
                spell.granted += u64::from(drawn.granted);
            }
            let pause = Micros(rng.u64(0..20_000_000));
            now = now.after(pause);
            subject.set_time(now);
            spell.lasted = Micros(spell.lasted.0 + pause.0);
        }
        history.push(format!(
            "{} {}/min: {} in {:?}",
            spell.burst, spell.rate, spell.granted, spell.lasted
        ));
        spells.push(spell);
        check(kind, &spells, &history);
        let amount = random::pick(rng, &[1, 5, 20, 60, 600]);
        let rate = Some(Rate::new(amount, MINUTE));
        in_force = match rng.bool() {
            true => own.with_numbers(rate, None).expect("good numbers"),
            false => Limit::clone(&own),
        };
        // What the limiter does at each beginning and end.
        subject.store().take_numbers(&in_force, &key, Micros::ZERO);
        subject.settled().await;
    }
}

/// Every span that begins with one spell and ends with another.
fn check(kind: Kind, spells: &[Spell], history: &[String]) {
    for first in 0..spells.len() {
        let (mut burst, mut granted, mut yielded) = (0, 0, 0_u64);
        for spell in &spells[first..] {
            burst = burst.max(spell.burst);
            granted += spell.granted;
            // Whole windows are granted at once, so a part of one may bring all of it.
            let steps = match kind {
                Kind::TokenBucket => (spell.rate * spell.lasted.0).div_ceil(MINUTE.0),
                _ => spell.rate * (spell.lasted.0.div_ceil(MINUTE.0)),
            };
            yielded += steps;
            assert!(
                granted <= burst + yielded,
                "{kind:?}: {granted} of {burst} + {yielded}: {history:#?}"
            );
        }
    }
}
