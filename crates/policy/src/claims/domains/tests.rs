use super::*;
use crate::Scope;
use crate::tests::fixtures;

fn step(text: &str) -> Step {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (text, None),
    };
    Step {
        key: key.to_owned(),
        value,
        shared: false,
    }
}

fn steps(path: &str) -> Vec<Step> {
    path.split(' ').map(step).collect()
}

/// Rules of the domain `edge` with these paths; each is named by its path.
fn domains(paths: &[&str]) -> Domains {
    let mut domains = Domains::default();
    for path in paths {
        let rule = DescriptorRule {
            name: Some((*path).into()),
            limits: vec![0],
            ..DescriptorRule::default()
        };
        assert!(domains.insert("edge", &steps(path), rule), "{path}");
    }
    domains
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    text.split(' ')
        .map(|one| {
            let (key, value) = one.split_once('=').expect("key=value");
            Entry { key, value }
        })
        .collect()
}

fn found(domains: &Domains, descriptor: &str) -> Option<String> {
    let found = domains.find("edge", &entries(descriptor), false)?;
    found.rule.name.as_deref().map(str::to_owned)
}

#[test]
fn domains_value_goes_before_pattern_and_pattern_before_key() {
    let domains = domains(&["path", "path=/a*", "path=/ab", "path=/a*z"]);
    for (descriptor, rule) in [
        ("path=/ab", "path=/ab"),
        ("path=/abz", "path=/a*"),
        ("path=/b", "path"),
        ("path=", "path"),
    ] {
        assert_eq!(
            found(&domains, descriptor).as_deref(),
            Some(rule),
            "{descriptor}"
        );
    }
    assert_eq!(found(&domains, "method=GET"), None);
    assert!(domains.find("other", &entries("path=/ab"), false).is_none());
}

#[test]
fn domains_descriptor_of_another_length_matches_no_rule() {
    let domains = domains(&["a b", "c"]);
    for (descriptor, rule) in [
        ("a=1 b=2", Some("a b")),
        ("a=1", None),
        ("b=2 a=1", None),
        ("a=1 b=2 c=3", None),
        ("c=3", Some("c")),
        ("c=3 c=3", None),
    ] {
        assert_eq!(found(&domains, descriptor).as_deref(), rule, "{descriptor}");
    }
}

/// A more specific level without the next entry hides a general one that has it, as in the service
/// whose files are read.
#[test]
fn domains_walk_does_not_go_back_up() {
    let domains = domains(&["a b", "a=1 c"]);
    assert_eq!(found(&domains, "a=1 b=2"), None);
    assert_eq!(found(&domains, "a=2 b=2").as_deref(), Some("a b"));
}

#[test]
fn domains_patterns_match_like_globs() {
    for (pattern, yes, no) in [
        ("a*", "a", "b"),
        ("*a", "ba", "ab"),
        ("a*b*c", "a-b-c", "a-c-b"),
        ("a*bc", "abc", "ab"),
        ("*", "", "\u{0}none"),
        ("a*a", "aa", "a"),
        ("x*aa*aa*y", "xaa-aay", "xaaay"),
    ] {
        let pattern = Wildcard::new(pattern);
        assert!(pattern.matches(yes), "{pattern:?} {yes}");
        assert!(
            no == "\u{0}none" || !pattern.matches(no),
            "{pattern:?} {no}"
        );
    }
}

#[test]
fn domains_place_that_is_taken_is_not_replaced() {
    let mut domains = domains(&["a=1"]);
    assert!(!domains.insert("edge", &steps("a=1"), DescriptorRule::default()));
    assert_eq!(found(&domains, "a=1").as_deref(), Some("a=1"));
    assert!(domains.insert("other", &steps("a=1"), DescriptorRule::default()));
}

