//! Verbs that ask several gateways: what one of them does not do keeps no other one from doing it.

use serde_json::json;

use crate::harness::Gateway;
use crate::operator_words::program;

/// The token is `test`.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [limits.search]\nrate = \"9/hour\"\nper = \"address\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n";

#[test]
fn key_block_with_a_gateway_whose_name_is_not_found_blocks_on_the_others_and_exits_1() {
    let gateways = [(); 2].map(|()| Gateway::start(CONFIG));
    let [first, last] = gateways.each_ref().map(|one| one.admin().to_string());
    // No name has a label of more than 63 bytes, so that no server is asked for it.
    let lost = format!("{}:9180", "a".repeat(64));
    let (code, out, err) = program(
        &[
            "key",
            "block",
            "address",
            "127.0.0.1",
            "--for",
            "1h",
            "--reason",
            "r",
            "--admin",
            &[&first, &lost, &last].map(String::as_str).join(","),
        ],
        &[("TOLLGATE_TOKEN", "test")],
    );
    assert_eq!(code, Some(1), "{out}{err}");
    let words = format!("tollgate key block: {lost}: no response: its name is not found: ");
    assert!(err.contains(&words), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for (gateway, address) in gateways.iter().zip([&first, &last]) {
        assert!(out.contains(&format!("gateway    {address}\n")), "{out}");
        assert_eq!(gateway.get("/").status, 429);
        let list = gateway.admin_get("/api/v1/overrides").json();
        assert_eq!(list["overrides"][0]["block"], json!(true), "{list}");
    }
}
