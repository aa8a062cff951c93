//! Credentials of `Authorization` under one scheme.

use super::*;
use crate::identity::source::credentials::credentials;

fn user(value: &str) -> String {
    with("/", &[("authorization", value)], |request| {
        text(basic_user(request).map(|user| user.map(Cow::Owned)))
    })
}

#[test]
fn credentials_are_read_by_their_scheme() {
    let read = |value: &str, scheme| {
        with("/", &[("authorization", value)], |request| {
            text(credentials(request, scheme).map(|found| found.map(Cow::Borrowed)))
        })
    };
    assert_eq!(read("Bearer abc", "bearer"), "abc");
    assert_eq!(read("bEARER   abc ", "bearer"), "abc");
    for other in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
        assert_eq!(read(other, "bearer"), "(none)", "{other}");
    }
    assert_eq!(user("Basic YWxhZGRpbjpvcGVuc2VzYW1l"), "aladdin");
    assert_eq!(user("Basic YTpiYw=="), "a");
    assert_eq!(user("Basic YTpiYw"), "a");
    assert_eq!(user("Basic OmI="), "(none)");
    assert_eq!(user("Basic YWI="), "(ambiguous)");
    assert_eq!(user("Basic !!"), "(ambiguous)");
}

/// PHP scripts look for `/Basic\s+(.*)$/i`, and their decoder skips quotes.
#[test]
fn basic_user_behind_something_else_is_ambiguous() {
    for value in [
        "xBasic dTpw",
        "Bearer basic dTpw",
        "Digest n=\"1\", realm=\"Basic dTpw\"",
        "Digest realm=\"Basic auth\"",
    ] {
        assert_eq!(user(value), "(ambiguous)", "{value}");
    }
    for value in ["Digest realm=\"Basic\"", "Bearer basic", "xBasicdTpw"] {
        assert_eq!(user(value), "(none)", "{value}");
    }
}

#[test]
fn bearer_token_that_servers_cut_or_find_elsewhere_is_ambiguous() {
    let read = |line: &[u8]| {
        with_bytes("/", [("authorization", line)], |request| {
            text(bearer(request).map(|found| found.map(Cow::Borrowed)))
        })
    };
    for good in ["tok", "1|abc", "a.b-c_d~e+f/g==", "$x", "sk_live:1"] {
        assert_eq!(read(format!("Bearer {good}").as_bytes()), good);
        assert_eq!(read(format!("bearer \t {good} ").as_bytes()), good);
    }
    let odd: [&[u8]; 24] = [
        b"Bearer tok 0",
        b"Bearer tok\t1",
        b"Bearer Bearer tok",
        b"Bearer tok,1",
        b"Bearer tok;a=1",
        b"Bearer \"tok\"",
        b"Bearer token=tok",
        b"Bearer\xa0tok",
        b"Bearer\x85tok",
        b"Bearer \xa0tok",
        b"Bearer tok\xa0",
        "Bearer\u{a0}tok".as_bytes(),
        "Bearer\u{2003}tok".as_bytes(),
        "Bearer tok\u{3000}".as_bytes(),
        "\u{feff}Bearer tok".as_bytes(),
        b"\xa0Bearer tok",
        "Bearer t\u{f6}k".as_bytes(),
        b"x Bearer tok",
        b"xbearer\ttok",
        b"Basic a, Bearer tok",
        b"Basic \xa0",
        b"Bearertok",
        b"bearer-tok",
        b"BEARER:tok",
    ];
    for line in odd {
        let shown = String::from_utf8_lossy(line);
        assert_eq!(read(line), "(ambiguous)", "{shown}");
    }
    for none in ["Basic dTpw", "Digest username=\"Цюрих\"", "Bearer", ""] {
        assert_eq!(read(none.as_bytes()), "(none)", "{none}");
    }
}

#[test]
fn bearer_token_that_a_person_writes_follows_the_same_rule() {
    assert_eq!(text(Source::Bearer.spelling("tok")), "tok");
    for odd in ["tok 1", "tok,1", "tok\u{a0}", "t\u{f6}k"] {
        assert_eq!(text(Source::Bearer.spelling(odd)), "(ambiguous)", "{odd}");
    }
}
