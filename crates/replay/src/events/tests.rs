//! Packed blocks against a plain sort.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn events_of_any_blocks_come_in_order_and_equal_ones_as_read(
        blocks in prop::collection::vec(prop::collection::vec((0_u64..20, 0_u32..3), 1..20), 0..6),
        unit in prop::sample::select(vec![1_u64, 7, 1_000, 1_000_000, 300_000_000_000]),
        start in prop::sample::select(vec![0_u64, 1_431_857_103_250_001]),
    ) {
        let mut events = Events::default();
        let mut all = Vec::new();
        for block in blocks {
            for (at, class) in block {
                let lasting = u32::try_from(all.len()).unwrap_or(0) * 40_000_000;
                let event = Event { at: start + at * unit, class: class * 2_000_000, lasting };
                all.push(event);
                events.push(event);
            }
            events.seal();
        }
        let mut by_time = all.clone();
        by_time.sort_by_key(|event| event.at);
        events.sort(Order::Time);
        prop_assert_eq!(events.merged().collect::<Vec<_>>(), by_time);
        let mut by_class = all.clone();
        by_class.sort_by_key(|event| (event.class, event.at));
        events.sort(Order::Class);
        prop_assert_eq!(events.merged().collect::<Vec<_>>(), by_class);
        events.relabel(Order::Time, |event| (event.class > 0).then_some((event.class / 2, 1)));
        let kept = all.iter().filter(|event| event.class > 0).count();
        prop_assert_eq!(events.merged().count(), kept);
        prop_assert!(events.merged().all(|event| event.lasting == 1));
        prop_assert!(events.merged().is_sorted_by_key(|event| event.at));
    }
}
