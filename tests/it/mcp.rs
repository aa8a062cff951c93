//! MCP's own client and server with the gateway between them: each tool has a limit of its own, and the client shows the reason of a
//! refusal.

use serde_json::{Value, json};

use crate::harness::{Gateway, Peers};

/// The client and the server, if `./check` has installed them.
fn peers() -> Option<Peers> {
    Peers::with_tool("mcp", "tests/it/mcp_peers.py")
}

#[test]
fn mcp_client_works_through_the_gateway_and_shows_the_reason_of_a_refusal() {
    let Some(mut peers) = peers() else {
        return;
    };
    let port = peers.hear();
    // The newest protocol, and the one that begins with a session and a stream of the server.
    for mode in ["auto", "legacy"] {
        let gateway = Gateway::start(&format!(
            "[identities.tool]\nkey = \"json:params.name\"\nwhen_missing = \"skip\"\n\
             [limits.tool]\nrate = \"2/day\"\nburst = 2\nper = \"tool\"\n\
             [limits.counts]\nrate = \"3/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefuse_status = 402\n\
             [[routes]]\nmatch = \"/mcp\"\nupstream = \"http://127.0.0.1:{port}\"\nlimits = [\"tool\"]\nrefusal = \"json-rpc\"\n\
             [[routes]]\nmatch = {{ methods = \"POST\", path = \"/mcp\", body = {{ \"json:params.name\" = \"count\" }} }}\n\
             upstream = \"http://127.0.0.1:{port}\"\nlimits = [\"counts\"]\nrefusal = \"json-rpc\"\n"
        ));
        let search = json!({"tool": "search", "arguments": {"text": "it"}});
        let count = json!({"tool": "count", "arguments": {"to": 3}});
        let calls = [
            &search, &search, &search, &count, &count, &count, &count, &search,
        ];
        let told = peers.tell(&json!({
            "url": format!("http://{}/mcp", gateway.address()),
            "mode": mode,
            "calls": calls,
        }));
        assert_eq!(told["tools"], json!(["search", "count"]), "{told}");
        let calls = told["calls"].as_array().expect("a list");
        let found = json!({"text": "found it", "failed": false, "progress": []});
        assert_eq!([&calls[0], &calls[1]], [&found; 2]);
        // Progress comes as server-sent events before the result.
        let counted = json!({"text": "3", "failed": false, "progress": [1.0, 2.0, 3.0]});
        assert_eq!(
            [&calls[3], &calls[4], &calls[5]],
            [&counted; 3],
            "another tool"
        );
        let refused = |call: &Value, status: u16, limit: &str| {
            assert_eq!(call["code"], status, "{call}");
            let message = call["error"].as_str().expect("a message");
            let limits = format!(" Refused by: {limit}. Retry after ");
            assert!(message.contains(&limits), "{message}");
            assert_eq!(call["data"]["violated-policies"], json!([limit]));
            assert_eq!(call["data"]["status"], status);
            assert!(call["data"]["retry_after_ms"].is_u64(), "{call}");
        };
        refused(&calls[2], 429, "tool");
        refused(&calls[6], 402, "counts");
        refused(&calls[7], 429, "tool");
    }
}
