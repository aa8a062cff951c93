//! A store that loses its data loses the overrides of its limits: `docs/src/reference/admin.md`.

use std::path::Path;

use serde_json::{Value, json};

use crate::events::Reader;
use crate::harness::Gateway;
use crate::servers::{self, Redis};

/// A gateway with a limit in the process and one in the store.
fn start(redis: &Redis, secret: &Path) -> Gateway {
    Gateway::start_in_real_time(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }}]\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"refuse\"\nkey_secret_file = '{}'\n\
         [limits.own]\nrate = \"9/hour\"\nper = \"address\"\nstore = \"local\"\n\
         [limits.shared]\nrate = \"9/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/own\"\nupstream = \"builtin:echo\"\nlimits = [\"own\"]\n\
         [[routes]]\nmatch = \"/\"\nupstream = \"builtin:echo\"\nlimits = [\"shared\"]\n",
        redis.url(),
        secret.display(),
    ))
}

/// Whether a request is refused because of an operator's block.
fn is_blocked(gateway: &Gateway, path: &str) -> bool {
    gateway.get(path).text().contains("tollgate:blocked")
}

/// The limits of the overrides that a gateway knows.
fn overridden(gateway: &Gateway) -> Vec<Value> {
    let list = gateway.admin_get("/api/v1/overrides").json();
    let list = list["overrides"].as_array().expect("a list");
    list.iter().map(|one| one["limit"].clone()).collect()
}

fn audit(gateway: &Gateway) -> Value {
    gateway.admin_get("/api/v1/audit").json()["entries"].clone()
}

#[test]
fn override_on_a_redis_that_is_emptied_ends_on_every_gateway_and_is_told_as_lifted() {
    if !servers::available("redis-server") {
        return;
    }
    let redis = Redis::start();
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that gateways share").expect("written");
    let gateways = [(); 2].map(|()| start(&redis, &secret));
    let first = &gateways[0];
    let block = json!({ "reason": "r", "block": true, "for": "1h" });
    servers::wait_until("both limits are blocked", || {
        let path = "address/127.0.0.1/override";
        first.change("PUT", path, &block).status == 200
    });
    servers::wait_until("every gateway blocks", || {
        gateways.iter().all(|one| is_blocked(one, "/"))
    });
    let mut readers = gateways.each_ref().map(Reader::ready);
    let recorded = audit(first);
    redis.ask("FLUSHALL");
    for (gateway, reader) in gateways.iter().zip(&mut readers) {
        let (_, ended) = reader.next("override_ended");
        assert_eq!(
            (&ended["limit"], &ended["lifted"]),
            (&json!("shared"), &json!(true)),
            "{ended}"
        );
        assert!(!is_blocked(gateway, "/"));
    }
    // No operator did it; and what is in the process stays.
    assert_eq!(audit(first), recorded);
    assert_eq!(overridden(first), ["own"]);
    assert!(is_blocked(first, "/own"));
    assert_eq!(overridden(&gateways[1]), [""; 0]);
}
