use crate::{Config, Loader, parse};
use tollgate_limit::{Micros, Timestamp};

/// The file has one listener, and `--listen` another: the warnings are about the one in force.
#[test]
fn listener_in_place_of_the_files_is_the_one_that_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gateway.toml");
    let loaded = |file: &str, option: &str| -> Config {
        let routes = "[limits.a]\nrate = \"9/minute\"\nper = \"address\"\n\
            [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n";
        let text = |listen: &str| format!("[server]\nlisten = \"{listen}\"\n{routes}");
        std::fs::write(&path, text(file)).expect("written");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let given = parse(&text(option), "option", &|_| None, now).expect("legal");
        let listen = given.server.listen.first();
        Loader::new(&|_| None, now)
            .listen(listen)
            .file(&path)
            .expect("legal")
    };
    let open = loaded("127.0.0.1:8080", "0.0.0.0:8081");
    assert_eq!(open.warnings, Vec::<String>::new());
    assert_eq!(open.server.listen.len(), 1);
    let closed = loaded("0.0.0.0:8080", "127.0.0.1:8081").warnings;
    let [warning] = closed.as_slice() else {
        panic!("{closed:?}")
    };
    assert!(
        warning.contains("only this machine can connect") && warning.contains("`--listen`"),
        "{warning}"
    );
    assert!(!warning.contains("8080"), "{warning}");
    let both = loaded("127.0.0.1:8080", "127.0.0.1:8081").warnings.join("");
    assert!(
        both.contains("`--listen`") && !both.contains("8080"),
        "{both}"
    );
}

fn of(text: &str) -> Config {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    parse(text, "file", &|_| None, now).expect("legal")
}

#[test]
fn made_up_key_beside_a_real_one_is_warned_of_unless_a_limit_bounds_it_or_its_values_are_listed() {
    let file = |limits: &str, more: &str, models: &str| {
        format!(
            "[prices.models]\n{models}\n[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
             when_unknown = \"refuse\"\n[identities.tenant.callers]\n\"sha256:afacab3575137afa4e00d9cbcafcb14c9ae25f779d964eb0ea5b2c4eb5dfd163\" = {{ name = \"acme\" }}\n\
             [limits.calls]\nrate = \"60/minute\"\nper = [\"tenant\", \"json:model\"]\nwhen_missing = \"refuse\"\n\
             [limits.all]\nrate = \"600/minute\"\nper = \"tenant\"\n\
             [limits.budget]\nrate = \"50 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\nprices = \"json:model\"\n\
             cost = {{ usage = \"openai\", max = 1000 }}\nsettle = {{ usage = \"openai\" }}\n{more}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [{limits}]\n\
             [[routes]]\nmatch = \"/other\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"all\", \"budget\"]\n"
        )
    };
    let open = "\"gpt-*\" = { input = \"1\", output = \"2\" }";
    let listed = "gpt-4o = { input = \"1\", output = \"2\" }";
    let refunds = "refund_on = [\"4xx\", \"5xx\"]";
    for (limits, more, models, warned) in [
        ("\"calls\"", "", open, true),
        // A model that the provider refuses is charged nothing, and has a bucket of its own.
        ("\"calls\", \"budget\"", refunds, open, true),
        ("\"calls\", \"budget\"", refunds, listed, false),
        (
            "\"calls\", \"budget\"",
            "refund_on = [\"5xx\"]",
            open,
            false,
        ),
        ("\"calls\", \"budget\", \"all\"", refunds, open, false),
    ] {
        let warnings = of(&file(limits, more, models)).warnings.join("\n");
        assert_eq!(
            warnings.contains("can make up keys"),
            warned,
            "{limits} {more}: {warnings}"
        );
    }
}

#[test]
fn upstream_of_a_language_model_has_ten_minutes_unless_the_file_says_less() {
    let times = |timeouts: &str, settle: &str| {
        let config = of(&format!(
            "[limits.tokens]\nrate = \"9000/minute\"\nper = \"everyone\"\nsettle = {{ {settle}, estimate = 10 }}\n\
             [upstreams.model]\nservers = [\"http://127.0.0.1:1\"]\n{timeouts}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"model\"\nlimits = [\"tokens\"]\n"
        ));
        let timeouts = config.policy.upstreams[0].timeouts;
        [timeouts.response, timeouts.idle].map(Micros::ceil_secs)
    };
    assert_eq!(times("", "usage = \"openai\""), [600, 600]);
    assert_eq!(times("", "from = \"header:x-cost\""), [30, 60]);
    let written = "timeouts = { response = \"5s\" }";
    assert_eq!(times(written, "usage = \"openai\""), [5, 600]);
}
