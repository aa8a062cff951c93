//! `tollgate hash`: hashes an API key from standard input, for a list of callers.
//!
//! The key is never an argument, because other processes can see arguments and shells store them.

use std::io::{self, IsTerminal, Read};

use super::args::Hash;
use super::print_out;
use super::stop::Ended;

pub(super) fn hash(args: &Hash) -> Ended {
    if io::stdin().is_terminal() {
        tell!("The API key, then Enter and Ctrl-D:");
    }
    let mut input = Vec::new();
    // Read one byte more than is accepted, to detect longer input.
    let read = io::stdin().take(KEY_MAX + 1).read_to_end(&mut input);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    let key = key_of(&input).map_err(str::to_owned)?;
    let digest = tollgate_policy::callers::digest_words(key);
    let Some(name) = &args.name else {
        return Ok(print_out(&digest));
    };
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let tier = args.tier.as_deref();
    let tier = tier.map_or_else(String::new, |tier| format!(", tier = {}", quoted(tier)));
    Ok(print_out(&format!(
        "\"{digest}\" = {{ name = {}{tier} }}",
        quoted(name)
    )))
}

/// The key without its line end, which `echo` and editors add and requests do not contain.
fn key_of(input: &[u8]) -> Result<&[u8], &'static str> {
    let key = input.strip_suffix(b"\n").unwrap_or(input);
    let key = key.strip_suffix(b"\r").unwrap_or(key);
    if key.is_empty() {
        return Err("there is no key on standard input: printf %s \"$KEY\" | tollgate hash");
    }
    if input.len() as u64 > KEY_MAX {
        return Err("the key is longer than 64 KiB");
    }
    if key.contains(&b'\n') || key.contains(&b'\r') {
        return Err("more than one line on standard input: hash one key at a time");
    }
    if key.trim_ascii() != key {
        return Err("the key begins or ends with a space, which the value of a header never does");
    }
    Ok(key)
}

/// More than any header contains.
const KEY_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_end_of_line_is_no_part_of_the_key() {
        for input in ["test", "test\n", "test\r\n"] {
            let key = key_of(input.as_bytes()).expect("one key");
            assert_eq!(
                tollgate_policy::callers::digest_words(key),
                "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
            );
        }
    }

    #[test]
    fn hash_key_that_no_request_can_send_is_refused() {
        for input in ["", "\n", "a\nb\n", " a", "a \n"] {
            assert!(key_of(input.as_bytes()).is_err(), "{input:?}");
        }
    }
}
