use super::*;

#[test]
fn a_pattern_says_itself_back() {
    for text in [
        "/",
        "/**",
        "GET /v1/{id}",
        "POST|PUT *.example.com/v1/{id}/**",
        "example.com/",
        "[::1]/x",
        "/a%25b/ü",
        "/a%2Fb",
    ] {
        assert_eq!(
            Pattern::parse(text)
                .map(|pattern| pattern.to_string())
                .as_deref(),
            Ok(text)
        );
    }
    let pattern = Pattern::parse("  GET   EXAMPLE.com./%61/ ").map(|pattern| pattern.to_string());
    assert_eq!(pattern.as_deref(), Ok("GET example.com/a"));
    assert_eq!(
        Pattern::parse("* */x")
            .map(|pattern| pattern.to_string())
            .as_deref(),
        Ok("/x")
    );
}

#[test]
fn every_mistake_has_its_place() {
    for (text, wrong) in [
        ("", ""),
        ("GET", "GET"),
        ("GET example.com", "GET example.com"),
        ("get /x", "get"),
        ("GET|GET /x", "GET"),
        ("GET| /x", "|"),
        ("G(T /x", "G(T"),
        ("GET a b/x", " b"),
        ("a.*.com/x", "*"),
        ("a..com/x", "a..com"),
        ("exämple.com/x", "ä"),
        ("a.com:80/x", ":80"),
        ("[::g]/x", "[::g]"),
        ("/a//b", "//"),
        ("/**/b", "**/b"),
        ("/{}", "{}"),
        ("/{a b}", "{a b}"),
        ("/{a}/{a}", "{a}"),
        ("/x{a}", "{a}"),
        ("/a*", "*"),
        ("/a;b", ";b"),
        ("/a?b", "?b"),
        ("/a b", "a b"),
        ("/..", ".."),
        ("/a%5cb", "a%5cb"),
        ("/a%2f..", "a%2f.."),
        ("/%zz", "%zz"),
    ] {
        let error = Pattern::parse(text).expect_err(text);
        assert_eq!(
            text.get(error.at.clone()),
            Some(wrong),
            "{text:?}: {error:?}"
        );
    }
}

#[test]
fn pattern_methods_of_get_take_head() {
    let [get, head, any] = [&[Method::GET][..], &[Method::HEAD], &[]];
    assert!(takes_methods(get, head) && !takes_methods(head, get));
    assert!(takes_methods(any, get) && !takes_methods(get, any) && takes_methods(any, any));
}
