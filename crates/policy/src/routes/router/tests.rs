use http::{HeaderName, HeaderValue};

use super::*;
use crate::routes::pattern::Segment;
use proptest::prelude::*;

fn pattern(text: &str) -> Pattern {
    // `METHOD HOST/PATH ; header[=value]`
    let (text, headers) = text.split_once(" ; ").unwrap_or((text, ""));
    let mut pattern = Pattern::parse(text).expect("a pattern");
    for header in headers.split_whitespace() {
        let (name, value) = header
            .split_once('=')
            .map_or((header, None), |(name, value)| (name, Some(value)));
        let value = value.map(|value| HeaderValue::from_str(value).expect("a value"));
        pattern
            .headers
            .push((HeaderName::try_from(name).expect("a name"), value));
    }
    pattern
}

fn router(patterns: &[&str]) -> Router {
    let patterns: Vec<Pattern> = patterns.iter().map(|text| pattern(text)).collect();
    Router::new(&patterns).expect("a table without conflicts")
}

fn conflicts(patterns: &[&str]) -> Vec<Conflict> {
    let patterns: Vec<Pattern> = patterns.iter().map(|text| pattern(text)).collect();
    Router::new(&patterns).err().unwrap_or_default()
}

fn find(
    router: &Router,
    method: &str,
    host: &str,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> Option<usize> {
    let headers = headers.iter().map(|(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    });
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    router
        .find(&method, host, path, &headers.collect(), None)
        .matched
        .map(|matched| matched.route)
}

#[test]
fn the_most_specific_host_wins_and_falls_back() {
    let router = router(&[
        "/**",
        "*.example.com/**",
        "*.a.example.com/**",
        "x.a.example.com/only",
        "example.com/**",
    ]);
    assert_eq!(find(&router, "GET", "", "/", &[]), Some(0));
    assert_eq!(find(&router, "GET", "other.org", "/", &[]), Some(0));
    assert_eq!(find(&router, "GET", "example.com", "/", &[]), Some(4));
    assert_eq!(find(&router, "GET", "b.example.com", "/", &[]), Some(1));
    assert_eq!(find(&router, "GET", "a.example.com", "/", &[]), Some(1));
    assert_eq!(find(&router, "GET", "x.a.example.com", "/", &[]), Some(2));
    assert_eq!(
        find(&router, "GET", "x.a.example.com", "/only", &[]),
        Some(3)
    );
}

#[test]
fn a_literal_beats_a_capture_beats_the_rest_with_correct_backtracking() {
    let router = router(&["/a/{x}/c", "/a/b/**", "/a/**", "/a/b/c", "/"]);
    for (path, expected) in [
        ("/a/b/c", Some(3)),
        ("/a/z/c", Some(0)),
        ("/a/b/d", Some(1)),
        ("/a/b", Some(1)),
        ("/a/z/d", Some(2)),
        ("/a", Some(2)),
        ("/", Some(4)),
        ("/b", None),
    ] {
        assert_eq!(find(&router, "GET", "", path, &[]), expected, "{path}");
    }
}

#[test]
fn a_more_specific_path_without_the_method_falls_back_to_a_less_specific_one() {
    let router = router(&["GET /a/b", "POST /a/**", "/a/{x}"]);
    assert_eq!(find(&router, "GET", "", "/a/b", &[]), Some(0));
    assert_eq!(find(&router, "HEAD", "", "/a/b", &[]), Some(0));
    assert_eq!(find(&router, "POST", "", "/a/b", &[]), Some(2));
    assert_eq!(find(&router, "POST", "", "/a/b/c", &[]), Some(1));
    assert_eq!(find(&router, "PUT", "", "/a/b/c", &[]), None);
}

#[test]
fn route_for_get_takes_head_unless_a_route_lists_head() {
    let router = router(&["GET /a", "HEAD /a", "GET /b", "/b"]);
    assert_eq!(find(&router, "HEAD", "", "/a", &[]), Some(1));
    assert_eq!(find(&router, "HEAD", "", "/b", &[]), Some(2));
    assert_eq!(find(&router, "POST", "", "/b", &[]), Some(3));
}

#[test]
fn more_header_conditions_win() {
    let router = router(&[
        "/a",
        "/a ; x-b",
        "/a ; x-b=1",
        "/a ; x-b=2",
        "/a ; x-b=1 x-c",
    ]);
    assert_eq!(find(&router, "GET", "", "/a", &[]), Some(0));
    assert_eq!(find(&router, "GET", "", "/a", &[("x-b", "9")]), Some(1));
    assert_eq!(find(&router, "GET", "", "/a", &[("x-b", "1")]), Some(2));
    assert_eq!(
        find(&router, "GET", "", "/a", &[("x-b", "2"), ("x-c", "")]),
        Some(3)
    );
    assert_eq!(
        find(&router, "GET", "", "/a", &[("x-b", "1"), ("x-c", "")]),
        Some(4)
    );
}

#[test]
fn captures_hold_only_the_winning_way() {
    let router = router(&["/a/{x}/c/{y}", "/{p}/b/**", "/{p}/{q}/{r}"]);
    let captures = |path| {
        router
            .find(&Method::GET, "", path, &HeaderMap::new(), None)
            .matched
            .map(|m| (m.route, m.captures.to_vec()))
    };
    assert_eq!(captures("/a/1/c/2"), Some((0, vec!["1", "2"])));
    assert_eq!(captures("/a/b/c/d"), Some((0, vec!["b", "d"])));
    assert_eq!(captures("/a/b/d/e"), Some((1, vec!["a"])));
    assert_eq!(captures("/a/1/d"), Some((2, vec!["a", "1", "d"])));
}

#[test]
fn ties_and_unreachable_routes_name_both_sides() {
    let tie = |first, second| vec![Conflict::Tie { first, second }];
    assert_eq!(conflicts(&["/a/{x}", "/a/{y}"]), tie(0, 1));
    assert_eq!(
        conflicts(&["GET|POST /a", "PUT /a", "POST|DELETE /a"]),
        tie(0, 2)
    );
    assert_eq!(conflicts(&["/a ; x-b", "/a ; x-c"]), tie(0, 1));
    assert_eq!(
        conflicts(&["/a ; x-b=1", "/a ; x-b=2", "h/a", "*.h/a"]),
        vec![]
    );
    let swallowed = |route, by: &[usize]| {
        vec![Conflict::Unreachable {
            route,
            by: by.to_vec(),
        }]
    };
    assert_eq!(
        conflicts(&["/a/**", "/a", "/a/{x}/**"]),
        swallowed(0, &[1, 2])
    );
    assert_eq!(
        conflicts(&["GET /a/**", "/a", "/a/{x}", "GET|PUT /a/{x}/{y}/**"]),
        swallowed(0, &[1, 2, 3])
    );
    assert_eq!(conflicts(&["/a/**", "/a", "GET /a/{x}/**"]), vec![]);
    assert_eq!(conflicts(&["/a/**", "/a/{x}/**"]), vec![]);
}

#[test]
fn ten_thousand_routes_visit_no_more_nodes_than_ten() {
    let visited = |count: usize| {
        let patterns: Vec<Pattern> = (0..count)
            .map(|n| pattern(&format!("GET /service{n}/v1/{{id}}/items/{{item}}")))
            .collect();
        let router = Router::new(&patterns).expect("a table");
        let path = format!("/service{}/v1/7/items/8", count / 2);
        let RouteSearch {
            matched, visited, ..
        } = router.find(&Method::GET, "h", &path, &HeaderMap::new(), None);
        assert_eq!(matched.map(|m| m.route), Some(count / 2));
        visited
    };
    assert_eq!(visited(10_000), visited(10));
}

#[test]
fn interleaved_literals_and_captures_never_visit_a_node_twice() {
    // Every mixture of `a` and `{x}` to depth 10, and a path that fails only at its end: the worst there is.
    let patterns: Vec<Pattern> = (0..1024_u32)
        .map(|mask| {
            let path: String = (0..10)
                .map(|bit| {
                    if mask >> bit & 1 == 0 {
                        "/a".to_owned()
                    } else {
                        format!("/{{x{bit}}}")
                    }
                })
                .collect();
            pattern(&format!("GET {path}/end"))
        })
        .collect();
    let router = Router::new(&patterns).expect("a table");
    let nodes = router.any.nodes.len();
    let path = format!("{}/no", "/a".repeat(10));
    let RouteSearch {
        matched, visited, ..
    } = router.find(&Method::GET, "", &path, &HeaderMap::new(), None);
    assert_eq!(matched, None);
    assert!(visited <= nodes, "{visited} visits of {nodes} nodes");
}

/// The place of a pattern in the order of the router. Of two patterns that take the same request, the
/// greater one comes first. It includes whether methods are listed, and not which. Conditions on
/// headers and the body rank lower and are not included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    host: HostRank,
    path: Vec<SegmentRank>,
    lists_methods: bool,
}

