//! What traffic says of a file: limits that no request draws from, key headers that requests lack, forwarding headers that are not trusted.

use tollgate_limit::words::span;
use tollgate_limit::{Micros, Mode};

use crate::outcome::Outcome;
use crate::replay::Traffic;
use crate::report::grouped;

/// Adds what a replay shows of the file to its warnings.
pub(crate) fn lint(outcome: &mut Outcome, traffic: &Traffic<'_>) {
    let survey = &traffic.survey;
    let Some(subject) = traffic.subjects.first().filter(|_| survey.requests > 0) else {
        return;
    };
    let policy = subject.policy;
    let mut warnings = Vec::new();
    let length = survey.to.saturating_sub(survey.from);
    for (place, (rule, limit)) in policy.rules.iter().zip(&outcome.limits).enumerate() {
        let mut warn = |what: String| warnings.push(format!("limit `{}`: {what}", limit.name));
        if limit.not_judged.is_some() || rule.live.mode == Mode::Off {
            continue;
        }
        let offered = limit.counts.admitted + limit.counts.refused;
        if offered == 0 {
            warn("no request of the log draws from it".to_owned());
            continue;
        }
        if let Some(fill) = rule.live.algorithm.fill_time()
            && fill.0 > length
        {
            warn(format!(
                "the log spans {}, and a bucket takes {} to fill: what a longer log would show is not seen",
                span(Micros(length)),
                span(fill)
            ));
        }
        let [requests, absent] = subject.keyless[place];
        if absent * 100 > requests {
            let headers: Vec<String> = subject
                .key_headers(place)
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            warn(format!(
                "{} % of the requests of its routes ({} of {}) do not have {}, which its key is read from",
                absent * 100 / requests,
                grouped(absent),
                grouped(requests),
                headers.join(" and ")
            ));
        }
        if let Some(caveat) = subject.caveat(place, survey) {
            warn(caveat.to_owned());
        }
    }
    if survey.forwarded > 0
        && policy.address.trusted_hops == 0
        && policy.address.trusted_proxies.is_empty()
    {
        warnings.push(format!(
            "{} requests name who forwarded them (X-Forwarded-For, Forwarded), and address.trusted_proxies is empty: all of them count for the proxy's address",
            survey.forwarded
        ));
    }
    outcome.warnings.extend(warnings);
}

#[cfg(test)]
mod tests {
    use tollgate_limit::Timestamp;

    use crate::Traffic;
    use crate::log::Options;

    /// The warnings of a replay of requests with these addresses and keys, one each second.
    fn warnings(file: &str, requests: &[(&str, Option<&str>)]) -> String {
        let config = tollgate_config::parse(file, "test.toml", &|_| None, Timestamp::default())
            .expect("a good file");
        let mut text = String::new();
        for (second, (address, key)) in requests.iter().enumerate() {
            let headers = match key {
                Some(key) => {
                    serde_json::json!({ "X-Api-Key": [key], "X-Forwarded-For": ["192.0.2.9"] })
                }
                None => serde_json::json!({}),
            };
            let line = serde_json::json!({
                "ts": 1_431_857_103 + second,
                "request": { "remote_ip": address, "method": "GET", "host": "x", "uri": "/a", "headers": headers },
                "duration": 0.1,
                "status": 200,
            });
            text.push_str(&format!("{line}\n"));
        }
        let policies = [&*config.policy];
        let mut traffic = Traffic::read_text(text.as_bytes(), &Options::default(), &policies);
        traffic.replay().warnings.join("\n")
    }

    fn by_key(limits: &str, on: &str) -> String {
        format!(
            "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n[limits]\n{limits}\n\
             [[routes]]\nmatch = \"/a\"\nupstream = \"builtin:echo\"\nlimits = [{on}]\n\
             [[routes]]\nmatch = \"/b\"\nupstream = \"builtin:echo\"\nlimits = [\"unused\"]\n"
        )
    }

    const UNUSED: &str = "unused = { rate = \"1/second\", per = \"address\" }\n";

    #[test]
    fn lint_names_limits_without_requests_and_the_share_of_requests_without_a_key() {
        let file = by_key(
            &format!("key = {{ rate = \"9/second\", per = \"tenant\" }}\n{UNUSED}"),
            "\"key\"",
        );
        let some = [
            ("192.0.2.1", Some("k")),
            ("192.0.2.2", None),
            ("192.0.2.3", None),
            ("192.0.2.4", Some("m")),
        ];
        let said = warnings(&file, &some);
        for wanted in [
            "limit `unused`: no request of the log draws from it",
            "limit `key`: 50 % of the requests of its routes (2 of 4) do not have `x-api-key`",
            "2 requests name who forwarded them (X-Forwarded-For, Forwarded), and address.trusted_proxies is empty",
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        let said = warnings(&file, &some[..1]);
        assert!(!said.contains("do not have"), "{said}");
        let trusting = format!("[address]\ntrusted_proxies = [\"192.0.2.0/24\"]\n{file}");
        assert!(!warnings(&trusting, &some).contains("forwarded them"));
    }
}
