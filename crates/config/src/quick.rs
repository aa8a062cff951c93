//! A configuration without a file: `tollgate run --upstream URL --limit 100/minute --per address`.

use super::reading::{Problem, Sources};

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

/// The name of that text in [`super::parse`]: warnings then name an option in place of a line.
pub const COMMAND_LINE: &str = "command line";

pub(crate) fn by_option(problem: &Problem, sources: &Sources) -> String {
    let mark = problem.marks.first();
    let line = mark.map_or("", |mark| {
        let text = &sources.of(mark.place.file).text;
        let start = text[..mark.place.range().start].rfind('\n');
        let start = start.map_or(0, |at| at + 1);
        text[start..].lines().next().unwrap_or_default()
    });
    let option = match line.split('=').next().unwrap_or_default().trim() {
        "rate" => "--limit",
        "per" | "when_missing" => "--per",
        "upstream" => "--upstream",
        "listen" => "--listen or --admin",
        _ => "the options",
    };
    format!("{option}: {}", problem.words())
}

/// As a TOML string with exactly this value: a JSON string is one, and `${` must not be read as a variable.
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
            (
                "http://127.0.0.1:3000",
                "100/fortnight",
                "address",
                "--limit: ",
            ),
            ("127.0.0.1", "100/minute", "address", "--upstream: "),
            ("http://127.0.0.1:3000", "100/minute", "haeder:x", "--per: "),
        ] {
            let error = parse(
                &quick(upstream, limit, per),
                "command line",
                &|_| None,
                Timestamp::default(),
            );
            let said = error.expect_err(key).by_option();
            assert!(said.len() == 1 && said[0].starts_with(key), "{said:?}");
        }
        let made_up = quick("http://127.0.0.1:3000", "100/minute", "header:x-api-key");
        let config = parse(&made_up, COMMAND_LINE, &|_| None, Timestamp::default()).expect("valid");
        let [warning] = &config.warnings[..] else {
            panic!("{:?}", config.warnings)
        };
        assert!(
            warning.starts_with("warning: --per: a client can make up keys")
                && !warning.contains(COMMAND_LINE),
            "{warning}"
        );
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
