//! Identities over HTTP: every source of a key, exempt networks, caller lists and key sets that reload alone.

use std::path::Path;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use crate::harness::{Gateway, Upstream, eventually};

/// One request an hour for each `identity`.
fn one_each(identity: &str, upstream: &Upstream) -> String {
    format!(
        "[identities.who]\nwhen_missing = \"refuse\"\n{identity}\n\
         [limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"who\"\n\
         [[routes]]\nmatch = \"/u/{{id}}\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
        upstream.url()
    )
}

#[test]
fn identity_every_source_distinguishes_callers() {
    let upstream = Upstream::hello();
    // The key, two requests of different callers, and one without any key.
    let basic = ["Basic YWxhZGRpbjpvcGVuc2VzYW1l", "Basic Ym9iOng="];
    for (key, first, second, missing) in [
        (
            "header:x-api-key",
            ("/u/1", "x-api-key", "a"),
            ("/u/1", "x-api-key", "b"),
            true,
        ),
        (
            "bearer",
            ("/u/1", "authorization", "Bearer a"),
            ("/u/1", "authorization", "Bearer b"),
            true,
        ),
        (
            "basic",
            ("/u/1", "authorization", basic[0]),
            ("/u/1", "authorization", basic[1]),
            true,
        ),
        (
            "cookie:sid",
            ("/u/1", "cookie", "x=1; sid=a"),
            ("/u/1", "cookie", "sid=b"),
            true,
        ),
        (
            "query:key",
            ("/u/1?key=a&x=1", "x", "x"),
            ("/u/1?x=1&key=b", "x", "x"),
            true,
        ),
        ("path:id", ("/u/1", "x", "x"), ("/u/2", "x", "x"), false),
    ] {
        let gateway = Gateway::start(&one_each(&format!("key = [\"{key}\"]"), &upstream));
        let ask = |(path, name, value): (&str, &str, &str)| {
            gateway.request("GET", path, &[(name, value)]).status
        };
        assert_eq!(
            [ask(first), ask(second)],
            [200, 200],
            "{key}: each has a bucket of its own"
        );
        assert_eq!([ask(first), ask(second)], [429, 429], "{key}");
        if missing {
            assert_eq!(gateway.get("/u/9").status, 401, "{key}");
        }
    }
    let gateway = Gateway::start(&one_each(
        "key = [\"header:x-org\", \"path:id\"]",
        &upstream,
    ));
    let ask = |path: &str, org: &str| gateway.request("GET", path, &[("x-org", org)]).status;
    assert_eq!(
        [ask("/u/1", "a"), ask("/u/2", "a"), ask("/u/1", "b")],
        [200; 3],
        "a composite is all of its parts"
    );
    assert_eq!(
        [ask("/u/1", "a"), ask("/u/2", "a"), ask("/u/1", "b")],
        [429; 3]
    );
}

#[test]
fn an_exempt_network_is_never_limited_and_no_client_can_claim_to_be_in_it() {
    let upstream = Upstream::hello();
    let limits = format!(
        "[limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
        upstream.url()
    );
    let exempt = "exempt = [\"192.0.2.0/24\"]\n";
    let gateway = Gateway::start(&format!(
        "[address]\ntrusted_proxies = [\"127.0.0.1\"]\n{exempt}{limits}"
    ));
    let from = |gateway: &Gateway, chain: &str| {
        gateway
            .request("GET", "/", &[("x-forwarded-for", chain)])
            .status
    };
    for _ in 0..3 {
        assert_eq!(from(&gateway, "198.51.100.9, 192.0.2.7"), 200, "exempt");
    }
    assert_eq!(
        [
            from(&gateway, "198.51.100.9"),
            from(&gateway, "192.0.2.7, 198.51.100.9")
        ],
        [200, 429]
    );
    assert_eq!(
        [
            from(&gateway, "2001:db8:1:2::1"),
            from(&gateway, "2001:db8:1:2:ffff::1")
        ],
        [200, 429],
        "one /64"
    );
    assert_eq!(
        from(&gateway, "::ffff:192.0.2.8"),
        200,
        "exempt, written as IPv6"
    );

    let gateway = Gateway::start(&format!("[address]\n{exempt}{limits}"));
    assert_eq!(
        [from(&gateway, "192.0.2.7"), from(&gateway, "192.0.2.8")],
        [200, 429],
        "a stranger is not believed"
    );
}

/// SHA-256 of `test`.
const TEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

