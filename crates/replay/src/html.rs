//! Reports as one HTML file: no script, nothing loaded, and nothing of a log unescaped.

mod charts;

use std::fmt::Write;

use crate::log::Survey;
use crate::outcome::Outcome;
use crate::report::{grouped, moment};
use crate::suggest::Suggestion;
use tollgate_limit::printable::printable;

/// The report of a replay; with what one of its limits needs, where that was worked out.
pub fn replay(survey: &Survey, outcome: &Outcome, limit: Option<(&str, &Suggestion)>) -> String {
    let mut page = Page::new("Tollgate replay", survey, &outcome.warnings);
    page.over_time(outcome, survey);
    page.limits(outcome);
    page.against(outcome);
    if let Some((name, suggestion)) = limit {
        let _ = write!(page.body, "<h2>Limit {}</h2>", escaped(name));
        page.suggestion(suggestion);
    }
    page.finish()
}

pub fn suggestion(survey: &Survey, suggestion: &Suggestion) -> String {
    let mut page = Page::new("Tollgate suggest", survey, &survey.warnings);
    page.suggestion(suggestion);
    page.finish()
}

struct Page {
    title: &'static str,
    body: String,
}

impl Page {
    fn new(title: &'static str, survey: &Survey, warnings: &[String]) -> Self {
        let mut body = format!(
            "<h1>{title}</h1><p>{} requests in {} lines ({} unreadable), {} to {}</p>",
            grouped(survey.requests),
            grouped(survey.lines),
            grouped(survey.unreadable),
            moment(survey.from),
            moment(survey.to)
        );
        for warning in warnings {
            let _ = write!(body, "<p class=warning>{}</p>", escaped(warning));
        }
        Self { title, body }
    }

    fn finish(self) -> String {
        format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
             <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=color-scheme content=\"light dark\"><title>{}</title><style>{STYLE}</style></head><body>{}</body></html>\n",
            self.title, self.body
        )
    }

    /// The head of a table; `id` as an attribute, or nothing.
    fn table(&mut self, id: &str, columns: &[&str]) {
        let _ = write!(
            self.body,
            "<table{id}><tr><th>{}</tr>",
            columns.join("<th>")
        );
    }

    /// A row: its first cell, which is markup already, and its other cells.
    fn row(&mut self, first: &str, cells: &[String]) {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}")).collect();
        let _ = write!(self.body, "<tr><th>{first}{cells}</tr>");
    }

    fn end_table(&mut self) {
        self.body.push_str("</table>");
    }

    fn limits(&mut self, outcome: &Outcome) {
        self.body.push_str("<h2>Limits</h2>");
        let columns = [
            "limit",
            "requests it could pay",
            "could not",
            "keys",
            "keys that lost some",
            "busiest key, in a second",
            "in a minute",
        ];
        self.table(" id=limits", &columns);
        for limit in &outcome.limits {
            let (name, words) = (escaped(&limit.name), escaped(&limit.words));
            let first = format!("{name} <small>{words} ({})</small>", limit.mode);
            if let Some(why) = &limit.not_judged {
                let why = escaped(why);
                let _ = write!(
                    self.body,
                    "<tr><th>{first}<td colspan=6 class=warning>not judged: {why}</tr>"
                );
                continue;
            }
            self.row(&first, &limit.figures().map(grouped));
        }
        self.end_table();
        for limit in outcome.limits.iter().filter(|limit| !limit.top.is_empty()) {
            let name = escaped(&limit.name);
            let _ = write!(self.body, "<h3>Who lost most by {name}</h3>");
            self.table("", &["key", "requests", "refused"]);
            for key in &limit.top {
                self.row(
                    &escaped(&key.key),
                    &[key.requests, key.refused].map(grouped),
                );
            }
            self.end_table();
        }
    }

    fn against(&mut self, outcome: &Outcome) {
        let Some(against) = &outcome.against else {
            return;
        };
        for (what, change) in [
            ("Newly refused", &against.newly_refused),
            ("Newly admitted", &against.newly_admitted),
        ] {
            let of = change.words();
            let _ = write!(self.body, "<h2>{what}</h2><p>{of}</p>");
            if change.examples.is_empty() {
                continue;
            }
            self.table("", &["key", "limit", "requests"]);
            for example in &change.examples {
                let cells = [escaped(&example.limit), grouped(example.requests)];
                self.row(&escaped(&example.key), &cells);
            }
            self.end_table();
        }
    }

    fn suggestion(&mut self, suggestion: &Suggestion) {
        let columns = [
            "",
            "rate",
            "burst",
            "keys refused",
            "requests refused",
            "most in a minute",
        ];
        self.table(" id=choices", &columns);
        for (name, choice) in &suggestion.choices {
            let cells = [
                escaped(&choice.rate),
                grouped(choice.burst),
                grouped(choice.keys_refused),
                grouped(choice.requests_refused),
                choice.most_in_a_minute(),
            ];
            self.row(name, &cells);
        }
        self.end_table();
        for (key, why) in &suggestion.floods {
            let (key, why) = (escaped(key), escaped(why));
            let _ = write!(self.body, "<p class=warning>flood {key}: {why}</p>");
        }
        self.map(suggestion);
        self.nearest(suggestion);
        self.frontier(suggestion);
    }

    fn frontier(&mut self, suggestion: &Suggestion) {
        self.body
            .push_str("<h2>The least burst that refuses no key</h2>");
        let mut columns = vec!["rate", "burst", "without floods", "give or take"];
        if !suggestion.frontier_admitted.is_empty() {
            columns.push("of what was admitted then");
        }
        self.table(" id=frontier", &columns);
        for (all, without, admitted) in suggestion.corners() {
            let mut figures = vec![all.burst, without.burst, all.bar];
            figures.extend(admitted.map(|admitted| admitted.burst));
            let cells: Vec<String> = figures.into_iter().map(grouped).collect();
            self.row(&escaped(&all.rate.text), &cells);
        }
        self.end_table();
    }
}

