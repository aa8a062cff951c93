//! Whether the conditions of two routes beyond host and path may hold for one request. The router and
//! the checks of the file ask.

use http::Method;

/// Whether a route that lists `methods` takes `method`: none listed means all, and `GET` also takes
/// `HEAD`.
pub fn takes_method(methods: &[Method], method: &Method) -> bool {
    let is_implied = *method == Method::HEAD && methods.contains(&Method::GET);
    methods.is_empty() || methods.contains(method) || is_implied
}

/// Whether a route that lists `methods` takes all methods that a route with `others` takes.
pub fn takes_methods(methods: &[Method], others: &[Method]) -> bool {
    let is_taken = |method: &Method| takes_method(methods, method);
    methods.is_empty() || !others.is_empty() && others.iter().all(is_taken)
}

/// Whether a route that lists `methods` takes some method that a route with `others` takes.
pub fn shares_methods(methods: &[Method], others: &[Method]) -> bool {
    let is_taken = |method: &Method| takes_method(methods, method);
    let has_taken = |method: &Method| takes_method(others, method);
    // Each side may be the one that takes `HEAD` with its `GET`.
    others.is_empty() || others.iter().any(is_taken) || methods.iter().any(has_taken)
}

/// Whether two conditions want other values of the same thing. A header may appear twice in a
/// request, but two values of one header are meant as alternatives.
pub fn are_alternatives<N: PartialEq, V: PartialEq>(
    one: &[(N, Option<V>)],
    other: &[(N, Option<V>)],
) -> bool {
    let differ = |(name, value): &(N, Option<V>)| {
        let mut others = other.iter().filter(|(other, _)| other == name);
        value.is_some() && others.any(|(_, wanted)| wanted.is_some() && wanted != value)
    };
    one.iter().any(differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_methods_of_get_take_head() {
        let [get, head, post, any] = [&[Method::GET][..], &[Method::HEAD], &[Method::POST], &[]];
        assert!(shares_methods(get, head) && shares_methods(head, get));
        assert!(shares_methods(any, post) && shares_methods(post, any) && shares_methods(any, any));
        assert!(!shares_methods(get, post) && !shares_methods(post, head));
        assert!(takes_methods(get, head) && !takes_methods(head, get));
        assert!(takes_methods(any, get) && !takes_methods(get, any) && takes_methods(any, any));
    }
}