#[test]
fn a_caller_list_is_read_again_when_it_changes_and_a_bad_one_is_not() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("callers.toml");
    let write = |text: &str| std::fs::write(&list, text).expect("written");
    write("");
    let gateway = Gateway::start(&format!(
        "[tiers.pro]\nit = {{ rate = \"3/hour\", burst = 3 }}\n{}",
        one_each(
            &format!(
                "key = \"header:x-api-key\"\nwhen_unknown = \"refuse\"\ncallers = '{}'",
                list.display()
            ),
            &upstream
        )
    ));
    let ask = || {
        gateway
            .request("GET", "/u/1", &[("x-api-key", "test")])
            .status
    };
    assert_eq!(ask(), 401, "not on the list");
    write(&format!(
        "\"{TEST}\" = {{ name = \"acme\", tier = \"gold\" }}\n"
    ));
    let failed = "tollgate_config_reloads_total{result=\"failure\"} 1";
    eventually("the bad list is seen", || {
        gateway.admin_get("/metrics").text().contains(failed)
    });
    assert_eq!(ask(), 401, "there is no such tier: the list in force stays");
    write(&format!(
        "\"{TEST}\" = {{ name = \"acme\", tier = \"pro\" }}\n"
    ));
    let done = "tollgate_config_reloads_total{result=\"success\"} 1";
    eventually("the new list is in force", || {
        gateway.admin_get("/metrics").text().contains(done)
    });
    assert_eq!(
        [ask(), ask(), ask(), ask()],
        [200, 200, 200, 429],
        "of the tier that the list says"
    );
}

/// A tier without numbers exists in the file and in none of its limits: every list that named it was refused when it was read
/// alone, so that no key could be revoked.
#[test]
fn callers_file_with_a_tier_without_numbers_revokes_a_key_and_a_refused_one_is_reported() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("callers.toml");
    let write = |text: &str| std::fs::write(&list, text).expect("written");
    let other = format!(
        "\"sha256:{:064}\" = {{ name = \"other\", tier = \"free\" }}\n",
        0
    );
    let acme = format!("\"{TEST}\" = {{ name = \"acme\", tier = \"free\" }}\n");
    write(&format!("{acme}{other}"));
    let gateway = Gateway::start(&format!(
        "[tiers]\nfree = {{}}\n{}",
        one_each(
            &format!(
                "key = \"header:x-api-key\"\nwhen_unknown = \"refuse\"\ncallers = '{}'",
                list.display()
            ),
            &upstream
        )
    ));
    let ask = || {
        gateway
            .request("GET", "/u/1", &[("x-api-key", "test")])
            .status
    };
    assert_eq!(ask(), 200);
    write(&other);
    eventually("the key is revoked", || ask() == 401);

    let told = || {
        let status = gateway.admin_get("/api/v1/status").text();
        let ready = gateway.admin_get("/readyz?verbose").text();
        let metrics = gateway.admin_get("/metrics").text();
        [
            status.contains("unknown tier `gold`"),
            ready.contains("[!] configuration: the new one is refused: error: unknown tier `gold`"),
            metrics.contains("tollgate_config_last_reload_successful 0"),
        ]
    };
    assert_eq!(told(), [false; 3]);
    write(&other.replace("free", "gold"));
    eventually("the refused list is reported", || told() == [true; 3]);
    // What is refused of the configuration stays reported when a list is taken, and the other way round.
    gateway.reload("nonsense").expect_err("a bad file");
    let nonsense = || {
        gateway
            .admin_get("/api/v1/status")
            .text()
            .contains("not TOML")
    };
    assert!(nonsense() && told()[0]);
    write(&acme);
    eventually("the key is accepted again", || ask() == 429);
    assert!(nonsense());
    assert_eq!(told(), [false, false, true]);
}

