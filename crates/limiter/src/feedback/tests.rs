//! What was learnt outlives reloads and clean restarts.

use tollgate_limit::in_flight::InFlight;
use tollgate_limit::{Kind, Rate, Terms, fixtures};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore, Remembered};

use super::*;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const SECOND: Micros = Micros(1_000_000);

/// An adaptive limit of at most `most`, and a rate that follows its upstream down to `least` a second of a hundred.
fn limits(most: u64, least: u64) -> [Arc<Limit>; 2] {
    let places = Algorithm::InFlight(InFlight::adaptive(1, most).expect("two numbers"));
    let rate = Terms {
        burst: Some(100),
        ..fixtures::terms(Kind::TokenBucket, 100, SECOND)
    };
    let share = Algorithm::new(&rate)
        .and_then(|rate| rate.following(Rate::new(least, SECOND)))
        .expect("within the rate");
    let of = |index, name, algorithm| {
        Arc::new(Limit {
            index,
            algorithm,
            ..fixtures::limit(name, &rate)
        })
    };
    [
        of(0, "jobs", places),
        of(1, "gentle", share.obeying_quota()),
    ]
}

/// The factor and the end of a hold.
fn rate(feedback: &Feedback, at: Timestamp) -> (u64, Option<Timestamp>) {
    let rate = feedback.rate(1).expect("it follows");
    (rate.factor(at), rate.opens(at))
}

/// What limits have learnt in a bad time, and their snapshot.
fn troubled() -> (Feedback, Vec<u8>) {
    let limits = limits(1_000, 10);
    let feedback = Feedback::new(&limits);
    for second in 0..20 {
        let now = START.after(Micros(second * SECOND.0));
        feedback.answered(0, now, Micros(10_000), 0, true);
    }
    let health = feedback.rate(1).expect("it follows");
    health.troubled(START, None);
    health.bounded(START, 25, SECOND);
    health.held(START, Micros(2 * SECOND.0));
    let mut snapshot = Vec::new();
    LocalStore::new(&limits, Clock::manual(START), ColdStart::Full)
        .save(
            None,
            &mut snapshot,
            &Remembered {
                learnt: feedback.learnt(),
                ..Remembered::default()
            },
        )
        .expect("memory takes everything");
    (feedback, snapshot)
}

fn restored(limits: &[Arc<Limit>], now: Timestamp, snapshot: &[u8]) -> Feedback {
    let (clock, file) = (Clock::manual(now), std::io::Cursor::new(snapshot));
    let (_, report) = LocalStore::restored(limits, clock, file).expect("sound");
    let feedback = Feedback::new(limits);
    feedback.relearn(&report.also.learnt, now);
    feedback
}

#[test]
fn feedback_outlives_a_clean_restart() {
    let (before, snapshot) = troubled();
    assert!(before.places(0).expect("adaptive") < FIRST / 2);
    let after = restored(&limits(1_000, 10), START, &snapshot);
    assert_eq!(after.places(0), before.places(0));
    let held = Some(START.after(Micros(2 * SECOND.0)));
    assert_eq!(rate(&after, START), (256, held));
    for seconds in [0, 1, 2, 5, 60] {
        let at = START.after(Micros(seconds * SECOND.0));
        assert_eq!(
            rate(&after, at),
            rate(&before, at),
            "it climbs as it would have"
        );
    }
}

#[test]
fn feedback_restored_is_bounded_by_other_numbers_and_prolonged_by_no_clock() {
    let (before, snapshot) = troubled();
    let narrower = restored(&limits(2, 90), START, &snapshot);
    assert_eq!(narrower.places(0), Some(2));
    assert_eq!(rate(&narrower, START).0, 922, "its own least");
    let year = Micros(365 * 86_400 * SECOND.0);
    let earlier = Timestamp::from_micros(START.as_micros() - year.0);
    let after = restored(&limits(1_000, 10), earlier, &snapshot);
    let factor = |feedback, at: Timestamp| rate(feedback, at.after(SECOND)).0;
    assert_eq!(factor(&after, earlier), factor(&before, START));
    let held = Some(earlier.after(Micros(2 * SECOND.0)));
    assert_eq!(rate(&after, earlier).1, held);
}

#[test]
fn feedback_of_another_kind_of_limit_means_nothing() {
    let (_, snapshot) = troubled();
    let [jobs, gentle] = limits(1_000, 10).map(Arc::unwrap_or_clone);
    let (name, other) = (Arc::clone(&jobs.name), Arc::clone(&gentle.name));
    let renamed = [
        Limit {
            name: other,
            ..jobs
        },
        Limit { name, ..gentle },
    ]
    .map(Arc::new);
    let after = restored(&renamed, START, &snapshot);
    assert_eq!(
        (after.places(0), rate(&after, START)),
        (Some(FIRST), (1_024, None))
    );
}

#[test]
fn feedback_survives_a_reload_within_the_new_numbers() {
    let (before, _) = troubled();
    let old = limits(1_000, 10);
    let same = before.next(&old, &limits(1_000, 10));
    assert_eq!(same.places(0), before.places(0));
    let raised = before.next(&old, &limits(1_000, 90));
    assert_eq!(rate(&raised, START).0, 922, "its own least bounds it");
    let higher = [
        Arc::new(Limit {
            algorithm: Algorithm::InFlight(InFlight::adaptive(15, 30).expect("two numbers")),
            ..Limit::clone(&old[0])
        }),
        Arc::clone(&old[1]),
    ];
    assert_eq!(before.next(&old, &higher).places(0), Some(15));
    // Requests of the configuration before go on teaching the one after it.
    let later = START.after(Micros(10 * SECOND.0));
    before.rate(1).expect("it follows").troubled(later, None);
    assert_eq!(rate(&same, later), rate(&before, later));
}