/// Two descriptors share a bucket if a pattern is shared, and never otherwise.
#[test]
fn domains_shared_pattern_has_one_bucket_and_others_have_one_for_each_value() {
    let mut domains = Domains::default();
    let shared = Step {
        shared: true,
        ..step("file=a*")
    };
    let rule = || DescriptorRule::default();
    assert!(domains.insert("edge", &[shared], rule()));
    assert!(domains.insert("edge", &steps("file=b*"), rule()));
    assert!(domains.insert("other", &steps("file"), rule()));
    let key = |domain, descriptor| {
        let found = domains.find(domain, &entries(descriptor), false);
        found.expect("a rule").key
    };
    assert_eq!(key("edge", "file=a1"), key("edge", "file=a2"));
    assert_ne!(key("edge", "file=b1"), key("edge", "file=b2"));
    assert_ne!(key("edge", "file=b1"), key("other", "file=b1"));
    let words = keys::words(&key("other", "file=b1"), false);
    assert_eq!(words, r#"domain other + file "b1""#);
}

fn policy(scope: Scope) -> Policy {
    let mut domains = domains(&["remote_address", "user"]);
    let unlimited = DescriptorRule::default();
    assert!(domains.insert("edge", &steps("free"), unlimited));
    let parts = crate::PolicyParts {
        domains,
        ..fixtures::parts(vec![], vec![fixtures::rule("one", scope)], vec![])
    };
    Policy::build(parts).expect("a policy")
}

fn per_descriptor() -> Scope {
    Scope::Identities(vec![ScopePart::Descriptor])
}

fn charge(policy: &Policy, claims: &mut Claims, descriptor: &str, hits: u64) -> Vec<usize> {
    let entries = entries(descriptor);
    let found = policy
        .domains
        .find("edge", &entries, false)
        .expect("a rule");
    let charged = policy.charge(claims, &found, hits, None, true);
    charged.expect("few buckets").to_vec()
}

#[test]
fn domains_descriptors_with_one_bucket_are_one_charge() {
    let policy = policy(per_descriptor());
    let mut claims = Claims::default();
    assert_eq!(charge(&policy, &mut claims, "user=a", 2), [0]);
    assert_eq!(charge(&policy, &mut claims, "user=b", 1), [1]);
    assert_eq!(charge(&policy, &mut claims, "user=a", 3), [0]);
    assert_eq!(charge(&policy, &mut claims, "free=a", 3), [0; 0]);
    let costs: Vec<u64> = claims.charges().iter().map(|charge| charge.cost).collect();
    assert_eq!(costs, [5, 1]);
}

#[test]
fn domains_hits_cost_as_much_as_the_limit_says_and_candidates_are_judged_beside() {
    let candidate = Limit {
        index: 1,
        ..(*fixtures::limit("one", Mode::Enforce)).clone()
    };
    let parts = crate::PolicyParts {
        domains: domains(&["user"]),
        ..fixtures::parts(
            vec![],
            vec![Rule {
                cost: crate::Cost::Fixed(3),
                candidate: Some(Arc::new(candidate)),
                ..fixtures::rule("one", per_descriptor())
            }],
            vec![],
        )
    };
    let policy = Policy::build(parts).expect("a policy");
    let mut claims = Claims::default();
    assert_eq!(charge(&policy, &mut claims, "user=a", 2), [0]);
    let charges = claims.charges().iter();
    let charges: Vec<_> = charges.map(|one| (one.cost, one.enforced)).collect();
    assert_eq!(charges, [(6, true), (6, false)]);
    let entries = entries("user=a");
    let found = policy
        .domains
        .find("edge", &entries, false)
        .expect("a rule");
    let back = policy.buckets(&found, 2);
    assert_eq!((back.len(), back[0].2), (1, 6), "as much is given back");
}

#[test]
fn domains_limit_by_address_has_the_buckets_of_routes() {
    let policy = policy(fixtures::by_address());
    let mut claims = Claims::default();
    charge(&policy, &mut claims, "remote_address=2001:db8::1", 1);
    charge(&policy, &mut claims, "remote_address=2001:db8::2", 1);
    let expected = of_address(&policy, "2001:db8::3");
    assert_eq!(claims.charges().len(), 1, "one /64");
    assert_eq!(*claims.key(&claims.charges()[0]), expected);
    // 203.0.113.0/24 is exempt.
    assert_eq!(
        charge(&policy, &mut claims, "remote_address=203.0.113.9", 1),
        [0; 0]
    );
}

#[test]
fn look_up_descriptor_finds_the_bucket_that_it_is_charged_on() {
    let all = policy(per_descriptor());
    let sought = |policy: &Policy, values: &[&str]| policy.look_up("descriptor", values);
    let found = sought(&all, &["edge", "user=a=b"]).expect("a rule");
    let mut claims = Claims::default();
    charge(&all, &mut claims, "user=a=b", 1);
    assert_eq!(found.key, *claims.key(&claims.charges()[0]));
    assert!(found.decides(&all.rules[0]) && found.elsewhere.is_empty());
    let free = sought(&all, &["edge", "free=a"]).expect("a rule");
    assert!(!free.decides(&all.rules[0]), "its rule has no limits");
    let by_address = policy(fixtures::by_address());
    let found = sought(&by_address, &["edge", "remote_address=192.0.2.7"]).expect("a rule");
    assert!(!found.decides(&by_address.rules[0]));
    let key = of_address(&by_address, "192.0.2.7");
    assert_eq!(found.elsewhere, [("one".into(), key)]);
    assert!(
        all.look_up_key("descriptor", &["edge", "user=a"]).is_err(),
        "a client gives no descriptor"
    );
}

#[test]
fn domains_request_with_too_many_buckets_is_an_error() {
    let policy = policy(per_descriptor());
    let mut claims = Claims::default();
    for user in 0..tollgate_limit::CLAIMS_MAX {
        charge(&policy, &mut claims, &format!("user={user}"), 1);
    }
    let entries = entries("user=more");
    let found = policy
        .domains
        .find("edge", &entries, false)
        .expect("a rule");
    let more = policy.charge(&mut claims, &found, 1, None, true);
    assert_eq!(more.expect_err("too many"), TooManyBuckets);
}

/// The key of a client under the scope `address`.
fn of_address(policy: &Policy, client: &str) -> KeyBytes {
    let client = client.parse().expect("an address");
    let mut key = KeyBytes::new();
    keys::push_address(&mut key, Some(policy.address.key(client)));
    key
}
