//! `key reset` with a store that responds, but late: a bucket is seen to be full within the time of a change, and a change
//! that one gateway cannot make is left to the others.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::Gateway;
use crate::harness::client::Answer;
use crate::servers::{self, Redis, SlowNetwork};

/// A visit to the slow store: two of them take less than reads may take for one response (2 s), and three take more. A
/// change of the shared document may take two, because it waits for a look at the document.
const VISIT: Duration = Duration::from_millis(700);

const LIMITS: [&str; 4] = ["a", "b", "c", "d"];

/// Two gateways on one Redis, of which the second one reaches it over a network that becomes slow.
struct Pair {
    quick: Gateway,
    slow: Gateway,
    network: SlowNetwork,
    _redis: Redis,
}

impl Pair {
    fn start() -> Option<Self> {
        if !servers::available("redis-server") {
            return None;
        }
        let redis = Redis::start();
        let network = SlowNetwork::to(redis.port, VISIT);
        let folder = tempfile::tempdir().expect("a folder");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "a secret that gateways share").expect("written");
        let pair = Self {
            quick: start(redis.port, &secret),
            slow: start(network.port, &secret),
            network,
            _redis: redis,
        };
        servers::wait_until("the store keeps overrides", || {
            pair.is_blocked(&pair.quick, "192.0.2.8")
        });
        Some(pair)
    }

    /// Makes the network slow, once the second gateway knows all changes of the first one.
    fn delay(&self) {
        assert!(self.is_blocked(&self.quick, "192.0.2.9"));
        servers::wait_until("the other gateway learns of changes", || {
            let known = self.slow.admin_get("/api/v1/overrides").text().to_owned();
            known.contains("192.0.2.9")
        });
        self.network.delay();
    }

    /// Blocks this address; returns whether the gateway has done so.
    fn is_blocked(&self, gateway: &Gateway, address: &str) -> bool {
        let body = json!({ "reason": "r", "block": true, "for": "1h" });
        let path = format!("address/{address}/override");
        gateway.change("PUT", &path, &body).status == 200
    }
}

fn start(port: u16, secret: &Path) -> Gateway {
    let limits =
        LIMITS.map(|name| format!("[limits.{name}]\nrate = \"9/hour\"\nper = \"address\"\n"));
    Gateway::start_in_real_time(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }}]\n\
         [store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{port}/0\"\nwhen_down = \"allow\"\nanswer_within = \"1s\"\n\
         key_secret_file = '{}'\n{}[[routes]]\nmatch = \"/\"\nupstream = \"builtin:echo\"\nlimits = {LIMITS:?}\n",
        secret.display(),
        limits.concat(),
    ))
}

fn reset(gateway: &Gateway, body: &Value) -> Answer {
    gateway.change("POST", "address/192.0.2.7/reset", body)
}

#[test]
fn reset_with_a_slow_store_is_confirmed_after_the_time_of_reads() {
    let Some(pair) = Pair::start() else { return };
    pair.delay();
    let done = reset(&pair.slow, &json!({ "reason": "r", "limit": "a" }));
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(done.json()["buckets"][0]["after"]["level"]["remaining"], 9);
}
