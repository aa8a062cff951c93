mod credentials;

use super::*;
use crate::tests::fixtures::policy;
use crate::{Descriptor, Peer};
use http::{HeaderMap, HeaderValue, Method, Uri};

fn with<T>(
    uri: &str,
    headers: &[(&'static str, &str)],
    read: impl FnOnce(&Descriptor<'_>) -> T,
) -> T {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()));
    with_bytes(uri, headers, read)
}

fn with_bytes<'v, T>(
    uri: &str,
    headers: impl IntoIterator<Item = (&'static str, &'v [u8])>,
    read: impl FnOnce(&Descriptor<'_>) -> T,
) -> T {
    let uri: Uri = uri.parse().expect("a URI");
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    let peer = Peer {
        address: None,
        port: 0,
        tls: false,
        unnamed: false,
    };
    let policy = policy(Vec::new(), Vec::new(), Vec::new());
    let request = policy
        .describe(None, &Method::GET, &uri, &map, peer, None)
        .expect("well formed");
    read(&request)
}

fn text(value: Result<Option<Cow<'_, [u8]>>, Ambiguous>) -> String {
    match value {
        Ok(Some(value)) => String::from_utf8_lossy(&value).into_owned(),
        Ok(None) => "(none)".into(),
        Err(Ambiguous::Twice | Ambiguous::Unclear) => "(ambiguous)".into(),
    }
}

#[test]
fn a_header_is_read_whole_and_once() {
    let name = HeaderName::from_static("x-api-key");
    let read = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("x-api-key", *value)).collect();
        with("/", &headers, |request| text(header(request, &name)))
    };
    assert_eq!(read(&[]), "(none)");
    assert_eq!(read(&[" "]), "(none)");
    assert_eq!(read(&[" a, b "]), "a, b");
    assert_eq!(read(&["a", "a"]), "a");
    assert_eq!(read(&["a", "b"]), "(ambiguous)");
    assert_eq!(read(&["", "b"]), "(ambiguous)");
}

#[test]
fn a_cookie_has_one_value_however_it_is_spelt() {
    let read = |lines: &[&str]| {
        let headers: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        with("/", &headers, |request| text(cookie(request, "sid")))
    };
    assert_eq!(read(&["a=1; sid=x=y"]), "x=y");
    assert_eq!(read(&["a=1", "sid=\"x\"; b"]), "x");
    assert_eq!(read(&["sid=%78; s%69d=x"]), "x");
    assert_eq!(read(&["xsid=1; ID=2; sid"]), "(none)");
    assert_eq!(read(&["SID=2"]), "(ambiguous)");
    assert_eq!(read(&["sid=x", "sid=y"]), "(ambiguous)");
}

#[test]
fn a_query_parameter_is_decoded_and_unambiguous() {
    let read = |uri: &str| with(uri, &[], |request| text(query(request, "key")));
    assert_eq!(read("/"), "(none)");
    assert_eq!(read("/?a=1&key=x%20y+z"), "x y z");
    assert_eq!(read("/?k%65y=%78"), "x");
    assert_eq!(read("/?key=100%"), "100%");
    assert_eq!(read("/?key"), "(none)");
    assert_eq!(read("/?key=x&key=x"), "x");
    assert_eq!(read("/?key=x&key=y"), "(ambiguous)");
    assert_eq!(read("/?a=1;key=x"), "(ambiguous)");
    assert_eq!(read("/?key=x;b=1"), "(ambiguous)");
    assert_eq!(read("/?a=1;b&key=x"), "x");
}

/// A parameter `other` is ambiguous where `key` is the key, beside it and alone.
#[track_caller]
fn is_ambiguous_query(other: &str) {
    for uri in [format!("/?key=x&{other}=y"), format!("/?{other}=y")] {
        let read = with(&uri, &[], |request| text(query(request, "key")));
        assert_eq!(read, "(ambiguous)", "{uri}");
    }
}

#[test]
fn query_key_that_php_takes_for_another_is_ambiguous() {
    let read = |uri: &str| with(uri, &[], |request| text(query(request, "key")));
    for other in [
        "+key",
        "%20key",
        "key%00",
        "key%00x",
        "key+",
        "key[]",
        "key%5B%5D",
        "key[a]",
        "+KEY%00",
    ] {
        is_ambiguous_query(other);
    }
    for other in ["keys", "akey", "ke", "a[key]", "[a][key]", "%00key", "[]"] {
        assert_eq!(read(&format!("/?key=x&{other}=y")), "x", "{other}");
    }
}

#[test]
fn query_key_behind_a_semicolon_is_ambiguous_however_it_is_spelt() {
    for other in [
        "key",
        " key",
        "+key",
        "%20key",
        "key%00",
        "key[]",
        "KEY",
        "k%65y",
        "[key]",
        "key]",
        "?key",
        "%u006bey",
        "%C2%A0key",
    ] {
        for split in [
            "x;{}=y",
            "x=1;{}=y",
            "{}=y;x",
            "{}=y;x=1",
            "x;{}",
            ";{}=y",
            "a&x;b;{}=y&c",
        ] {
            for before in ["", "key=x&", "key=y&"] {
                let query = format!("{before}{}", split.replace("{}", other));
                let read = parameter(query.as_bytes(), "key");
                assert_eq!(text(read), "(ambiguous)", "{query}");
            }
        }
    }
    let read = parameter(b"a;b=1;c&key=x&keys;d", "key");
    assert_eq!(text(read), "x");
}