/// Text that is no markup, and changes no direction.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

const STYLE: &str = ":root{--ink:#1b1f24;--page:#fff;--faint:#d8dee4;--admitted:#2f81f7;--refused:#d1242f;--none:#e6f4ea;--few:#fff3c4;--some:#ffc680;--many:#f0a8a0}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--page:#0d1117;--faint:#30363d;--admitted:#58a6ff;--refused:#ff7b72;--none:#12331f;--few:#4d4212;--some:#6b3d0c;--many:#67201d}}\
body{color:var(--ink);background:var(--page);font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
svg{width:100%;height:auto}svg text{fill:var(--ink);font-size:12px}table{border-collapse:collapse}th,td{border-bottom:1px solid var(--faint);padding:.25rem .75rem;text-align:right;font-weight:400}\
th:first-child{text-align:left;overflow-wrap:anywhere}tr:first-child th{font-weight:600}small{display:block;opacity:.75}.warning{border-left:3px solid var(--refused);padding-left:.75rem;text-align:left}\
.legend span{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .8em}rect.admitted,.legend .admitted{fill:var(--admitted);background:var(--admitted)}rect.refused,.legend .refused{fill:var(--refused);background:var(--refused)}\
.none{fill:var(--none);background:var(--none)}.few{fill:var(--few);background:var(--few)}.some{fill:var(--some);background:var(--some)}.many{fill:var(--many);background:var(--many)}\
path{fill:none;stroke:var(--ink)}.contour-low{stroke-dasharray:4 3;stroke-width:1.5}.contour-high{stroke-width:2}.today{stroke-width:3}.choice{fill:none;stroke:var(--ink);stroke-width:2}\
.line{fill:none;stroke:currentColor;stroke-width:2}.legend .key{background:currentColor}\
.l0{color:#2f81f7}.l1{color:#d1242f}.l2{color:#2da44e}.l3{color:#bf8700}.l4{color:#8250df}.l5{color:#1b7c83}.l6{color:#e16f24}.l7{color:#bf3989}.l8{color:#57606a}.l9{color:#6e7781}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_text_of_a_log_is_no_markup() {
        let hostile = "<script>alert(1)</script>\" onload='x' & \u{202e}\u{1b}[0m";
        let safe = escaped(hostile);
        for bad in ["<", ">", "\"", "'", "\u{202e}", "\u{1b}"] {
            assert!(!safe.contains(bad), "{safe}");
        }
        assert!(safe.starts_with("&lt;script&gt;alert(1)"));
    }
}
