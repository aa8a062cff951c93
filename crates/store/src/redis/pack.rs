//! The msgpack of integers that the script reads and writes: a single array.

/// Appends the head of an array of `len` elements.
pub(super) fn array(out: &mut Vec<u8>, len: u32) {
    out.push(0xdd);
    out.extend_from_slice(&len.to_be_bytes());
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "each arm checks what it cuts"
)]
pub(super) fn integer(out: &mut Vec<u8>, value: i64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend_from_slice(&(value as u64).to_be_bytes());
        }
        -32..=-1 => out.push(value as i8 as u8),
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

/// The integers of one array; `None`: the bytes are something else.
pub(super) fn integers(bytes: &[u8]) -> Option<Vec<i64>> {
    let mut rest = bytes;
    let len = match take::<1>(&mut rest)?[0] {
        byte @ 0x90..=0x9f => usize::from(byte & 0x0f),
        0xdc => usize::from(u16::from_be_bytes(take(&mut rest)?)),
        0xdd => usize::try_from(u32::from_be_bytes(take(&mut rest)?)).ok()?,
        _ => return None,
    };
    // A false length cannot cause a large allocation: each element has at least one byte.
    let mut numbers = Vec::with_capacity(len.min(rest.len()));
    for _ in 0..len {
        numbers.push(match take::<1>(&mut rest)?[0] {
            byte @ 0..=0x7f => i64::from(byte),
            byte @ 0xe0..=0xff => i64::from(byte.cast_signed()),
            0xcc => i64::from(take::<1>(&mut rest)?[0]),
            0xcd => i64::from(u16::from_be_bytes(take(&mut rest)?)),
            0xce => i64::from(u32::from_be_bytes(take(&mut rest)?)),
            0xcf => i64::try_from(u64::from_be_bytes(take(&mut rest)?)).ok()?,
            0xd0 => i64::from(take::<1>(&mut rest)?[0].cast_signed()),
            0xd1 => i64::from(i16::from_be_bytes(take(&mut rest)?)),
            0xd2 => i64::from(i32::from_be_bytes(take(&mut rest)?)),
            0xd3 => i64::from_be_bytes(take(&mut rest)?),
            _ => return None,
        });
    }
    rest.is_empty().then_some(numbers)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_survive_the_way_there_and_back_at_every_width() {
        let numbers = [
            0,
            1,
            127,
            128,
            255,
            256,
            65_535,
            65_536,
            4_294_967_295,
            4_294_967_296,
            9_007_199_254_740_991,
            -1,
            -32,
            -33,
            -128,
            -40_000,
            -9_007_199_254_740_991,
        ];
        let mut out = Vec::new();
        array(
            &mut out,
            u32::try_from(numbers.len()).expect("a few numbers"),
        );
        for number in numbers {
            integer(&mut out, number);
        }
        assert_eq!(integers(&out).expect("an array of integers"), numbers);
    }

    #[test]
    fn pack_other_than_an_array_of_integers_is_refused_without_allocating() {
        for bytes in [
            &b""[..],
            b"\xc0",
            b"\xdd\xff\xff\xff\xff",
            b"\x92\x01",
            b"\x91\xc0",
            b"\x91\x01\x01",
            b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(integers(bytes), None, "{bytes:?}");
        }
    }
}
