use super::*;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const PENALTY: Penalty = Penalty {
    refusals: 3,
    span: Micros::from_secs(60),
    block: Micros::from_secs(600),
};

fn penalties() -> Penalties {
    Penalties::new(HashKey::new(b"a secret"))
}

fn at(seconds: u64) -> Timestamp {
    START.after(Micros::from_secs(seconds))
}

fn block(until: Timestamp, shared: bool) -> Block {
    Block {
        until,
        admits: until,
        ask_again: until,
        shared,
        unstored: false,
    }
}

/// A key of set 1.
fn key(number: u128) -> u128 {
    1 + (number + 1) * SETS as u128
}

#[test]
fn refusals_are_counted_within_a_span_from_the_first() {
    let penalties = penalties();
    assert!(!penalties.refused(7, PENALTY, at(0)));
    assert!(!penalties.refused(7, PENALTY, at(59)));
    // The span is over: these are the first two of another one.
    assert!(!penalties.refused(7, PENALTY, at(60)));
    assert!(!penalties.refused(7, PENALTY, at(61)));
    assert!(!penalties.refused(8, PENALTY, at(62)), "another key");
    assert!(penalties.refused(7, PENALTY, at(119)));
    assert!(
        !penalties.refused(7, PENALTY, at(119)),
        "from the beginning"
    );
}

#[test]
fn a_block_is_known_until_its_end_and_then_counted_from_the_beginning() {
    let penalties = penalties();
    assert_eq!(penalties.block(7, at(0)), None);
    let known = block(at(600), false);
    penalties.put(7, known, at(0));
    assert_eq!(penalties.block(7, at(599)), Some(known));
    assert_eq!(penalties.block(7, at(600)), None);
    assert!(!penalties.refused(7, PENALTY, at(600)));
    penalties.put(7, known, at(0));
    penalties.forget(7);
    assert_eq!(penalties.block(7, at(0)), None);
    penalties.put(7, known, at(0));
    assert!(
        !penalties.refused(7, PENALTY, at(1)),
        "a refusal that was decided before the block"
    );
    assert_eq!(penalties.block(7, at(1)), Some(known));
}

#[test]
fn a_block_of_the_store_is_asked_about_once_when_that_is_due_and_stays_until_then() {
    let penalties = penalties();
    let mut known = block(at(600), true);
    known.unstored = true;
    penalties.put(7, block(at(600), false), at(0));
    penalties.put(8, known, at(0));
    assert_eq!(penalties.due(8, at(1)), None, "not yet");
    penalties.ask_again();
    assert_eq!(penalties.due(7, at(1)), None, "only here");
    let due = penalties.due(8, at(1)).expect("it is due");
    assert_eq!(
        (due.until, due.unstored),
        (at(600), false),
        "not to be stored after it may have been lifted"
    );
    assert_eq!(penalties.due(8, at(1)), None, "one request asks");
    assert_eq!(penalties.block(8, at(1)), Some(due), "still in force");
    assert!(penalties.due(8, at(2)).is_some());
}

#[test]
fn a_flood_of_keys_displaces_no_key_with_more_refusals_and_no_block() {
    let penalties = penalties();
    let known = block(at(600), false);
    penalties.put(key(0), known, at(0));
    penalties.refused(key(1), PENALTY, at(0));
    penalties.refused(key(1), PENALTY, at(0));
    for number in 2..1_000 {
        assert!(!penalties.refused(key(number), PENALTY, at(1)));
    }
    assert_eq!(penalties.block(key(0), at(1)), Some(known));
    assert!(penalties.refused(key(1), PENALTY, at(1)), "its third");
    assert_eq!(penalties.counts().uncounted, 0);
}

#[test]
fn a_set_of_blocks_counts_no_further_key_and_says_so() {
    let penalties = penalties();
    for number in 0..8 {
        penalties.put(key(number), block(at(600), false), at(0));
    }
    for _ in 0..5 {
        assert!(!penalties.refused(key(8), PENALTY, at(1)));
    }
    assert_eq!(penalties.counts().uncounted, 5);
    // When they have ended there is room again.
    assert!(!penalties.refused(key(8), PENALTY, at(600)));
    assert_eq!(penalties.counts().uncounted, 5);
}

#[test]
fn a_set_of_blocks_that_the_store_has_counts_and_blocks_a_further_key() {
    let penalties = penalties();
    for number in 0..8 {
        penalties.put(key(number), block(at(600), true), at(0));
    }
    assert!(!penalties.refused(key(8), PENALTY, at(1)));
    assert!(!penalties.refused(key(8), PENALTY, at(1)));
    // They are found in the store again and again, and displace no count.
    for number in 0..8 {
        penalties.put(key(number), block(at(600), true), at(1));
    }
    assert!(penalties.refused(key(8), PENALTY, at(1)));
    let known = block(at(601), false);
    penalties.put(key(8), known, at(1));
    assert_eq!(penalties.block(key(8), at(1)), Some(known));
    assert_eq!(penalties.counts().uncounted, 0);
    for number in 9..17 {
        penalties.refused(key(number), PENALTY, at(1));
    }
    penalties.put(key(0), block(at(600), true), at(1));
    assert_eq!(penalties.block(key(0), at(1)), None, "only counts are left");
}

#[test]
fn imposed_blocks_wait_in_a_bounded_list() {
    let penalties = penalties();
    let limit = Limit {
        penalty: Some(PENALTY),
        ..tollgate_limit::fixtures::per_minute("each", 1, 1)
    };
    for _ in 0..NEWS_MAX + 3 {
        penalties.record(&limit, b"k", at(0), at(600));
    }
    assert_eq!(penalties.take().len(), NEWS_MAX);
    let counts = penalties.counts();
    assert_eq!((counts.imposed, counts.untold), (NEWS_MAX as u64 + 3, 3));
    assert!(penalties.take().is_empty());
}

#[test]
fn what_is_known_is_restored_without_what_has_ended() {
    let before = penalties();
    before.refused(key(1), PENALTY, at(0));
    before.refused(key(2), PENALTY, at(30));
    before.refused(key(2), PENALTY, at(31));
    before.put(key(3), block(at(600), false), at(0));
    let unstored = Block {
        unstored: true,
        ..block(at(500), true)
    };
    before.put(key(4), unstored, at(0));
    let after = penalties();
    after.restore(&before.in_force(at(60)), at(61));
    assert!(!after.refused(key(1), PENALTY, at(61)), "its span is over");
    assert!(after.refused(key(2), PENALTY, at(62)), "the third");
    assert_eq!(after.block(key(3), at(599)), Some(block(at(600), false)));
    let asks = after.due(key(4), at(62)).expect("the store is asked");
    assert_eq!((asks.until, asks.unstored), (at(500), true));
    assert_eq!(after.block(key(3), at(600)), None);
}
