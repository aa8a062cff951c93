//! `everything.toml` has every key of the file and must be valid, like every TOML block of README.md.

use std::path::Path;

use tollgate_config::{Config, ConfigError};
use tollgate_limit::{Kind, Placement, Timestamp};
use tollgate_policy::identity::callers::digest_words;

const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn environment(name: &str) -> Option<String> {
    (name == "TOLLGATE_KEY_SECRET").then(|| "0123456789abcdef0123456789abcdef".to_owned())
}

/// Every key of the documentation.
const EVERYTHING: &str = include_str!("everything.toml");

const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1","use":"sig",
"x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

fn beside(files: &[(&str, &str)]) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory for the test");
    for (name, text) in files {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    home
}

fn load(home: &Path) -> Result<Config, ConfigError> {
    tollgate_config::load(&home.join("gateway.toml"), &environment, NOW)
}

#[test]
fn config_file_with_every_key_is_valid() {
    let home = beside(&[
        ("gateway.toml", EVERYTHING),
        ("site.pem", "pem"),
        ("site.key", "pem"),
        ("clients.pem", "pem"),
        ("refusal.txt", "no"),
        ("jwks.json", JWKS),
        ("ca.pem", "pem"),
        (
            "callers.toml",
            "\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"zed\" }",
        ),
        (
            "conf.d/more.toml",
            "[[routes]]\nmatch = \"/more\"\nupstream = \"http://10.0.0.9\"\n[limits.more]\nrate = \"1/second\"\nper = \"everyone\"\n",
        ),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.policy.routes.len(), 5);
    assert_eq!(config.policy.rules.len(), 14);
    let placed = |name: &str| {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| &*rule.name == name)
            .expect("a limit of the file");
        (rule.live.algorithm.kind(), rule.live.placement)
    };
    assert_eq!(placed("search"), (Kind::TokenBucket, Placement::Shared));
    assert_eq!(placed("month"), (Kind::FixedWindow, Placement::Shared));
    assert_eq!(placed("heavy_jobs").0, Kind::InFlight);
    for name in [
        "gateway.toml",
        "callers.toml",
        "jwks.json",
        "site.key",
        "refusal.txt",
        "conf.d/more.toml",
    ] {
        assert!(
            config.files_read.contains(&home.path().join(name)),
            "{name} is watched: {:?}",
            config.files_read
        );
    }
    assert_eq!(config.caller_files.len(), 1);
    assert_eq!(config.tests[0].sent.len(), 2);
    assert_eq!(
        config.tests[0].sent[0]
            .caller
            .as_ref()
            .map(|caller| caller.index),
        Some(0)
    );
    let said = tollgate_config::report(&config);
    for words in [
        "tier pro",
        "for each tenant",
        "candidate, only counted",
        "counts only responses with 401, 403",
        "month in Europe/Berlin",
        "a ceiling: nothing ever exceeds it",
        "leased",
    ] {
        assert!(said.contains(words), "`{words}` in\n{said}");
    }
}

#[test]
fn config_candidate_or_tier_takes_other_values_from_the_limit() {
    let text = "[tiers.pro]\nrated = { rate = \"60/minute\" }\nburst = { burst = 5 }\n\
                [limits.rated]\nper = \"address\"\nrate = \"10/minute\"\nburst = 77\n\
                candidate = { rate = \"60/minute\" }\n\
                [limits.burst]\nper = \"address\"\nrate = \"10/minute\"\nburst = 77\n\
                candidate = { burst = 5 }\n\
                [[routes]]\nmatch = \"/**\"\nlimits = [\"rated\", \"burst\"]\nupstream = \"builtin:echo\"\n";
    let config = tollgate_config::parse(text, "gateway.toml", &environment, NOW)
        .unwrap_or_else(|error| panic!("{error}"));
    for (name, numbers) in [("rated", (60, 77)), ("burst", (10, 5))] {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| &*rule.name == name)
            .expect("defined");
        let others = rule
            .candidate
            .iter()
            .chain(rule.tiers.iter().map(|(_, limit)| limit));
        let others: Vec<_> = others
            .filter_map(|limit| limit.algorithm.quota())
            .map(|quota| (quota.amount, quota.burst))
            .collect();
        assert_eq!(others, [numbers; 2], "{name}");
    }
}

