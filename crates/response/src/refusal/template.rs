//! The body of a refusal by a template of the file, with its placeholders filled.

use http::HeaderValue;

use super::{Refusal, escape_json};
use crate::quota_headers::retry_after_secs;

impl Refusal<'_> {
    /// Fills the placeholders of a configured body; a brace that opens no known placeholder is
    /// copied. An unknown time is `null` in JSON, so that the body stays valid; in a string or
    /// another format it is empty.
    pub(super) fn fill(&self, content_type: &HeaderValue, template: &str, id: &str) -> String {
        let json = content_type
            .to_str()
            .is_ok_and(|kind| kind.contains("json"));
        let mut out = String::with_capacity(template.len() + 64);
        let mut rest = template;
        while let Some(open) = rest.find('{') {
            out.push_str(&rest[..open]);
            rest = &rest[open..];
            let filled = rest.find('}').and_then(|close| {
                let value = self.value(&rest[1..close], id)?;
                Some((value, close + 1))
            });
            match filled {
                Some((value, length)) => {
                    match value {
                        Some(value) if json => escape_json(&mut out, &value),
                        Some(value) => out.push_str(&value),
                        None if json && !ends_in_string(&out) => out.push_str("null"),
                        None => {}
                    }
                    rest = &rest[length..];
                }
                None => {
                    out.push('{');
                    rest = &rest[1..];
                }
            }
        }
        out.push_str(rest);
        out
    }

    /// The value of a placeholder in a refusal body: `None` if there is no such placeholder,
    /// `Some(None)` for a time that is unknown.
    fn value(&self, name: &str, id: &str) -> Option<Option<String>> {
        let wait = self.retry_after;
        Some(Some(match name {
            "status" => self.problem.status.as_u16().to_string(),
            "title" => self.problem.title.to_owned(),
            "detail" => self.problem.detail.to_owned(),
            "type" => self.problem.kind.to_owned(),
            "code" => self.label.to_owned(),
            "retry_after" => return Some(wait.map(|wait| retry_after_secs(wait).to_string())),
            "retry_after_ms" => return Some(wait.map(|wait| wait.ceil_millis().to_string())),
            "decision_id" => id.to_owned(),
            "limits" => self.limits().join(", "),
            _ => return None,
        }))
    }
}

/// Whether text that is appended to `json` is inside a string.
fn ends_in_string(json: &str) -> bool {
    let mut inside = false;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => inside = !inside,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
    inside
}
