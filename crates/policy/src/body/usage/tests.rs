//! Counts of tokens in the formats of the providers.

use super::*;

const BOTH: [Preset; 2] = [Preset::OpenAi, Preset::Anthropic];
/// A weight that tells the kinds apart in a sum.
const APART: Weights = [1, 1_000, 1_000_000, 1_000_000_000, 1_000_000_000_000];

/// The units of a response that states these numbers.
fn units(usage: &Usage, stated: &[(&str, u64)]) -> Option<u64> {
    let number = |path: &Vec<String>| {
        let name = path.join(".");
        let found = stated.iter().find(|(known, _)| *known == name);
        found.map(|(_, number)| *number)
    };
    let numbers: Vec<_> = usage.paths().list().iter().map(number).collect();
    usage.units(&numbers)
}

#[test]
fn usage_cached_and_reasoning_tokens_of_openai_are_parts_of_the_totals() {
    for presets in [&BOTH[..], &BOTH[..1]] {
        let usage = Usage::of_presets(presets, &APART);
        let chat = [
            ("usage.prompt_tokens", 100),
            ("usage.prompt_tokens_details.cached_tokens", 60),
            ("usage.completion_tokens", 30),
            ("usage.completion_tokens_details.reasoning_tokens", 20),
        ];
        assert_eq!(units(&usage, &chat), Some(20_010_000_060_040));
        for root in ["usage", "response.usage"] {
            let names = [
                format!("{root}.input_tokens"),
                format!("{root}.input_tokens_details.cached_tokens"),
                format!("{root}.output_tokens"),
                format!("{root}.output_tokens_details.reasoning_tokens"),
            ];
            let stated: Vec<_> = names
                .iter()
                .map(String::as_str)
                .zip([100, 60, 30, 20])
                .collect();
            assert_eq!(units(&usage, &stated), Some(20_010_000_060_040), "{root}");
        }
    }
}

#[test]
fn usage_cached_tokens_of_anthropic_are_beside_its_input() {
    for presets in [&BOTH[..], &BOTH[1..]] {
        let usage = Usage::of_presets(presets, &APART);
        let document = [
            ("usage.input_tokens", 10),
            ("usage.cache_read_input_tokens", 7),
            ("usage.cache_creation_input_tokens", 3),
            ("usage.output_tokens", 5),
        ];
        assert_eq!(units(&usage, &document), Some(5_003_007_010));
        let stream = [
            ("message.usage.input_tokens", 10),
            ("message.usage.cache_read_input_tokens", 7),
            ("message.usage.cache_creation_input_tokens", 3),
            ("message.usage.output_tokens", 1),
            ("usage.output_tokens", 5),
        ];
        assert_eq!(units(&usage, &stream), Some(5_003_007_010));
        let later = [("message.usage.input_tokens", 0), ("usage.input_tokens", 9)];
        assert_eq!(units(&usage, &later), Some(9));
    }
}

#[test]
fn usage_with_names_of_both_formats_counts_no_token_twice() {
    let usage = Usage::of_presets(&BOTH, &APART);
    let stated = [
        ("usage.prompt_tokens", 100),
        ("usage.prompt_tokens_details.cached_tokens", 60),
        ("usage.cache_read_input_tokens", 60),
        ("usage.completion_tokens", 1),
        ("usage.input_tokens", 100),
        ("usage.output_tokens", 1),
    ];
    assert_eq!(units(&usage, &stated), Some(1_000_060_040));
    let openai = Usage::of_presets(&BOTH[..1], &APART);
    let totals = [("usage.input_tokens", 4), ("usage.output_tokens", 2)];
    assert_eq!(units(&openai, &totals), Some(2_000_000_004));
}

#[test]
fn usage_parts_above_their_whole_are_all_counted_and_nothing_wraps() {
    let usage = Usage::of_presets(&BOTH, &APART);
    let odd = [
        ("usage.prompt_tokens", 5),
        ("usage.prompt_tokens_details.cached_tokens", 9),
    ];
    assert_eq!(units(&usage, &odd), Some(9_005));
    let huge = [
        ("usage.prompt_tokens", u64::MAX),
        ("usage.completion_tokens", u64::MAX),
    ];
    assert_eq!(units(&usage, &huge), Some(u64::MAX));
    assert_eq!(units(&usage, &[("usage.total_tokens", 5)]), None);
    assert_eq!(units(&usage, &[]), None);
}

#[test]
fn usage_total_above_its_parts_is_reasoning_beside_the_output() {
    for presets in [&BOTH[..], &BOTH[..1]] {
        let usage = Usage::of_presets(presets, &APART);
        let of = |stated: &[(&str, u64)]| units(&usage, stated);
        let gemini = [
            ("usage.prompt_tokens", 10),
            ("usage.completion_tokens", 20),
            ("usage.total_tokens", 530),
        ];
        assert_eq!(of(&gemini), Some(500_020_000_000_010));
        let reasoning = "usage.completion_tokens_details.reasoning_tokens";
        // Beside the output whether it is the larger of the two or not.
        for (thought, total) in [(500, 530), (15, 45)] {
            let xai = [
                ("usage.prompt_tokens", 10),
                ("usage.completion_tokens", 20),
                (reasoning, thought),
                ("usage.total_tokens", total),
            ];
            let expected = thought * 1_000_000_000_000 + 20_000_000_010;
            assert_eq!(of(&xai), Some(expected), "{thought}");
        }
        let cached_beside = [
            ("usage.prompt_tokens", 5),
            ("usage.prompt_tokens_details.cached_tokens", 9),
            ("usage.completion_tokens", 1),
            ("usage.total_tokens", 15),
        ];
        assert_eq!(of(&cached_beside), Some(1_000_009_005));
        let responses = [
            ("usage.input_tokens", 10),
            ("usage.output_tokens", 20),
            ("usage.total_tokens", 530),
        ];
        assert_eq!(of(&responses), Some(500_020_000_000_010));
    }
}

#[test]
fn usage_own_numbers_are_weighted_and_absent_ones_count_zero() {
    let path = |name: &str| vec![vec!["m".to_owned(), name.to_owned()]];
    let number = |name, weight, inside| Number {
        paths: path(name),
        kind: TokenKind::Output,
        weight,
        inside,
    };
    let list = [
        number("in", 1, None),
        number("out", 4, None),
        number("cached", 0, Some(0)),
    ];
    let usage = Usage::of_numbers(&list).expect("room");
    assert_eq!(units(&usage, &[("m.in", 10), ("m.out", 3)]), Some(22));
    assert_eq!(units(&usage, &[("m.in", 10), ("m.cached", 4)]), Some(6));
    assert_eq!(units(&usage, &[("m.out", 3)]), Some(12));
    assert_eq!(units(&usage, &[("m.other", 3)]), None);
    assert_eq!(usage.words(), "m.in + m.out + m.cached");
}
