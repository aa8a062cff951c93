//! Names of fields that some upstreams cannot tell apart: CGI and its heirs read `x_api_key` as `x-api-key`.

use http::{HeaderMap, HeaderName};

/// Whether a name has an underscore. Eight bytes at a time, the last word over the one before it: every request's names
/// are looked at.
pub fn has_underscore(name: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Mycroft's test for a zero byte.
    let found = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'_'));
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    };
    match name.last_chunk() {
        Some(last) => found(last) || name.as_chunks().0.iter().any(found),
        None => name.contains(&b'_'),
    }
}

/// Removes every field whose name, with its underscores read as hyphens, is another's for which `guarded` holds.
pub fn drop_lookalikes(headers: &mut HeaderMap, guarded: impl Fn(&str) -> bool) {
    let underscored = |name: &HeaderName| has_underscore(name.as_str().as_bytes());
    if !headers.keys().any(underscored) {
        return;
    }
    let lookalike = |name: &&HeaderName| underscored(name) && guarded(&name.as_str().replace('_', "-"));
    let found: Vec<HeaderName> = headers.keys().filter(lookalike).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_underscore_is_found_wherever_it_stands() {
        for length in 0..20 {
            assert!(!has_underscore(&vec![b'-'; length]), "{length}");
            for place in 0..length {
                let mut name = vec![b'a'; length];
                name[place] = b'_';
                assert!(has_underscore(&name), "{place} of {length}");
            }
        }
    }
}
