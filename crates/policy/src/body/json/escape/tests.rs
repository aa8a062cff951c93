use proptest::prelude::*;

use super::{BLOCK, passed};

/// What [`passed`] finds, read byte by byte.
fn passed_slowly(piece: &[u8]) -> usize {
    let mut at = 0;
    while at < piece.len() {
        at += match (piece[at], piece.get(at + 1)) {
            (b'\\', Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => 2,
            (b'\\' | b'"', _) => break,
            _ => 1,
        };
    }
    at
}

#[test]
fn passed_escape_across_the_end_of_a_block_is_passed() {
    for before in BLOCK - 3..BLOCK + 3 {
        let piece = [
            &vec![b'a'; before],
            &br#"\"\\\n"#[..],
            &[b'a'; 2 * BLOCK],
            b"\"",
        ]
        .concat();
        assert_eq!(passed(&piece), piece.len() - 1, "after {before} bytes");
        let cut = &piece[..=before];
        assert_eq!(passed(cut), before, "cut after {before} bytes");
    }
}

proptest! {
    #[test]
    fn passed_finds_what_reading_byte_by_byte_finds(
        piece in prop::collection::vec(prop::sample::select(&b"aaaaaaaaaa\\\\\\nnn/u\""[..]), 0..400)
    ) {
        prop_assert_eq!(passed(&piece), passed_slowly(&piece));
    }

    #[test]
    fn passed_pairs_of_escapes_find_the_end(
        parts in prop::collection::vec(prop::sample::select(&["a", "\\n", "\\\"", "\\\\", "a sentence, which is longer"][..]), 0..60)
    ) {
        let piece = parts.concat() + "\" and more";
        prop_assert_eq!(passed(piece.as_bytes()), piece.len() - "\" and more".len());
    }
}
