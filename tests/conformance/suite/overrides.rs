//! What overrides ask of a store: a bucket that is drawn under other numbers for a while.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{
    Algorithm, Align, Calendar, Claim, Kind, Limit, Micros, Rate, Standing, Terms, Timestamp,
    Verdict,
};
use tollgate_store::Store;

use crate::random::{self, START};
use crate::subject::{Subject, caller, limit, terms};

const MINUTE: Micros = Micros::from_secs(60);

/// A caller that has used up a window gets the difference as soon as its number is raised, and is told when the window ends,
/// whichever numbers it has then.
pub(crate) async fn raise_of_a_used_up_window_helps_at_once_and_is_told_its_end<S: Subject>() {
    const DAY: u64 = 86_400_000_000;
    let start = Timestamp::from_micros(START - START % DAY + DAY / 3);
    let calendar = Align::Calendar(Arc::new(Calendar {
        boundaries: (0..4)
            .map(|day| Timestamp::from_micros(START - START % DAY + day * DAY))
            .collect(),
        words: "day".into(),
    }));
    for (kind, align) in [
        (Kind::FixedWindow, Align::Clock),
        (Kind::FixedWindow, calendar),
        (Kind::FixedWindow, Align::FirstHit),
        (Kind::Interval, Align::FirstHit),
        (Kind::SlidingLog, Align::FirstHit),
    ] {
        let terms = Terms {
            align,
            ..terms::<S>(kind, 3, Micros(DAY))
        };
        let own = limit::<S>(0, Algorithm::new(&terms).expect("good"));
        let raised = own.with_numbers(Some(Rate::new(10, Micros(DAY))), None);
        let raised = raised.expect("good numbers");
        let Some(mut subject) = S::new(&[Arc::clone(&own)], start).await else {
            return;
        };
        let key = caller("raised");
        let drain = async |subject: &S, limit: &Limit| {
            let mut granted = 0;
            while draw(subject, limit, &key).await {
                granted += 1;
            }
            granted
        };
        assert_eq!(drain(&subject, &own).await, 3, "{terms:?}");
        assert_eq!(drain(&subject, &raised).await, 7, "{terms:?}");
        let due = |standings: &[Standing]| match standings[0].verdict {
            Verdict::Deny { retry_after } => start.after(retry_after.expect("a time")),
            Verdict::Allow { .. } => panic!("{terms:?}: it is used up"),
        };
        let claims = [&raised, &*own].map(|limit| [Claim::new(limit, &key, 1)]);
        let mut looks = Vec::new();
        for claims in &claims {
            let looked = subject.store().peek(claims).await.expect("it answers");
            looks.push(due(&looked));
        }
        assert_eq!(looks[0], looks[1], "{terms:?}");
        for (moment, admits) in [(looks[0].before(Micros(1)), false), (looks[0], true)] {
            subject.set_time(moment);
            for claims in &claims {
                let looked = subject.store().peek(claims).await.expect("it answers");
                assert_eq!(looked[0].verdict.is_allow(), admits, "{terms:?}");
            }
        }
        assert!(own.with_numbers(Some(Rate::new(10, MINUTE)), None).is_err());
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
/// largest burst, and what the highest rate yields.
pub(crate) async fn overrides_grant_no_more_than_their_numbers<S: Subject>() {
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
    }
}

/// Every span that begins with one spell and ends with another.
fn check(kind: Kind, spells: &[Spell], history: &[String]) {
    let largest = |of: fn(&Spell) -> u64| spells.iter().map(of).max().unwrap_or(0);
    let (burst, rate) = (largest(|spell| spell.burst), largest(|spell| spell.rate));
    for first in 0..spells.len() {
        let (mut granted, mut lasted) = (0, 0_u64);
        for spell in &spells[first..] {
            granted += spell.granted;
            lasted += spell.lasted.0;
            // Whole windows are granted at once, so a part of one may bring all of it.
            let yielded = match kind {
                Kind::TokenBucket => (rate * lasted).div_ceil(MINUTE.0),
                _ => rate * lasted.div_ceil(MINUTE.0),
            };
            assert!(
                granted <= burst + yielded,
                "{kind:?}: {granted} of {burst} + {yielded}: {history:#?}"
            );
        }
    }
}
