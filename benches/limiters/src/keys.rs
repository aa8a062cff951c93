//! Streams of keys.

/// The length of a key.
pub const KEY: usize = 24;

/// Keys laid out one after the other, in the order they are asked for.
pub struct Stream {
    bytes: Vec<[u8; KEY]>,
}

impl Stream {
    /// One key, over and over.
    pub fn one() -> Self {
        Self { bytes: vec![key(0); 1 << 20] }
    }

    /// `length` keys out of `count`, each as likely.
    pub fn uniform(count: usize, length: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        Self { bytes: (0..length).map(|_| key(random.usize(0..count))).collect() }
    }

    /// `length` keys out of `count` by Zipf's law with exponent 1 (inverse transform on the continuous bound).
    pub fn zipf(count: usize, length: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(2);
        let rank = |uniform: f64| ((count as f64 + 1.0).powf(uniform) - 1.0) as usize;
        Self { bytes: (0..length).map(|_| key(rank(random.f64()).min(count - 1))).collect() }
    }

    /// Every key of `count` once, for as long as `visit` says true.
    pub fn each(count: usize, mut visit: impl FnMut(&[u8; KEY]) -> bool) {
        let _ = (0..count).all(|number| visit(&key(number)));
    }

    pub fn keys(&self) -> &[[u8; KEY]] {
        &self.bytes
    }
}

/// The key of a number: scattered, as callers' keys are.
pub fn key(number: usize) -> [u8; KEY] {
    let mut bytes = *b"caller-0123456789abcdef-";
    let scattered = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (place, byte) in bytes[7..23].iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(scattered >> (4 * place)) as usize & 15];
    }
    bytes
}
