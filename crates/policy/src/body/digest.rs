//! Digests of JSON values as keys: two calls with the same arguments have the same digest, however each
//! is written. The order of members, blanks, escapes and the form of numbers do not count.

use serde_json::Value;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::flaw::BodyFlaw;
use crate::body::json;
use tollgate_limit::hex;

/// The digests of the values at those `paths` that are `asked` for, with their places. All calls of a
/// batch must have the same ones.
pub(super) fn digests(
    paths: &[Vec<String>],
    asked: u64,
    text: &[u8],
) -> Result<SmallVec<[(usize, Vec<u8>); 1]>, BodyFlaw> {
    let body: Value = serde_json::from_slice(text).map_err(|_| BodyFlaw::Malformed)?;
    let calls = match &body {
        Value::Array(calls) => calls.as_slice(),
        call => std::slice::from_ref(call),
    };
    let mut found = SmallVec::new();
    for place in json::places(asked) {
        let mut of_calls = calls.iter().map(|call| digest(call, &paths[place]));
        let first = of_calls.next().flatten();
        if of_calls.any(|other| other != first) {
            return Err(BodyFlaw::Mixed);
        }
        found.extend(first.map(|digest| (place, digest)));
    }
    Ok(found)
}

/// The digest of the value at `path`, as hex digits; `None`: it is absent, or `null`.
fn digest(call: &Value, path: &[String]) -> Option<Vec<u8>> {
    let value = path.iter().try_fold(call, |value, name| value.get(name))?;
    if value.is_null() {
        return None;
    }
    let mut hasher = Sha256::new();
    add(value, &mut hasher);
    let digest = hasher.finalize();
    Some(hex::digits(&digest[..DIGEST_BYTES]).into_bytes())
}

fn add(value: &Value, to: &mut Sha256) {
    match value {
        Value::Array(list) => {
            to.update(b"[");
            for element in list {
                add(element, to);
                to.update(b",");
            }
            to.update(b"]");
        }
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort_unstable();
            to.update(b"{");
            for name in names {
                to.update(Value::from(name.as_str()).to_string());
                to.update(b":");
                add(&members[name], to);
                to.update(b",");
            }
            to.update(b"}");
        }
        // 1.0 and 1e0 are 1.
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < EXACT => {
                to.update(format!("{:.0}", float + 0.0));
            }
            _ => to.update(number.to_string()),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => to.update(value.to_string()),
    }
}

/// Half of a SHA-256 digest: no two different calls have the same in practice.
const DIGEST_BYTES: usize = 16;
/// Below this, whole numbers are exact as IEEE 754 doubles.
const EXACT: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<Vec<u8>>, BodyFlaw> {
        let path = vec!["params".to_owned(), "arguments".to_owned()];
        let found = digests(&[path], 1, text.as_bytes())?;
        Ok(found.into_iter().next().map(|(_, digest)| digest))
    }

    #[test]
    fn digest_is_of_the_value_and_not_of_how_it_is_written() {
        let call = |arguments: &str| {
            of(&format!(
                r#"{{"id":7,"params":{{"arguments":{arguments}}}}}"#
            ))
            .expect("JSON")
        };
        let one = call(r#"{"q":"a","n":[1,2.5,-0],"x":{"b":true,"a":null}}"#);
        assert_eq!(one.as_ref().map(Vec::len), Some(32));
        for same in [
            r#"{ "x": {"a":null , "b":true}, "n":[1.0,25e-1,0], "q":"\u0061" }"#,
            r#"{"n":[10e-1,2.50,0.0],"q":"a","x":{"b":true,"a":null}}"#,
        ] {
            assert_eq!(call(same), one, "{same}");
        }
        for other in [
            r#"{"q":"b","n":[1,2.5,0],"x":{"b":true,"a":null}}"#,
            r#"{"q":"a","n":[2.5,1,0],"x":{"b":true,"a":null}}"#,
            r#"{"q":"a","n":["1",2.5,0],"x":{"b":true,"a":null}}"#,
            r#"{"q":"a","n":[1,2.5,0],"x":{"b":true}}"#,
            r#"{"q":"a","n":[[1],2.5,0],"x":{"b":true,"a":null}}"#,
            "{}",
            "[]",
            "9007199254740993",
        ] {
            assert_ne!(call(other), one, "{other}");
            assert!(call(other).is_some(), "{other}");
        }
        assert_ne!(call("9007199254740993"), call("9007199254740992"));
        assert_eq!(call("null"), None);
        assert_eq!(of("{}"), Ok(None));
        let batch = |second: &str| {
            let call = |arguments: &str| format!(r#"{{"params":{{"arguments":{arguments}}}}}"#);
            of(&format!("[{},{}]", call("[1]"), call(second)))
        };
        assert_eq!(batch("[1.0]"), Ok(call("[1]")));
        assert_eq!(batch("[2]"), Err(BodyFlaw::Mixed));
    }
}