/// Any host, then wildcards by the length of their suffix, then one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Any,
    Wildcard(usize),
    Exact,
}

/// The last segment of a path is always `End` or `Rest`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SegmentRank {
    Rest,
    End,
    Capture,
    Literal,
}

fn precedence(pattern: &Pattern) -> Precedence {
    let host = match &pattern.host {
        HostPattern::Any => HostRank::Any,
        HostPattern::Wildcard(suffix) => HostRank::Wildcard(suffix.len()),
        HostPattern::Exact(_) => HostRank::Exact,
    };
    let segments = pattern.path.iter().map(|segment| match segment {
        Segment::Literal(_) => SegmentRank::Literal,
        Segment::Capture(_) => SegmentRank::Capture,
        Segment::Rest => SegmentRank::Rest,
    });
    Precedence {
        host,
        path: segments.chain([SegmentRank::End]).collect(),
        lists_methods: !pattern.methods.is_empty(),
    }
}

/// The order of the module's documentation, written the slow way: every matching route, and the greatest of them.
fn reference(
    patterns: &[Pattern],
    method: &Method,
    host: &str,
    path: &str,
    headers: &HeaderMap,
) -> Option<usize> {
    let segments: Vec<&str> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    let rank = |pattern: &Pattern| {
        match &pattern.host {
            HostPattern::Any => {}
            HostPattern::Wildcard(suffix) => {
                host.strip_suffix(suffix.as_str())
                    .filter(|left| left.len() > 1 && left.ends_with('.'))?;
            }
            HostPattern::Exact(name) => (name == host).then_some(())?,
        }
        let mut left = segments.iter();
        let mut open = false;
        for segment in &pattern.path {
            match segment {
                Segment::Literal(text) => {
                    (left.next() == Some(&text.as_str())).then_some(())?;
                }
                Segment::Capture(_) => {
                    left.next()?;
                }
                Segment::Rest => {
                    open = true;
                }
            }
        }
        if !open {
            left.next().is_none().then_some(())?;
        }
        let method_rank = if pattern.methods.is_empty() {
            0
        } else if pattern.methods.contains(method) {
            2
        } else {
            (method == Method::HEAD && pattern.methods.contains(&Method::GET)).then_some(1)?
        };
        let holds = |(name, value): &(HeaderName, Option<HeaderValue>)| match value {
            None => headers.contains_key(name),
            Some(value) => headers.get_all(name).iter().any(|line| line == value),
        };
        pattern.headers.iter().all(holds).then_some(())?;
        let valued = pattern
            .headers
            .iter()
            .filter(|(_, value)| value.is_some())
            .count();
        Some((
            precedence(pattern),
            method_rank,
            pattern.headers.len(),
            valued,
        ))
    };
    let ranked = patterns
        .iter()
        .enumerate()
        .filter_map(|(route, pattern)| Some((rank(pattern)?, route)));
    ranked
        .max_by(|(a, _), (b, _)| a.cmp(b))
        .map(|(_, route)| route)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn the_tree_agrees_with_a_slow_reference(
        table in prop::collection::vec(
            ("(|GET |POST |GET\\|PUT |HEAD )", "(|h|x\\.h|\\*\\.h|\\*\\.x\\.h)", "(/(a|b|c)|/\\{1\\}){0,4}", "(|/\\*\\*)", "(| ; p| ; p=1| ; p=2| ; p q)"),
            1..24,
        ),
        requests in prop::collection::vec(
            ("(GET|HEAD|POST|PUT|PATCH)", "(|h|x\\.h|y\\.x\\.h|z)", "(/(a|b|c|d)){0,5}", 0..4_usize, any::<bool>()), 24,
        ),
    ) {
        // `{1}` is a capture; each gets a name of its own.
        let mut patterns: Vec<Pattern> = Vec::new();
        for (method, host, path, rest, headers) in table {
            let mut named = String::new();
            for (index, part) in path.split("{1}").enumerate() {
                if index > 0 {
                    named.push_str(&format!("{{c{index}}}"));
                }
                named.push_str(part);
            }
            let whole = format!("{named}{rest}");
            let whole = if whole.is_empty() { "/".to_owned() } else { whole };
            patterns.push(pattern(&format!("{method}{host}{whole}{headers}")));
            // A table with conflicts is no table: take back the route that made one.
            if Router::new(&patterns).is_err() {
                patterns.pop();
            }
        }
        let router = Router::new(&patterns).expect("conflicting routes were taken back");
        for (method, host, path, p, q) in requests {
            let mut headers = HeaderMap::new();
            if p > 0 {
                headers.insert("p", HeaderValue::from(p));
            }
            if q {
                headers.insert("q", HeaderValue::from_static(""));
            }
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let path = if path.is_empty() { "/".to_owned() } else { path };
            let found = router.find(&method, &host, &path, &headers, None).matched.map(|matched| matched.route);
            prop_assert_eq!(found, reference(&patterns, &method, &host, &path, &headers), "{} {}{}", method, host, path);
        }
    }
}
