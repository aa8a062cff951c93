//! Every TOML block of the documents is a configuration that `tollgate check` accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::markdown::{Block, Directive, documents};
use crate::{BOOK, EXAMPLES, README};

#[test]
fn documents_toml_block_is_a_good_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    write_files(directory.path());
    let mut seen = 0;
    for document in documents(&[README, BOOK, EXAMPLES]) {
        for block in document
            .blocks
            .iter()
            .filter(|block| block.language == "toml")
        {
            seen += 1;
            let place = format!("{}:{}", document.path.display(), block.line);
            // Not a gateway.toml: a list of callers, or a part of the configuration that another block includes.
            if matches!(&block.directive, Directive::File(name) if !has_routes(&block.text) && name != "gateway.toml")
            {
                continue;
            }
            check(directory.path(), &complete(block, &place), &place);
        }
    }
    assert!(seen > 20, "the documents show configurations: {seen}");
}

fn check(directory: &Path, text: &str, place: &str) {
    let file = directory.join("gateway.toml");
    std::fs::write(&file, text).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--config", "gateway.toml"])
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .envs(environment(text))
        .output()
        .expect("the program runs");
    assert!(
        output.status.success(),
        "{place}:\n{text}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A value for every `${NAME}` of the text.
fn environment(text: &str) -> BTreeMap<String, String> {
    let names = text.split("${").skip(1).map(|rest| {
        rest.chars()
            .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
            .collect::<String>()
    });
    names
        .map(|name| {
            let value = match name.as_str() {
                "STATE_DIRECTORY" => ".",
                "PORT" => "8080",
                "BURST" => "20",
                _ if name.contains("POSTGRES") => "postgres://127.0.0.1:5432/postgres",
                _ if name.contains("MARIADB") => "mysql://root@127.0.0.1:3306/tollgate",
                _ if name.contains("URL") => "redis://127.0.0.1:6379/0",
                _ => "a secret that is long enough to be one",
            };
            (name, value.to_owned())
        })
        .collect()
}

/// Whether a file has routes, as tables or as a list.
fn has_routes(text: &str) -> bool {
    text.contains("[[routes]]") || text.lines().any(|line| line.starts_with("routes = ["))
}

/// A fragment with the tables that it refers to, so that it is a whole configuration.
fn complete(block: &Block, place: &str) -> String {
    let mut text = block.text.clone();
    let has_routes = has_routes(&text);
    if block.directive != Directive::Fragment {
        // A gateway that only decides about descriptors has no routes.
        assert!(
            has_routes || text.contains("grpc://"),
            "{place}: without a route it is a fragment: put <!-- fragment --> above it"
        );
        return text;
    }
    let table: toml::Table = text
        .parse()
        .unwrap_or_else(|error| panic!("{place}: {error}"));
    let names = |of: &str| -> BTreeSet<String> {
        let known = table.get(of).and_then(toml::Value::as_table);
        known
            .into_iter()
            .flat_map(|table| table.keys().cloned())
            .collect()
    };
    let mut limits = names("limits");
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let routes = table.get("routes").and_then(toml::Value::as_array);
    for route in routes.into_iter().flatten() {
        for limit in route
            .get("limits")
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten()
        {
            let name = limit.as_str().or_else(|| limit.get("limit")?.as_str());
            wanted.extend(name.map(str::to_owned));
        }
        let upstream = route.get("upstream").and_then(toml::Value::as_str);
        if let Some(name) = upstream.filter(|name| !name.contains(':'))
            && !names("upstreams").contains(name)
        {
            text.push_str(&format!(
                "\n[upstreams.{name}]\nservers = [\"http://127.0.0.1:3000\"]\n"
            ));
        }
    }
    // The numbers of a tier are numbers of a limit.
    for tier in table
        .get("tiers")
        .and_then(toml::Value::as_table)
        .into_iter()
        .flat_map(|tiers| tiers.values())
    {
        wanted.extend(
            tier.as_table()
                .into_iter()
                .flat_map(|tier| tier.keys().cloned()),
        );
    }
    for name in wanted.difference(&limits.clone()) {
        text.push_str(&format!(
            "\n[limits.{name}]\nrate = \"100/minute\"\nper = \"address\"\n"
        ));
        limits.insert(name.clone());
    }
    let scopes = table.get("limits").and_then(toml::Value::as_table);
    let mut identities = names("identities");
    for limit in scopes.into_iter().flat_map(|limits| limits.values()) {
        let per = limit
            .get("per")
            .and_then(toml::Value::as_str)
            .unwrap_or("address");
        if !["address", "everyone"].contains(&per)
            && !per.contains(':')
            && identities.insert(per.to_owned())
        {
            text.push_str(&format!(
                "\n[identities.{per}]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n"
            ));
        }
    }
    if !has_routes {
        let limits: Vec<String> = limits.iter().map(|name| format!("\"{name}\"")).collect();
        let upstreams = names("upstreams");
        let upstream = upstreams.first().map_or("builtin:echo", String::as_str);
        let host = if text.contains("egress = true") {
            "api.partner.example"
        } else {
            ""
        };
        text.push_str(&format!(
            "\n[[routes]]\nmatch = \"{host}/**\"\nupstream = \"{upstream}\"\nlimits = [{}]\n",
            limits.join(", ")
        ));
    }
    text
}

/// The files that examples name: certificates, keys of tokens, a list of callers.
fn write_files(directory: &Path) {
    let names = ["api.example.com".to_owned(), "*.example.com".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for name in [
        "site.pem",
        "clients.pem",
        "client.pem",
        "ca.pem",
        "upstream-ca.pem",
        "app.pem",
    ] {
        std::fs::write(directory.join(name), &certificate).expect("written");
    }
    for name in ["site.key", "client.key", "app.key"] {
        std::fs::write(directory.join(name), &key).expect("written");
    }
    std::fs::write(directory.join("callers.toml"), CALLERS).expect("written");
    std::fs::create_dir(directory.join("limits")).expect("made");
    let search = "[limits.search]\nrate = \"20/minute\"\nper = \"address\"\n";
    std::fs::write(directory.join("limits/search.toml"), search).expect("written");
    std::fs::write(directory.join("jwks.json"), JWKS).expect("written");
    std::fs::write(directory.join("issuer.pem"), ISSUER).expect("written");
    std::fs::write(
        directory.join("refusal.html"),
        "<p>Come back in {retry_after} seconds</p>",
    )
    .expect("written");
}

const CALLERS: &str = "\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"acme\" }\n";

/// The public key of RFC 7517, appendix A.1.
const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1","use":"sig","alg":"ES256",
"x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

/// A public key for RS256.
const ISSUER: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAoP6BqpQIvh5DSxdJk0Zz
GX9P5unW127yxZbhuI9z2dUQmdN61oh2Xh6mH371IFIJhEhM/kZIGemdVfj9nkmB
YUahEP1vkr8f69A0sUrteQBc3fqox6R4O1SzQB58q1mOgWbSAowhzmGEmowsWHU0
JmIHVQEE5TkTjfuqTec/Stz9RJbWyjZBDbrnndZp9sDojOUSggW+wAFqdv713s2o
pvef5PGZSBfUqbRih8osl661hrxjgzfdld62bvb4xpNOVFEEPdg6rkwGuTs1vHwf
dia0cjF86AMNdXDeMtzY0LJC2s7ofpzGBT3U8uxgSVBuZlFTnjAPuTeso4nLiFH4
AQIDAQAB
-----END PUBLIC KEY-----
";
