use super::*;
use proptest::prelude::*;

fn normal(path: &str) -> String {
    normalise(path)
        .map(Cow::into_owned)
        .unwrap_or_else(|why| format!("{why:?}"))
}

#[test]
fn a_clean_path_is_borrowed() {
    for path in ["/", "/v1/search/a", "/a.b/c..d", "/a~b/ü", "/a:b@c"] {
        assert!(
            matches!(normalise(path), Ok(Cow::Borrowed(same)) if same == path),
            "{path}"
        );
    }
}

#[test]
fn every_row_of_the_table_holds() {
    for (path, expected) in [
        ("", "/"),
        ("*", "/*"),
        ("/%41%7e%7E", "/A~~"),
        ("/100%25", "/100%25"),
        ("/%252f", "/%252f"),
        ("//a///b", "/a/b"),
        ("/./a/%2e/b/.", "/a/b"),
        ("/a/b/../c", "/a/c"),
        ("/a/%2E./", "/"),
        ("/a/b/..", "/a"),
        ("/a/", "/a"),
        ("//", "/"),
        ("/login;x=1", "/login"),
        ("/login%3Bx/y;z", "/login/y"),
        ("/;x/a", "/a"),
        ("/.hidden", "/.hidden"),
        ("/...", "/..."),
        ("/%c3%bc", "/ü"),
        ("/a%3fb%23", "/a?b#"),
        ("/..", "AboveRoot"),
        ("/a/../..", "AboveRoot"),
        ("/a/..;/b", "DotParameters"),
        ("/a/.;x", "DotParameters"),
        ("/a/%2e%2e%3b/b", "DotParameters"),
        ("/a%2fb", "Separator"),
        ("/a%2Fb", "Separator"),
        ("/a;%2f", "Separator"),
        ("/a\\b", "Separator"),
        ("/a%5cb", "Separator"),
        ("/a%00", "Control"),
        ("/a;%0d%0a", "Control"),
        ("/a\u{7f}", "Control"),
        ("/%c0%ae", "Encoding"),
        ("/%e9", "Encoding"),
        ("/%ed%a0%80", "Encoding"),
        ("/%", "Escape"),
        ("/%4", "Escape"),
        ("/%zz", "Escape"),
        ("/%+1", "Escape"),
        ("a", "NotAbsolute"),
    ] {
        assert_eq!(normal(path), expected, "{path:?}");
    }
}

#[test]
fn a_kept_slash_is_a_character_and_climbs_nowhere() {
    for (path, expected) in [
        ("/a%2fb", "/a%2Fb"),
        ("/a%2Fb/c%2fd", "/a%2Fb/c%2Fd"),
        ("/a%2Fb/c%5cd", "Separator"),
        ("/%2f", "/%2F"),
        ("/a%252fb", "/a%252fb"),
        ("/a%2fb/../c", "/c"),
        ("/a%2f..b", "/a%2F..b"),
        ("/a%2f..%2fb", "Separator"),
        ("/..%2fb", "Separator"),
        ("/.%2fb", "Separator"),
        ("/b%5c..", "Separator"),
        ("/a%2f%2e%2e", "Separator"),
        ("/a%2f..;x", "Separator"),
        ("/a;x%2fb", "Separator"),
        ("/a\\b", "Separator"),
    ] {
        let normal = normalise_with_slashes(path).map(Cow::into_owned);
        assert_eq!(
            normal.clone().unwrap_or_else(|why| format!("{why:?}")),
            expected,
            "{path:?}"
        );
        if let Ok(normal) = normal {
            assert_eq!(normalise_with_slashes(&normal).as_deref(), Ok(&*normal));
        }
    }
}

/// One of the equivalent spellings of `segment`; `choices` selects it.
fn spell(segments: &[String], choices: &[u8]) -> String {
    let mut next = choices.iter().copied().cycle();
    let mut choose = move || next.next().unwrap_or(0);
    let mut path = String::new();
    for segment in segments {
        path.push_str(
            [
                "/",
                "//",
                "/./",
                "/%2e/",
                "/x/../",
                "/x/%2E%2e/",
                "/;p/",
                "/",
            ][usize::from(choose() % 8)],
        );
        for character in segment.chars() {
            let mut bytes = [0; 4];
            match choose() % 3 {
                0 if character != '%' => path.push(character),
                1 => character
                    .encode_utf8(&mut bytes)
                    .bytes()
                    .for_each(|byte| path.push_str(&format!("%{byte:02x}"))),
                _ => character
                    .encode_utf8(&mut bytes)
                    .bytes()
                    .for_each(|byte| path.push_str(&format!("%{byte:02X}"))),
            }
        }
        path.push_str(["", ";a=b", "%3bq", ""][usize::from(choose() % 4)]);
    }
    path.push_str(["", "/", "/.", "//"][usize::from(choose() % 4)]);
    path
}

proptest! {
    #[test]
    fn the_normal_form_of_a_normal_form_is_itself(path in "/[a-c%2eE5f./;\\\\ü]{0,24}") {
        if let Ok(normal) = normalise(&path) {
            let again = normalise(&normal);
            prop_assert_eq!(again.as_deref(), Ok(&*normal));
        }
    }

    #[test]
    fn every_spelling_has_one_normal_form(
        segments in prop::collection::vec("[a-z%ü .]{1,5}", 1..5), choices in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        prop_assume!(segments.iter().all(|segment| segment != "." && segment != ".."));
        let expected: String = segments.iter().map(|segment| format!("/{}", segment.replace('%', "%25"))).collect();
        let path = spell(&segments, &choices);
        prop_assert_eq!(normal(&path), expected, "{}", path);
    }

    #[test]
    fn whatever_comes_is_normalised_or_refused(path in "\\PC{0,40}") {
        if let Ok(normal) = normalise(&path) {
            prop_assert!(normal.starts_with('/'));
            prop_assert!(normal == "/" || !normal.ends_with('/'));
            prop_assert!(!normal.contains("//") && !normal.contains("/../") && !normal.contains("/./"));
        }
    }
}
