//! Keys, routes and costs that the body of a request says, and the body that is forwarded afterwards.

mod forwarded;
mod held;
mod keys;
mod refused;
mod too_long;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, Upstream};

/// The limits of a tool, which this member of the body names, and of everyone.
fn of_tool(member: &str) -> String {
    format!(
        r#"
[identities.tool]
key = "json:{member}"
when_missing = "skip"

[limits.tool]
rate = "10/day"
per = "tool"

[limits.total]
rate = "100/day"
per = "everyone"
"#
    )
}

/// A limit of each model, which the body must name, with these numbers.
fn of_model(numbers: &str) -> String {
    format!(
        r#"
[limits.model]
{numbers}
per = "json:model"
when_missing = "refuse"
"#
    )
}

/// Calls of tools: each tool has ten calls, searches go elsewhere, and the rest has a limit of its own.
fn tools(upstream: &Upstream, searches: &Upstream) -> String {
    format!(
        r#"
{}
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
        of_tool("params.name"),
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
    send(connection, path, fields, body, body.len());
    connection.answer("POST")
}

/// Sends a request with `body`, which is said to have so many bytes.
fn send(connection: &mut Connection, path: &str, fields: &str, body: &str, length: usize) {
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
}

/// Posts `body` in one chunk; returns the status.
fn post_chunked(gateway: &Gateway, path: &str, body: &str) -> u16 {
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    ));
    connection.answer("POST").status
}
