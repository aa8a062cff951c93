//! The table of buckets with leases: what is known of the units of a bucket, and when the table is full.

use super::*;

#[test]
fn lease_remaining_includes_units_of_the_store_and_held_ones() {
    let clock = Clock::manual(START);
    let (_leases, held, lease) = place(&clock);
    let told = || held.standing(1, true, clock.boot()).remaining();
    lease(10, Some(500));
    assert_eq!(told(), 500, "the lease is of these");
    assert!(ask(&held, 4, &clock));
    assert_eq!(told(), 496);
    clock.advance(Micros(50_000));
    assert_eq!(told(), 501, "five came since");
    lease(10, None);
    clock.advance(Micros(90_000));
    assert_eq!(told(), 1000, "never more than the burst");
}

#[test]
fn a_full_table_leases_no_more_until_some_buckets_have_stood_idle() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (
        Arc::new(Leases::new(clock.clone(), false)),
        Names::new(b"secret"),
        leased(100, 1000),
    );
    let shape = names.shape(&total);
    let wanted = |key: usize| Wanted {
        name: names.name(&total, &key.to_be_bytes()),
        shape: shape.clone(),
        cost: 1,
        enforced: true,
    };
    let many = SHARDS * SHARD_MAX * 3 / 2;
    let kept = (0..many)
        .filter(|key| leases.held(&wanted(*key)).is_some())
        .count();
    assert_eq!(kept, SHARDS * SHARD_MAX);
    assert!(leases.held(&wanted(many)).is_none());
    clock.advance(Micros(10_000_000));
    assert!(
        leases.held(&wanted(many)).is_none(),
        "asked for within ten lives of a lease"
    );
    // One bucket holds a lease and one asks for it: both stay.
    let shard = |key: usize| (wanted(key).name.hash as usize >> 7) % SHARDS;
    let beside: Vec<_> = (0..many)
        .filter(|key| shard(*key) == shard(many))
        .take(2)
        .collect();
    let [leasing, asking] =
        [beside[0], beside[1]].map(|key| leases.held(&wanted(key)).expect("known"));
    assert!(asking.renew(&leases));
    leasing
        .depart(&leases)
        .0
        .answered(5, None, START, clock.boot());
    clock.advance(Micros(1));
    assert!(leases.held(&wanted(many)).is_some());
    for (key, held) in beside.iter().zip([leasing, asking]) {
        assert!(Arc::ptr_eq(
            &held,
            &leases.held(&wanted(*key)).expect("known")
        ));
    }
}
