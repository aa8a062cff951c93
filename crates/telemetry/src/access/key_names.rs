//! Names of callers' keys for logs and pages: keyed hashes, so that a name tells callers apart
//! without naming them, and a guessed key cannot be tested without the secret.

use siphasher::sip::SipHasher13;

use tollgate_limit::printable::hex;

/// Makes the names of keys. The same secret gives the same names, in every process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyNames([u8; 16]);

impl KeyNames {
    /// Names keyed by `secret`.
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// The secret, for a process that takes over.
    pub const fn secret(&self) -> [u8; 16] {
        self.0
    }

    /// The name of the bytes that select a bucket: 16 hexadecimal digits.
    pub fn name(&self, key: &[u8]) -> [u8; 16] {
        hex(SipHasher13::new_with_key(&self.0).hash(key))
    }

    /// Whether `text` has the form of a name.
    pub fn is_name(text: &str) -> bool {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == 16 && text.bytes().all(is_digit)
    }

    /// The same as text.
    pub fn text(&self, key: &[u8]) -> String {
        self.name(key).iter().copied().map(char::from).collect()
    }
}

impl std::fmt::Debug for KeyNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyNames(..)")
    }
}
