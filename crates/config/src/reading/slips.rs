//! Common mistakes of users of other products, and the correct setting for each. The rows are in `slips.txt`.

use toml::de::DeValue;

/// Rows of `what where | words | correct setting`.
const ROWS: &str = include_str!("slips.txt");

/// The correct setting for `word`, folded, in the rows of `place` (`what where`).
fn row(place: &str, word: &str) -> Option<&'static str> {
    ROWS.lines().find_map(|line| {
        let (of, rest) = line.split_once(" | ")?;
        let (words, help) = rest.split_once(" | ")?;
        (of == place && words.split(' ').any(|known| known == word)).then_some(help)
    })
}

/// The correct key for an unknown key in the table at `path`.
pub(crate) fn of_key(path: &[String], key: &str) -> Option<&'static str> {
    let section = path
        .first()
        .map_or("", |first| first.split('[').next().unwrap_or_default());
    let depth = match section {
        "" => 0,
        "limits" | "upstreams" | "identities" => 2,
        _ => 1,
    };
    let here = path.len() == depth;
    let folded = key.to_ascii_lowercase().replace('-', "_");
    let place = format!("key {section}");
    here.then(|| row(place.trim_end(), &folded))?
}

/// The correct word for an unknown word of the choice at `path`.
pub(crate) fn of_word(path: &[String], word: &str) -> Option<&'static str> {
    row(
        &format!("word {}", path.last()?),
        &word.to_ascii_lowercase(),
    )
}

/// The correct value for a value of the wrong type at `path`.
pub(crate) fn of_value(path: &[String], value: &DeValue<'_>) -> Option<String> {
    let whole: Vec<&str> = path.iter().map(String::as_str).collect();
    Some(match (whole.as_slice(), value) {
        ([list @ ("routes" | "tests")], DeValue::Table(_)) => {
            format!("write [[{list}]], with two brackets: it is a list, and each entry begins so")
        }
        ([named @ ("limits" | "identities" | "upstreams" | "tiers")], DeValue::Array(_)) => {
            format!("write [{named}.NAME], with one bracket and a name of its own for each")
        }
        (["server", "listen"], DeValue::Integer(port)) => {
            format!("write the address with the port: listen = \"0.0.0.0:{port}\"")
        }
        (["limits", _, "window"], DeValue::String(period)) => {
            format!("the period is a part of the rate: rate = \"100/{period}\"; `window` says where windows begin")
        }
        (["limits", _, "window"], DeValue::Integer(_)) => {
            "the period is a part of the rate: rate = \"100/60s\"; `window` says where windows begin".to_owned()
        }
        (["limits", _, "per"], DeValue::Integer(_)) => {
            "the period is a part of the rate: rate = \"100/minute\"; `per` says who has a bucket of its own".to_owned()
        }
        (_, DeValue::String(text)) if text.parse::<u64>().is_ok() || *text == "true" || *text == "false" => {
            format!("write {} = {text}, without quotes", whole.last()?)
        }
        _ => return None,
    })
}

/// The correct value in `per` for a word that names no identity.
pub(crate) fn of_scope(word: &str) -> Option<&'static str> {
    row("per", &word.trim_start_matches('$').to_ascii_lowercase())
}

/// A rate in other products' syntax, converted to ours: `10r/s`, `100 per minute`, `100rpm`.
pub(crate) fn of_rate(text: &str) -> Option<String> {
    let folded = text
        .trim()
        .to_ascii_lowercase()
        .replace(" per ", "/")
        .replace('_', "");
    let folded = match folded.as_bytes() {
        [.., b'r', b'p', unit @ (b's' | b'm' | b'h' | b'd')] => {
            format!("{}/{}", &folded[..folded.len() - 3], char::from(*unit))
        }
        _ => folded,
    };
    let (amount, period) = folded.split_once('/')?;
    let digits = amount.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = amount.split_at(digits);
    let units = [
        "", "r", "req", "reqs", "request", "requests", "hit", "hits", "call", "calls", "times",
        "token", "tokens",
    ];
    if !units.contains(&word.trim()) {
        return None;
    }
    let period = match period.trim() {
        "s" | "sec" | "second" | "seconds" | "1s" => "second",
        "m" | "min" | "minute" | "minutes" | "1m" => "minute",
        "h" | "hr" | "hour" | "hours" | "1h" => "hour",
        "d" | "day" | "days" | "1d" => "day",
        other => other,
    };
    Some(format!("{number}/{period}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::rate::rate;

    #[test]
    fn rates_of_other_products_become_rates() {
        for (written, ours) in [
            ("10r/s", "10/second"),
            ("30r/m", "30/minute"),
            ("100 per minute", "100/minute"),
            ("100 requests per hour", "100/hour"),
            ("100 req/s", "100/second"),
            ("100rpm", "100/minute"),
            ("5rps", "5/second"),
        ] {
            assert_eq!(of_rate(written).as_deref(), Some(ours), "{written}");
            assert!(rate(ours).is_ok(), "{ours}");
        }
        for none in ["", "fast", "ten/s", "1.5.5/s", "1.5/fortnight"] {
            let read = of_rate(none).filter(|ours| rate(ours).is_ok());
            assert_eq!(read, None, "{none}");
        }
    }

    #[test]
    fn slips_rows_have_three_parts() {
        for row in ROWS
            .lines()
            .filter(|row| !row.is_empty() && !row.starts_with('#'))
        {
            let parts: Vec<&str> = row.split(" | ").collect();
            let [place, words, help] = parts[..] else {
                panic!("{row}");
            };
            assert!(
                ["key", "word", "per"].contains(&place.split(' ').next().unwrap_or("")),
                "{row}"
            );
            assert!(!words.is_empty() && !help.is_empty(), "{row}");
        }
    }

    #[test]
    fn slips_belong_to_their_tables() {
        let path = |parts: &[&str]| {
            parts
                .iter()
                .map(|part| (*part).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(of_key(&[], "port").is_some());
        assert!(of_key(&path(&["routes[0]"]), "proxy_pass").is_some());
        assert!(of_key(&path(&["limits", "a"]), "Requests-Per-Second").is_some());
        assert!(of_key(&path(&["limits", "a", "window"]), "period").is_none());
        assert!(of_key(&path(&["log"]), "port").is_none());
    }
}
