use super::*;

fn parse(text: &str) -> Result<Template, ParseError> {
    Template::parse(text, |name| (name == "tenant").then_some(3))
}

#[test]
fn a_template_is_filled_and_braces_are_kept() {
    let template = parse("a{{{tier}}}-{path:id}/{identity:tenant}").expect("a template");
    let value = template.header_value(|placeholder, into| match placeholder {
        Placeholder::Tier => into.extend_from_slice(b"pro"),
        Placeholder::Path(name) => into.extend_from_slice(name.as_bytes()),
        Placeholder::Identity(3) => into.extend_from_slice(b"k\r\nx: y\0"),
        other => panic!("{other:?}"),
    });
    assert_eq!(value, "a{pro}-id/kx: y");
}

#[test]
fn a_location_cannot_be_bent() {
    let template = parse("https://{host}/x/{path:id}?a=ü").expect("a template");
    let value = template.location(|placeholder, into| {
        let text: &[u8] = if *placeholder == Placeholder::Host {
            b"a.example"
        } else {
            b"../b?c#\r\n\xff"
        };
        into.extend_from_slice(text);
    });
    assert_eq!(value, "https://a.example/x/..%2Fb%3Fc%23%0D%0A%FF?a=%C3%BC");
}

#[test]
fn redirect_path_and_query_are_joined_and_name_no_other_host() {
    let fill = |template: &str, path: &str, query: &str| {
        let value = parse(template)
            .expect("a template")
            .location(|placeholder, into| match placeholder {
                Placeholder::RequestPath => into.extend_from_slice(path.as_bytes()),
                Placeholder::Query => into.extend_from_slice(query.as_bytes()),
                other => panic!("{other:?}"),
            });
        value.to_str().expect("ASCII").to_owned()
    };
    for (template, path, query, location) in [
        (
            "https://a{path}{query}",
            "/x%2Fy",
            "b=%20",
            "https://a/x%2Fy?b=%20",
        ),
        ("https://a{path}?{query}", "/x", "", "https://a/x"),
        ("https://a{path}?c=d&{query}", "/x", "", "https://a/x?c=d"),
        (
            "https://a{path}?c=d{query}",
            "/x",
            "e=f",
            "https://a/x?c=d&e=f",
        ),
        ("https://a{path}", "//x", "", "https://a//x"),
        (
            "https://a{path}",
            "@evil.example",
            "",
            "https://a/@evil.example",
        ),
        ("{path}", "//evil.example", "", "/evil.example"),
        ("{path}", "/\\evil.example", "", "/%5Cevil.example"),
        ("/{path}", "/evil.example", "", "/evil.example"),
        ("/new/{path}", "/x", "", "/new/x"),
        ("/new{path}", "/x", "", "/new/x"),
        ("/new?to={query}", "", "a\"#b", "/new?to=&a%22%23b"),
    ] {
        assert_eq!(
            fill(template, path, query),
            location,
            "{template} {path} {query}"
        );
    }
}

#[test]
fn every_mistake_has_its_place() {
    for (text, wrong) in [
        ("a{", "{"),
        ("a}b", "}"),
        ("{teir}", "{teir}"),
        ("x{path:}", "{path:}"),
        ("{identity:who}", "{identity:who}"),
        ("a\r\nb", "\r"),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(
            text.get(error.at.clone()),
            Some(wrong),
            "{text:?}: {error:?}"
        );
    }
}
