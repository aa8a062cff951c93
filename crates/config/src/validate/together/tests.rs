use crate::{Config, parse};
use tollgate_limit::{Micros, Timestamp};

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
        ("\"calls\", \"budget\"", refunds, open, false),
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
