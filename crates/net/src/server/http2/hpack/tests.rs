use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("a byte")
    };
    digits.chunks(2).map(byte).collect()
}

#[test]
fn hpack_table_is_as_large_as_in_the_examples() {
    // RFC 7541 C.3 and C.4: the same three requests, plain and Huffman-coded.
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut table = Table::default();
        for (block, size) in blocks.into_iter().zip([57, 110, 164]) {
            assert_eq!(table.follow(&bytes(block)), Some(true), "{block}");
            assert_eq!(table.size, size, "{block}");
        }
        // `custom-key` by its index, then `:authority` by its own.
        assert_eq!(table.follow(&[0xbe]), Some(false));
        assert_eq!(table.follow(&[0xc0]), Some(true));
    }
}

#[test]
fn hpack_entries_leave_a_table_that_is_full() {
    // RFC 7541 C.6: responses, Huffman-coded, in a table of 256 bytes.
    let mut table = Table {
        most: 256,
        ..Table::default()
    };
    for (block, size) in [
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            222,
        ),
        ("4883 640e ffc1 c0bf", 222),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
            215,
        ),
    ] {
        assert_eq!(table.follow(&bytes(block)), Some(true), "{block}");
        assert_eq!(table.size, size, "{block}");
    }
    assert_eq!(table.follow(&[0x20]), Some(false));
    assert_eq!((table.size, table.entries.len()), (0, 0));
}

#[test]
fn hpack_names_are_read_in_every_representation() {
    for (block, expected) in [
        (&[0x82][..], Some(true)),
        (&[0x8f], Some(false)),
        (&[0x04, 1, b'/'], Some(true)),
        (&[0x14, 1, b'/'], Some(true)),
        (
            &[0x00, 5, b':', b'p', b'a', b't', b'h', 1, b'/'],
            Some(true),
        ),
        (&[0x00, 1, b'x', 1, b':'], Some(false)),
        (&[0x00, 0x81, 0xb9, 0], Some(true)),
        (&[0x80], None),
        (&[0xbe], None),
        (&[0x00, 5, b':'], None),
        (&[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff], None),
        (&[], Some(false)),
    ] {
        assert_eq!(Table::default().follow(block), expected, "{block:x?}");
    }
}
