use std::sync::Arc;

use crate::{Algorithm, Align, Calendar, Change, Kind, Micros, Terms, Timestamp, fixtures};

const SECOND: u64 = 1_000_000;
/// The beginning of a minute.
const START: u64 = 1_700_000_040 * SECOND;

fn at_second(second: u64) -> Timestamp {
    Timestamp::from_micros(START + second * SECOND)
}

/// A refund may arrive late, because it waited for its store.
#[test]
fn units_of_a_request_that_waits_return_only_to_the_window_in_which_it_is_due() {
    let calendar = Align::Calendar(Arc::new(Calendar {
        boundaries: (0..20).map(|minute| at_second(60 * minute)).collect(),
        words: "minute".into(),
    }));
    for align in [Align::FirstHit, Align::Clock, calendar] {
        let terms = Terms {
            align,
            max_wait: Micros(130 * SECOND),
            ..fixtures::terms(Kind::FixedWindow, 10, Micros(60 * SECOND))
        };
        let limit = Algorithm::new(&terms).expect("a limit");
        let mut state = None;
        let mut take = |cost| {
            let now = at_second(5);
            let granted = limit.judge(state.as_ref(), cost, now).expect("in time");
            limit.apply(&mut state, granted.next);
            limit.report(state.as_ref(), now).window_end
        };
        let first = take(10);
        let [second, same, third] = [take(4), take(6), take(1)];
        assert_eq!(second, first.after(Micros(60 * SECOND)), "{terms:?}");
        assert_eq!(same, second, "{terms:?}");
        assert_eq!(third, first.after(Micros(120 * SECOND)), "{terms:?}");
        let left_after = |window_end, second| {
            let (mut state, now) = (state.clone(), at_second(second));
            let units = 4;
            limit.settle(&mut state, Change::RefundWithin { units, window_end }, now);
            limit.report(state.as_ref(), now).remaining
        };
        // A refund of units of the second window adds none to the nine of the third.
        assert_eq!(left_after(second, 127), 9, "{terms:?}");
        assert_eq!(left_after(third, 127), 10, "{terms:?}");
    }
}