#[test]
fn config_caller_list_can_be_read_again_alone() {
    let key = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let gateway = "[identities.k]\nkey = \"header:x\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\ncallers = \"callers.toml\"\n\
                   [limits.l]\nrate = \"1/second\"\nper = \"k\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"l\"]\n";
    let home = beside(&[
        ("gateway.toml", gateway),
        (
            "callers.toml",
            &format!("\"{key}\" = {{ name = \"acme\" }}\n"),
        ),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    let (identity, file) = &config.caller_files[0];
    std::fs::write(file, format!("\"{key}\" = {{ name = \"apex\" }}\n")).expect("a writable file");
    let callers = tollgate_config::load_callers(file, &config, &environment)
        .unwrap_or_else(|error| panic!("{error}"))
        .expect("no caller has limits of its own");
    config.policy.identities[*identity].replace_callers(callers);
    let found = config.policy.identities[*identity]
        .callers
        .as_ref()
        .expect("listed")
        .load()
        .find(b"test");
    assert_eq!(
        found.map(|caller| caller.name.to_string()),
        Some("apex".to_owned())
    );
    std::fs::write(file, format!("\"{key}\" = {{ nmae = \"apex\" }}\n")).expect("a writable file");
    let error = tollgate_config::load_callers(file, &config, &environment).expect_err("a mistake");
    assert!(
        error.to_string().contains("did you mean `name`?"),
        "{error}"
    );
}

#[test]
fn config_callers_file_gives_some_callers_limits_of_their_own() {
    let [acme, bolt] = ["test", "other"].map(|key| digest_words(key.as_bytes()));
    let gateway = "tiers.pro = { search = \"50/minute\" }\n\
                   [identities.k]\nkey = \"header:x\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\ncallers = \"callers.toml\"\n\
                   [limits.search]\nrate = \"9/minute\"\nper = \"k\"\n[limits.reads]\nrate = \"9/minute\"\nper = \"k\"\n\
                   [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"reads\"]\n";
    let list = |of_acme: &str| {
        format!(
            "\"{acme}\" = {{ name = \"acme\", tier = \"pro\"{of_acme} }}\n\"{bolt}\" = {{ name = \"bolt\", tier = \"pro\" }}\n"
        )
    };
    let own = list(", limits = { reads = \"700/minute\" }");
    let home = beside(&[("gateway.toml", gateway), ("callers.toml", &own)]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    let policy = &config.policy;
    let amount = |key: &str, rule: usize| {
        let callers = policy.identities[0].callers.as_ref().expect("listed");
        let caller = callers.load().find(key.as_bytes()).expect("known");
        let numbers = caller.numbers.as_ref().or(caller.tier.as_ref());
        policy.rules[rule].variant(numbers).algorithm.capacity()
    };
    // Its tier's numbers stay where it has none of its own.
    let at = |name: &str| policy.rules.iter().position(|rule| &*rule.name == name);
    let (search, reads) = (at("search").expect("one"), at("reads").expect("one"));
    assert_eq!([amount("test", search), amount("test", reads)], [50, 700]);
    assert_eq!([amount("other", search), amount("other", reads)], [50, 9]);
    assert!(config.caller_files.is_empty(), "it is a part of the whole");
    assert!(
        config
            .files_read
            .contains(&home.path().join("callers.toml"))
    );

    let file = home.path().join("callers.toml");
    std::fs::write(&file, list("")).expect("written");
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.caller_files, [(0, file.clone())]);
    std::fs::write(&file, &own).expect("written");
    let alone = tollgate_config::load_callers(&file, &config, &environment);
    assert!(alone.is_ok_and(|callers| callers.is_none()), "not alone");

    std::fs::write(&file, own.replace("reads", "raeds")).expect("written");
    let error = load(home.path()).expect_err("no such limit").to_string();
    assert!(
        error.contains("callers.toml:1:") && error.contains("did you mean `reads`?"),
        "{error}"
    );
}

#[expect(clippy::disallowed_methods, reason = "a test measures")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The file was compared with itself line by line: 100,000 callers took 28 s, at the start and at every reload.
#[test]
fn callers_file_takes_time_in_proportion_to_its_length_and_reports_a_bounded_part_of_its_mistakes()
{
    let gateway = "[identities.who]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\n\
                   callers = \"callers.toml\"\n[limits.it]\nrate = \"1/s\"\nper = \"who\"\n\
                   [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n";
    let lines = |count: u64, more: &str| -> String {
        (0..count)
            .map(|at| format!("\"sha256:{at:064x}\" = {{ name = \"c{at}\"{more} }}\n"))
            .collect()
    };
    let takes = |count: u64| {
        let home = beside(&[
            ("gateway.toml", gateway),
            ("callers.toml", &lines(count, "")),
        ]);
        let begun = now();
        let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
        let callers = config.policy.identities[0]
            .callers
            .as_ref()
            .expect("listed")
            .load();
        assert_eq!(callers.len() as u64, count);
        begun.elapsed()
    };
    // Written in another way, the same list is read as TOML.
    let listed = |more: &str, comment: &str| {
        let tiers = format!("tiers.pro = {{}}\n{gateway}");
        let list = lines(3, more).replace('\n', &format!("{comment}\n"));
        let home = beside(&[("gateway.toml", &tiers), ("callers.toml", &list)]);
        let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
        let callers = config.policy.identities[0].callers.as_ref();
        callers.expect("listed").load().iter().collect::<Vec<_>>()
    };
    for more in ["", ", tier = \"pro\""] {
        let callers = listed(more, "");
        assert_eq!(callers, listed(more, " # a word"));
        let tier = callers[2].tier.as_deref();
        assert_eq!(
            (&*callers[2].name, tier.is_some()),
            ("c2", !more.is_empty())
        );
    }

    let few = (0..3).map(|_| takes(5_000)).min().expect("three");
    let many = takes(50_000);
    // Ten times as long, and not a hundred times; a quarter is left for other processes.
    assert!(
        many < few * 25,
        "5,000 callers take {few:?}, 50,000 {many:?}"
    );

    let home = beside(&[
        ("gateway.toml", gateway),
        ("callers.toml", &lines(20_000, ", tier = \"gold\"")),
    ]);
    let error = load(home.path()).expect_err("there is no such tier");
    assert_eq!(error.errors(), 101);
    let said = error.to_string();
    assert!(
        said.contains("19900 are not shown"),
        "{}",
        &said[said.len() - 300..]
    );

    let own = ", limits = { it = \"2/s\" }";
    let home = beside(&[
        ("gateway.toml", gateway),
        ("callers.toml", &lines(10_001, own)),
    ]);
    let error = load(home.path()).expect_err("too many").to_string();
    assert!(
        error.contains("more than 10000 callers") && error.contains("callers.toml:10001:"),
        "{error}"
    );

    let home = beside(&[
        ("gateway.toml", gateway),
        ("callers.toml", &lines(500_001, "")),
    ]);
    let error = load(home.path()).expect_err("too many").to_string();
    assert!(
        error.contains("500001 callers") && error.contains("gateway.toml:5:"),
        "{error}"
    );
}

#[test]
fn config_file_missing_is_an_error_and_secrets_come_from_files() {
    let home = beside(&[]);
    let error = load(home.path()).expect_err("there is none");
    assert!(error.to_string().contains("No such file"), "{error}");
    let gateway = "[store]\nkind = \"postgres\"\nurl_file = \"url\"\nwhen_down = \"refuse\"\nkey_secret_file = \"secret\"\n\
                   [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    let home = beside(&[
        ("gateway.toml", gateway),
        ("url", "postgres://a:b@c/d\n"),
        ("secret", "0123456789abcdef\n"),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    let store = config.store.expect("a store");
    assert_eq!(
        (store.url.expose(), store.key_secret.expose()),
        ("postgres://a:b@c/d", "0123456789abcdef")
    );
    assert!(
        !format!("{store:?}").contains("a:b@c"),
        "secrets are not shown"
    );
}

/// A block may show part of a file: only names that other parts define may be missing.
#[test]
fn config_toml_blocks_of_the_readme_are_valid() {
    let readme = include_str!("../../../README.md");
    let mut fences = 0;
    for fence in readme.split("```toml\n").skip(1) {
        let text = fence.split("```").next().unwrap_or_default();
        fences += 1;
        let surroundings = if text.contains("[[routes]]") {
            ""
        } else {
            "[[routes]]\nmatch = \"/surroundings\"\nupstream = \"builtin:echo\"\n"
        };
        let whole = format!("{text}\n{surroundings}");
        if let Err(error) = tollgate_config::parse(
            &whole,
            "README.md",
            &|_| Some("0123456789abcdef0123456789abcdef".to_owned()),
            NOW,
        ) {
            let only_names = error.lines().iter().all(|line| {
                line.contains("unknown limit")
                    || line.contains("unknown identity")
                    || line.contains("cannot read")
            });
            assert!(only_names, "{text}\n{error}");
        }
    }
    assert!(fences > 0);
}

#[test]
fn config_environment_sets_numbers_and_switches() {
    let text = "[server]\nproxy_protocol = \"${PROXY:-false}\"\nworkers = \"${WORKERS}\"\n[server.bounds]\nconnections = \"${CONNECTIONS}\"\n\
        [limits.a]\nrate = \"${AMOUNT}/minute\"\nburst = \"${AMOUNT}\"\nper = \"address\"\n\
        [limits.b]\nin_flight = \"${AMOUNT}\"\nper = \"address\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\", \"b\"]\n";
    let environment = |name: &str| match name {
        "AMOUNT" => Some("7".to_owned()),
        "WORKERS" => Some("2".to_owned()),
        "CONNECTIONS" => Some(" 500 ".to_owned()),
        _ => None,
    };
    let config = tollgate_config::parse(text, "gateway.toml", &environment, NOW).expect("right");
    assert_eq!(config.server.workers, Some(2));
    assert_eq!(config.server.bounds.connections, 500);
    assert!(!config.server.proxy_protocol);
    let words: Vec<String> = config
        .policy
        .limits
        .iter()
        .map(|limit| limit.algorithm.words())
        .collect();
    assert!(words[0].starts_with("7 at once"), "{words:?}");
    assert!(words[1].contains('7'), "{words:?}");
}

#[test]
fn config_sources_with_equal_meaning_share_an_identity() {
    let limit = |name: &str, when_missing: &str| {
        format!(
            "[limits.{name}]\nrate = \"1/s\"\nper = \"header:x-api-key\"\nwhen_missing = {when_missing}\n"
        )
    };
    let text = [
        "[tiers]\nanonymous = { a = \"1/minute\" }\n".to_owned(),
        limit("a", "\"use:address\""),
        limit("b", "\"use:address\""),
        limit("c", "\"refuse\""),
        limit("d", "{ use = \"address\", tier = \"anonymous\" }"),
        "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\", \"b\", \"c\", \"d\"]\n"
            .to_owned(),
    ];
    let config = tollgate_config::parse(&text.concat(), "gateway.toml", &|_| None, NOW);
    let config = config.expect("right");
    let names: Vec<&str> = config
        .policy
        .identities
        .iter()
        .map(|identity| &*identity.name)
        .collect();
    assert_eq!(
        names,
        [
            "header:x-api-key",
            "header:x-api-key@c",
            "header:x-api-key@d"
        ]
    );
}
