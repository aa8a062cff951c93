//! Short forms of the file, over HTTP: default limits, sources in `per`, tiers of clients without a key, proxies by number.

use crate::harness::Gateway;

/// SHA-256 of `test` and of `free`.
const TEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const FREE: &str = "sha256:ad95d5fa651ba86d8923fe1238d24a4f1988a752acfe426ac72ac7c04471bc17";

/// How many of ten requests are admitted.
fn admitted(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> usize {
    let ask = |_: &usize| gateway.request("GET", path, headers).status == 200;
    (0..10).filter(ask).count()
}

#[test]
fn default_limits_hold_on_every_route_that_has_none_of_its_own() {
    let gateway = Gateway::start(
        "[limits.all]\nrate = \"2/hour\"\nper = \"everyone\"\n\
         [limits.other]\nrate = \"5/hour\"\nper = \"everyone\"\n\
         [defaults]\nlimits = [\"all\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n\
         [[routes]]\nmatch = \"/own\"\nupstream = \"builtin:echo\"\nlimits = [\"other\"]\n\
         [[routes]]\nmatch = \"/free\"\nupstream = \"builtin:echo\"\nlimits = []\n",
    );
    assert_eq!(admitted(&gateway, "/a", &[]), 2);
    assert_eq!(admitted(&gateway, "/own", &[]), 5);
    assert_eq!(admitted(&gateway, "/free", &[]), 10);
}

#[test]
fn per_source_counts_each_key_and_a_missing_key_follows_when_missing() {
    let with = |when_missing: &str| {
        Gateway::start(&format!(
            "[limits.a]\nrate = \"3/hour\"\nper = \"header:x-api-key\"\nwhen_missing = \"{when_missing}\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n"
        ))
    };
    let gateway = with("use:address");
    assert_eq!(admitted(&gateway, "/", &[("x-api-key", "one")]), 3);
    assert_eq!(admitted(&gateway, "/", &[("x-api-key", "two")]), 3);
    assert_eq!(admitted(&gateway, "/", &[]), 3);
    let refused = with("refuse").request("GET", "/", &[]);
    assert_eq!(refused.status, 401);
}

#[test]
fn tiers_of_listed_single_and_anonymous_clients_apply() {
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = {{ first_of = [\"header:x-api-key\", \"query:key\"] }}\n\
         when_missing = {{ use = \"address\", tier = \"anonymous\" }}\nwhen_unknown = \"use:address\"\n\
         [identities.tenant.callers]\n\
         \"{TEST}\" = {{ name = \"acme\", limits = {{ a = \"7/hour\" }} }}\n\
         \"{FREE}\" = {{ name = \"small\", tier = \"free\" }}\n\
         [tiers]\nfree = {{}}\nanonymous = {{ a = \"2/hour\" }}\n\
         [limits.a]\nrate = \"4/hour\"\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n"
    ));
    assert_eq!(admitted(&gateway, "/", &[("x-api-key", "test")]), 7);
    // The same key in the query is the same caller: nothing is left.
    assert_eq!(admitted(&gateway, "/?key=test", &[]), 0);
    assert_eq!(admitted(&gateway, "/", &[("x-api-key", "free")]), 4);
    assert_eq!(admitted(&gateway, "/", &[]), 2);
    // A made-up key has neither a bucket of its own nor better numbers.
    assert_eq!(admitted(&gateway, "/", &[("x-api-key", "made-up")]), 0);
    let two = gateway.request("GET", "/?key=free", &[("x-api-key", "test")]);
    assert_eq!(two.status, 400, "two keys that differ");
}

#[test]
fn per_method_made_up_methods_share_one_bucket() {
    let gateway = Gateway::start(
        "[limits.a]\nrate = \"2/hour\"\nper = [\"address\", \"method\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n",
    );
    let ask = |method: &str| gateway.request(method, "/", &[]).status;
    assert_eq!([ask("GET"), ask("HEAD"), ask("GET")], [200, 200, 429]);
    assert_eq!([ask("PUT"), ask("PUT"), ask("PUT")], [200, 200, 429]);
    assert_eq!([ask("FOO"), ask("BAR"), ask("BAZ")], [200, 200, 429]);
}

#[test]
fn trusted_hops_take_the_address_that_the_outermost_proxy_wrote() {
    let gateway = Gateway::start(
        "[address]\ntrusted_hops = 2\n\
         [limits.a]\nrate = \"2/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n",
    );
    // What a client writes itself stands further left.
    let from = |made_up: &str| format!("{made_up}, 192.0.2.7, 10.0.0.1");
    let ask = |list: &str| {
        gateway
            .request("GET", "/", &[("x-forwarded-for", list)])
            .status
    };
    assert_eq!(ask(&from("198.51.100.1")), 200);
    assert_eq!(ask(&from("198.51.100.2")), 200);
    assert_eq!(ask(&from("198.51.100.3")), 429);
    assert_eq!(ask("192.0.2.8, 10.0.0.1"), 200);
}