#[test]
fn a_proxy_that_is_not_trusted_is_reported_until_it_is() {
    let upstream = Upstream::hello();
    let file = |address: &str| {
        format!(
            "{address}[limits.each]\nrate = \"1/hour\"\nburst = 1\nper = \"address\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"each\"]\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&file(""));
    let reported = || {
        gateway
            .admin_get("/readyz?verbose")
            .text()
            .contains("[!] trusted_proxies: requests from 127.0.0.1 ")
    };
    let from = |client| {
        gateway
            .request("GET", "/", &[("x-forwarded-for", client)])
            .status
    };
    assert_eq!(gateway.get("/").status, 200);
    assert!(!reported(), "no request has named another client");
    assert_eq!(from("192.0.2.1"), 429, "all clients of the proxy are one");
    assert!(reported());
    assert_eq!(gateway.admin_get("/readyz").status, 200, "it stays ready");
    let trusting = file("[address]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    gateway.reload(&trusting).expect("a good file");
    assert_eq!([from("192.0.2.1"), from("192.0.2.2")], [200, 200]);
    assert!(!reported());
}

#[test]
fn a_token_is_verified_and_its_keys_are_read_again_when_they_change() {
    let testdata =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/policy/src/identity/jwt/testdata");
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("jwks.json");
    let set = |kid: &str| {
        // The same two keys, one of them under another name: tokens with the old name are not known any more.
        let all = std::fs::read(testdata.join("jwks.json")).expect("the key set");
        let mut set: serde_json::Value = serde_json::from_slice(&all).expect("JSON");
        let list = set["keys"].as_array_mut().expect("keys");
        list.retain(|key| key["kid"] == "d1" || key["kid"] == "e1");
        let renamed = list
            .iter_mut()
            .find(|key| key["kid"] == "d1")
            .expect("an Ed25519 key");
        renamed["kid"] = json!(kid);
        std::fs::write(&keys, set.to_string()).expect("written");
    };
    set("d1");
    let gateway = Gateway::start(&one_each(
        &format!(
            "key = \"jwt:sub\"\n\
             jwt = {{ keys = '{}', issuer = \"https://id\", audience = \"api\", algorithms = [\"EdDSA\", \"ES256\"] }}",
            keys.display()
        ),
        &upstream,
    ));
    let token = |kid: &str, sub: &str, issuer: &str, expires: u64| {
        let (algorithm, file) = if kid == "e1" {
            (Algorithm::ES256, "ec.pem")
        } else {
            (Algorithm::EdDSA, "ed.pem")
        };
        let pem = std::fs::read(testdata.join(file)).expect("a key");
        let key = if kid == "e1" {
            EncodingKey::from_ec_pem(&pem)
        } else {
            EncodingKey::from_ed_pem(&pem)
        };
        let header = Header {
            kid: Some(kid.to_owned()),
            ..Header::new(algorithm)
        };
        let claims = json!({ "sub": sub, "iss": issuer, "aud": "api", "exp": expires });
        encode(&header, &claims, &key.expect("a key")).expect("a token")
    };
    let ask = |token: &str| {
        gateway.request(
            "GET",
            "/u/1",
            &[("authorization", &format!("Bearer {token}"))],
        )
    };
    let (later, good) = (1_900_000_000, "https://id");
    let (ann, bob) = (
        token("d1", "ann", good, later),
        token("d1", "bob", good, later),
    );
    assert_eq!(
        [ask(&ann).status, ask(&bob).status, ask(&ann).status],
        [200, 200, 429],
        "a bucket for each subject"
    );
    let refused = ask(&token("d1", "eve", "https://other", later));
    assert_eq!(
        (refused.status, refused.header("www-authenticate")),
        (401, Some("Bearer"))
    );
    assert_eq!(
        ask(&token("d1", "eve", good, 1_700_000_000)).status,
        401,
        "expired"
    );
    assert_eq!(
        ask(&token("d2", "eve", good, later)).status,
        401,
        "of a key that is not in the set"
    );
    assert_eq!(
        ask(&format!("{}x", &ann[..ann.len() - 3])).status,
        401,
        "forged"
    );

    set("d2");
    eventually("the new keys are in force", || ask(&bob).status == 401);
    assert_eq!(
        [
            ask(&token("d2", "cat", good, later)).status,
            ask(&token("e1", "dan", good, later)).status
        ],
        [200, 200]
    );
    assert_eq!(
        ask(&token("d2", "ann", good, later)).status,
        429,
        "ann's bucket is not refilled"
    );
}

#[test]
fn identity_401_names_the_missing_credential() {
    for (key, expected) in [
        (
            "header:x-api-key",
            "ApiKey realm=\"who\", in=\"header\", name=\"x-api-key\"",
        ),
        (
            "cookie:sid",
            "ApiKey realm=\"who\", in=\"cookie\", name=\"sid\"",
        ),
        (
            "query:key",
            "ApiKey realm=\"who\", in=\"query\", name=\"key\"",
        ),
        ("client_certificate", "ClientCertificate realm=\"who\""),
        ("bearer", "Bearer"),
        ("basic", "Basic realm=\"api\", charset=\"UTF-8\""),
    ] {
        let gateway = Gateway::start(&format!(
            "[identities.who]\nkey = \"{key}\"\nwhen_missing = \"refuse\"\n\
             [limits.it]\nrate = \"1/hour\"\nper = \"who\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n"
        ));
        let refused = gateway.get("/");
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some(expected)),
            "{key}"
        );
    }
    // Several together: the first that a client can choose, unless a registered scheme is among them.
    let digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    for (key, expected) in [
        (
            "['address', 'query:a\"b', 'header:x-b']",
            "ApiKey realm=\"who\", in=\"query\", name=\"a\\\"b\"",
        ),
        ("['header:x-a', 'bearer']", "Bearer"),
    ] {
        let gateway = Gateway::start(&format!(
            "[identities.who]\nkey = {key}\nwhen_missing = \"refuse\"\n\
             [limits.it]\nrate = \"1/hour\"\nper = \"who\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n"
        ));
        let refused = gateway.get("/");
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some(expected)),
            "{key}"
        );
    }
    // A key that is there and not known.
    for (key, expected) in [
        (
            "path:who",
            "ApiKey realm=\"who\", in=\"path\", name=\"who\"",
        ),
        (
            "header:x-api-key",
            "ApiKey realm=\"who\", in=\"header\", name=\"x-api-key\"",
        ),
    ] {
        let gateway = Gateway::start(&format!(
            "[identities.who]\nkey = \"{key}\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
             [identities.who.callers]\n\"{digest}\" = {{ name = \"acme\" }}\n\
             [limits.it]\nrate = \"1/hour\"\nper = \"who\"\n\
             [[routes]]\nmatch = \"/{{who}}\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n"
        ));
        let refused = gateway.request("GET", "/made-up", &[("x-api-key", "made-up")]);
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some(expected)),
            "{key}"
        );
        let twice = gateway.request("GET", "/made-up", &[("x-api-key", "a"), ("x-api-key", "b")]);
        assert!(
            twice.status == 401 || twice.header("www-authenticate").is_none(),
            "{key}: {twice:?}"
        );
    }
}