#[test]
fn query_key_that_express_rack_or_url_search_params_take_for_another_is_ambiguous() {
    for other in [
        "[key]",
        "%5Bkey%5D",
        "[Key]",
        "[key",
        "]key",
        "key]",
        "[[key]]",
        "[key][a]",
        "[key][]",
        "?key",
        "%3Fkey",
    ] {
        is_ambiguous_query(other);
    }
}

#[test]
fn cookie_whose_name_older_php_takes_for_another_is_ambiguous() {
    let read = |line: &str, name: &str| {
        with("/", &[("cookie", line)], |request| {
            text(cookie(request, name))
        })
    };
    assert_eq!(read("s+id=y", "s_id"), "(ambiguous)");
    assert_eq!(read("s_id=x; s+id=y", "s_id"), "(ambiguous)");
    assert_eq!(read("s+id=y", "s+id"), "y");
}

#[test]
fn cookie_key_with_a_comma_is_ambiguous() {
    let read = |line: &str| {
        with("/", &[("cookie", line)], |request| {
            text(cookie(request, "sid"))
        })
    };
    for line in ["sid=x,b=1", "sid=x,y", "a=1; sid=x,"] {
        assert_eq!(read(line), "(ambiguous)", "{line}");
    }
    assert_eq!(
        read("a=1,2; sid=x"),
        "x",
        "another cookie's comma is its own affair"
    );
}

#[test]
fn a_source_says_itself_back() {
    for text in [
        "address",
        "header:x-api-key",
        "bearer",
        "basic",
        "cookie:sid",
        "query:key",
        "path:id",
        "jwt:sub",
        "client_certificate",
        "application",
    ] {
        assert_eq!(
            Source::parse(text).map(|source| source.words()).as_deref(),
            Ok(text)
        );
    }
    for (text, wrong) in [
        ("adress", "adress"),
        ("header:", "header:"),
        ("jwt", "jwt"),
        ("bearer:x", ":x"),
        ("header:a b", "a b"),
        ("cookie:a;b", "a;b"),
    ] {
        let error = Source::parse(text).expect_err(text);
        assert_eq!(text.get(error.at.clone()), Some(wrong), "{text}: {error}");
    }
}

#[test]
fn source_value_has_one_spelling_as_a_key() {
    let spelt = |value: &'static str| text(one_spelling(Cow::Borrowed(value.as_bytes())));
    for (value, key) in [
        ("acme", "acme"),
        (" acme\t", "acme"),
        ("a\tb", "a\tb"),
        ("ac\u{1}me", "(ambiguous)"),
        ("acme\r\n", "(ambiguous)"),
        ("a\u{7f}", "(ambiguous)"),
    ] {
        assert_eq!(spelt(value), key, "{value:?}");
        let owned = one_spelling(Cow::Owned(value.as_bytes().to_vec()));
        assert_eq!(text(owned), key, "{value:?}");
    }
    assert!(matches!(one_spelling(Cow::Borrowed(b" \t ")), Ok(None)));
}

/// A value whose first or last characters many servers drop, read as the value without them.
const WITH_ODD_BLANKS: [&[u8]; 9] = [
    b"K\xa0",
    b"\xa0K",
    b"K\x85",
    "K\u{a0}".as_bytes(),
    "\u{a0}K".as_bytes(),
    "K\u{2003}".as_bytes(),
    "K\u{3000} ".as_bytes(),
    "\u{feff}K".as_bytes(),
    b"\xffK\xe3\x80\x80",
];

#[test]
fn source_value_that_begins_or_ends_with_an_odd_blank_is_ambiguous() {
    for value in WITH_ODD_BLANKS {
        for value in [Cow::Borrowed(value), Cow::Owned(value.to_vec())] {
            assert_eq!(
                text(one_spelling(value.clone())),
                "(ambiguous)",
                "{value:?}"
            );
        }
    }
    for kept in ["K\u{a0}K", "Цюрих", "à", "…"] {
        let read = one_spelling(Cow::Borrowed(kept.as_bytes()));
        assert_eq!(text(read), kept);
    }
}

#[test]
fn cookie_or_parameter_whose_name_an_odd_blank_surrounds_is_ambiguous() {
    let read = with_bytes("/", [("cookie", &b"\xa0sid=x"[..])], |request| {
        text(cookie(request, "sid"))
    });
    assert_eq!(read, "(ambiguous)");
    let read = |uri: &str| with(uri, &[], |request| text(query(request, "key")));
    for name in ["%C2%A0key", "key%C2%A0", "%A0key", "%E3%80%80key"] {
        assert_eq!(read(&format!("/?{name}=x")), "(ambiguous)", "{name}");
    }
}

#[test]
fn query_key_with_an_escape_of_asp_net_is_ambiguous() {
    let read = |uri: &str| with(uri, &[], |request| text(query(request, "key")));
    for query in [
        "%u006bey=x",
        "k%u0065y=x",
        "key=%u0078",
        "key=x%U0079",
        "key=y&%u006bey=x",
    ] {
        assert_eq!(read(&format!("/?{query}")), "(ambiguous)", "{query}");
    }
    assert_eq!(read("/?key=100%u&a=%u0078"), "100%u");
}
