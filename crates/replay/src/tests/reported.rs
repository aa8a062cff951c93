//! Reports in every format.

use std::fmt::Write as _;

use super::*;
use crate::html;
use crate::report::Format;

#[test]
fn report_in_every_format_holds_nothing_hostile() {
    let mut text = String::new();
    for _ in 0..3 {
        let _ = writeln!(
            text,
            "<script>alert(1)</script>\u{202e} - - [17/May/2015:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5"
        );
    }
    let file = per_address("1/minute", 1);
    let (outcome, survey) = replayed(&text, &file);
    assert_eq!(outcome.refused, 2);
    let page = html::replay(&survey, &outcome, None);
    // The data and the script that draws them are the only elements of this name.
    assert!(
        page.matches("<script").count() == 2 && page.contains("\\u003cscript>alert(1)"),
        "{page}"
    );
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("default-src 'none'"));
    assert!(!page.contains('\u{202e}'), "{page}");
    for (format, wanted) in [
        (Format::Text, "lost 2 of 3"),
        (Format::Csv, "one,true,1,2,1,1"),
        (Format::Markdown, "| one | 1 | 2 |"),
    ] {
        let said = report::replay(&survey, &outcome, format);
        assert!(said.contains(wanted), "{said}");
        assert!(!said.contains('\u{202e}'), "{said}");
    }
    let said = report::replay(&survey, &outcome, Format::Json);
    let document: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(document["limits"][0]["keys_refused"], 1);
    assert_eq!(document["from"], "2015-05-17T10:00:00Z");
}
