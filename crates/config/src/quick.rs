//! A configuration without a file: `tollgate run --upstream URL --limit 100/minute --per address`.

/// The file for these three arguments. [`super::parse`] reads it, so that mistakes in them are
/// reported like those of a file.
///
/// `per` is `address`, `everyone`, or the source of a key: `header:x-api-key`, `bearer`,
/// `cookie:sid`, `query:key`.
pub fn quick(upstream: &str, limit: &str, per: &str) -> String {
    let (upstream, rate) = (quoted(upstream), quoted(limit));
    // A value that is not a source of a key is a word.
    let missing = match per {
        "address" | "everyone" | "route" | "method" | "host" => "",
        _ => "when_missing = \"use:address\"\n",
    };
    let per = quoted(per);
    format!(
        "[limits.per_caller]\nrate = {rate}\nper = {per}\n{missing}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = {upstream}\nlimits = [\"per_caller\"]\n"
    )
}

/// As a TOML string with exactly this value: a JSON string is one, and `${` must not be read as a
/// variable.
pub fn quoted(text: &str) -> String {
    serde_json::Value::String(text.replace("${", "$${")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use tollgate_limit::Timestamp;

    #[test]
    fn three_words_make_a_gateway() {
        for per in ["address", "everyone", "header:x-api-key"] {
            let text = quick("http://127.0.0.1:3000", "100/minute", per);
            let config = parse(&text, "command line", &|_| None, Timestamp::default()).expect(per);
            assert_eq!(config.policy.routes.len(), 1);
            assert_eq!(&*config.policy.rules[0].name, "per_caller");
        }
    }

    #[test]
    fn quick_mistake_names_the_key_it_was_made_for() {
        for (upstream, limit, per, key) in [
            ("http://127.0.0.1:3000", "100/fortnight", "address", "rate"),
            ("127.0.0.1", "100/minute", "address", "upstream"),
            ("http://127.0.0.1:3000", "100/minute", "haeder:x", "per"),
        ] {
            let error = parse(
                &quick(upstream, limit, per),
                "command line",
                &|_| None,
                Timestamp::default(),
            );
            let said = error.expect_err(key).by_key();
            assert_eq!(
                said.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
                [key],
                "{said:?}"
            );
        }
    }

    #[test]
    fn route_that_differs_by_a_header_has_a_name_of_its_own() {
        let route = |value: &str| {
            format!(
                "[[routes]]\nmatch = {{ path = \"/x\", headers = {{ x-version = \"{value}\" }} }}\nupstream = \"builtin:echo\"\n"
            )
        };
        let text = format!("{}{}", route("1"), route("2"));
        let config =
            parse(&text, "gateway.toml", &|_| None, Timestamp::default()).expect("two routes");
        let names: Vec<&str> = config
            .policy
            .routes
            .iter()
            .map(|route| &*route.name)
            .collect();
        assert_eq!(names, ["/x [x-version: 1]", "/x [x-version: 2]"]);
    }

    #[test]
    fn a_word_cannot_become_more_than_a_word() {
        let text = quick("http://a\"\n[server]\nlisten=\"x", "1/s", "address");
        let error =
            parse(&text, "command line", &|_| None, Timestamp::default()).expect_err("no URL");
        assert!(
            error.to_string().contains("is not the URL of a server"),
            "{error}"
        );
        assert!(quoted("${HOME}").contains("$${HOME}"));
    }
}
