//! Rejection -> Response: the only file that chooses a status code.

/// Appends `character` as it stands inside a JSON string.
pub fn escape_json_char(out: &mut String, character: char) {
    use std::fmt::Write as _;
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        control if control.is_control() => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(control));
        }
        plain => out.push(plain),
    }
}
