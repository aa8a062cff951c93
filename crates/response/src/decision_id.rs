//! The id of a decision in refusals and in the log.

use tollgate_limit::printable::hex;

/// A decision's id as text: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionId([u8; 16]);

impl DecisionId {
    /// The id of the decision with this number. The number is mixed first, so that consecutive ids
    /// do not look alike (the finalizer of Steele, Lea and Flood's SplitMix, which is a bijection).
    pub fn of(count: u64) -> Self {
        let mut mixed = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Self(hex(mixed))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}
