//! Keys, routes and costs that the body of a request says, and the body that is forwarded afterwards.

mod forwarded;
mod keys;
mod refused;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, Upstream};

/// Calls of tools: each tool has ten calls, searches go elsewhere, and the rest has a limit of its own.
fn tools(upstream: &Upstream, searches: &Upstream) -> String {
    format!(
        r#"
[identities.tool]
key = "json:params.name"
when_missing = "skip"

[limits.tool]
rate = "10/day"
per = "tool"

[limits.total]
rate = "100/day"
per = "everyone"

[[routes]]
match = "POST /mcp"
upstream = "{}"
limits = ["tool", "total"]

[[routes]]
match = {{ methods = "POST", path = "/mcp", body = {{ "json:method" = "tools/call", "json:params.name" = "search" }} }}
upstream = "{}"
limits = ["tool"]

[[routes]]
match = "/plain"
upstream = "{}"
"#,
        upstream.url(),
        searches.url(),
        upstream.url()
    )
}

fn call(tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    )
}

fn post(connection: &mut Connection, path: &str, fields: &str, body: &str) -> Answer {
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}
