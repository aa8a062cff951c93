//! Writes a refusal as JSON-RPC errors, one for each call that gets a response.

use bytes::Bytes;

use super::Refusal;
use super::refusal::escape_json;
use tollgate_policy::body::json::{CallId, Calls};

/// The errors of `calls`; `id` is the id of the decision. A batch gets a list.
pub(super) fn errors(refusal: &Refusal<'_>, calls: &Calls, id: &str) -> Bytes {
    let problem = refusal.document(id);
    let problem = String::from_utf8_lossy(problem.trim_ascii_end());
    let mut error = String::with_capacity(problem.len() + 256);
    // MCP and JSON-RPC leave the numbers outside of -32768 to -32000 to applications.
    error.push_str(",\"error\":{\"code\":");
    error.push_str(refusal.problem.status.as_str());
    error.push_str(",\"message\":\"");
    escape_json(&mut error, &refusal.message());
    error.push_str("\",\"data\":");
    error.push_str(&problem);
    error.push_str("}}");
    let mut out = String::with_capacity((error.len() + 64) * calls.ids.len());
    for (place, id) in calls.ids.iter().enumerate() {
        out.push_str(match (calls.batch, place) {
            (true, 0) => "[",
            (true, _) => ",",
            (false, _) => "",
        });
        out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
        match id {
            CallId::Null => out.push_str("null"),
            CallId::Number(number) => out.push_str(number),
            CallId::Text(text) => {
                out.push('"');
                escape_json(&mut out, text);
                out.push('"');
            }
        }
        out.push_str(&error);
    }
    if calls.batch {
        out.push(']');
    }
    out.push('\n');
    out.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, Request};
    use serde_json::{Value, json};

    use super::*;
    use crate::{Form, Problem, Reason, RefusalForm, Refused};
    use tollgate_limit::Micros;

    fn refused() -> Refused {
        Refused {
            violated: std::iter::once(Arc::from("per \"tool\"")).collect(),
            retry_after: Some(Micros(1_500_000)),
            ..Refused::default()
        }
    }

    fn written(problem: Problem, refused: &Refused, calls: &Calls) -> (u16, HeaderMap, Value) {
        let refusal = Refusal::new(problem, "denied", Reason::Denied(refused));
        let asked = RefusalForm::of(&Request::new(()), true, true);
        let response = refusal.response(&asked, Some(Form::Calls(calls)), "00c0ffee00c0ffee");
        let (head, body) = response.into_parts();
        let body = serde_json::from_slice(&body).expect("JSON");
        (head.status.as_u16(), head.headers, body)
    }

    #[test]
    fn refusal_of_a_call_is_an_error_with_its_id_and_the_problem() {
        for (id, sent) in [
            (CallId::Null, json!(null)),
            (CallId::Number("-1.5".into()), json!(-1.5)),
            (
                CallId::Text("a\"\u{1}\u{e4}".into()),
                json!("a\"\u{1}\u{e4}"),
            ),
        ] {
            let calls = Calls {
                batch: false,
                ids: std::iter::once(id).collect(),
            };
            let (status, headers, error) = written(refused().problem(), &refused(), &calls);
            assert_eq!(status, 200);
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(headers["retry-after"], "2");
            assert_eq!(headers["cache-control"], "no-store");
            assert_eq!((&error["jsonrpc"], &error["id"]), (&json!("2.0"), &sent));
            let error = &error["error"];
            assert_eq!(error["code"], 429);
            assert_eq!(
                error["message"],
                "The quota is used up for now. A retry after the time given is admitted. Refused by: per \"tool\". Retry after 2 s."
            );
            assert_eq!(error["data"]["status"], 429);
            assert_eq!(error["data"]["violated-policies"], json!(["per \"tool\""]));
            assert_eq!(error["data"]["retry_after_ms"], 1500);
            assert_eq!(error["data"]["decision_id"], "00c0ffee00c0ffee");
        }
    }

    #[test]
    fn refusal_of_a_batch_is_an_error_for_each_call() {
        let ids = [CallId::Number("1".into()), CallId::Text("b".into())];
        let calls = Calls {
            batch: true,
            ids: ids.into_iter().collect(),
        };
        let spent = Refused {
            budget: true,
            ..refused()
        };
        let (status, _, errors) = written(spent.problem(), &spent, &calls);
        assert_eq!(status, 200);
        let errors = errors.as_array().expect("a list");
        let ids: Vec<&Value> = errors.iter().map(|error| &error["id"]).collect();
        assert_eq!(ids, [&json!(1), &json!("b")]);
        assert!(errors.iter().all(|error| error["error"]["code"] == 402));
    }
}
