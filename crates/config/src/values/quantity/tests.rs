use super::*;

#[test]
fn durations_read_as_people_write_them() {
    assert_eq!(duration("10s"), Ok(Micros(10_000_000)));
    assert_eq!(duration("1h30m"), Ok(Micros(5_400_000_000)));
    assert_eq!(duration("0s"), Ok(Micros(0)));
    assert_eq!(duration("1m500ms"), Ok(Micros(60_500_000)));
}

#[test]
fn duration_invalid_is_pointed_at() {
    for (text, start, end) in [
        ("10", 0, 2),
        ("10x", 2, 3),
        ("1.5s", 0, 4),
        ("1m1h", 2, 4),
        ("s", 0, 1),
        ("", 0, 0),
        ("10s!", 3, 4),
        ("99999999999999999999w", 0, 21),
    ] {
        let flaw = duration(text).expect_err(text);
        assert_eq!((flaw.start, flaw.end), (start, end), "{text}: {flaw:?}");
    }
}

#[test]
fn sizes_need_units() {
    assert_eq!(size("64KiB"), Ok(Some(65_536)));
    assert_eq!(size("10 MB"), Ok(Some(10_000_000)));
    assert_eq!(size("unlimited"), Ok(None));
    assert!(
        size("64").is_err()
            && size("64K").is_err()
            && size("KiB").is_err()
            && size("99999999999GiB").is_err()
    );
}

#[test]
fn refusals_are_a_number_in_a_span() {
    let minute = Micros::from_secs(60);
    assert_eq!(refusals("20 refusals in 1m"), Ok((20, minute)));
    assert_eq!(refusals("20  refusals in 1m"), Ok((20, minute)));
    assert_eq!(refusals("1 refusal in 60s"), Ok((1, minute)));
    for bad in [
        "",
        "20",
        "20 in 1m",
        "0 refusals in 1m",
        "-1 refusals in 1m",
        "+20 refusals in 1m",
        "1000001 refusals in 1m",
        "20 refusals",
        "20 refusals in",
        "20 refusals in 1",
        "20 refusals in 1ms",
        "20 refusals in 2d",
        "20 refusals in1m",
    ] {
        assert!(refusals(bad).is_err(), "{bad}");
    }
}

#[test]
fn shares_are_hundredths_of_a_percent() {
    assert_eq!(share("25% of keys", "of keys"), Ok(2_500));
    assert_eq!(share("0.5% of keys", "of keys"), Ok(50));
    assert_eq!(share("100% of keys", "of keys"), Ok(10_000));
    for bad in [
        "25%",
        "101% of keys",
        "25 of keys",
        "1.234% of keys",
        "% of keys",
        "-1% of keys",
    ] {
        assert!(share(bad, "of keys").is_err(), "{bad}");
    }
}
