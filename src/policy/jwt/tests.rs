use super::*;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_700_000_000;

fn policy(settings: JwtSettings) -> JwtPolicy {
    let mut policy = JwtPolicy::new(settings, SECRET).expect("a secret of 32 bytes");
    policy.want(["sub", "org.id", "admin", "list"]);
    policy
}

fn accepting(algorithms: &[Algorithm]) -> JwtSettings {
    JwtSettings { algorithms: algorithms.to_vec(), ..JwtSettings::default() }
}

fn token(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET)).expect("a token")
}

fn subject(policy: &JwtPolicy, token: &str, now: u64) -> Result<Option<String>, JwtError> {
    policy.verify(token.as_bytes(), now).map(|claims| claims.find("sub").map(str::to_owned))
}

#[test]
fn a_verified_token_gives_its_claims() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    let token = token(&json!({"sub": "u1", "exp": NOW + 60, "org": {"id": 7}, "admin": true, "list": [1]}));
    let claims = policy.verify(token.as_bytes(), NOW).expect("valid");
    assert_eq!(claims.find("sub"), Some("u1"));
    assert_eq!(claims.find("org.id"), Some("7"));
    assert_eq!(claims.find("admin"), Some("true"));
    assert_eq!(claims.find("list"), None);
    assert_eq!(claims.find("other"), None);
}

#[test]
fn times_are_those_of_the_argument() {
    let strict = policy(accepting(&[Algorithm::HS256]));
    let lenient = policy(JwtSettings { leeway: 10, ..accepting(&[Algorithm::HS256]) });
    let expiring = token(&json!({"sub": "u", "exp": NOW}));
    // The token is remembered after the first look, and must be forgotten when it expires.
    assert!(subject(&strict, &expiring, NOW - 1).is_ok());
    assert_eq!(subject(&strict, &expiring, NOW), Err(JwtError::Expired));
    assert!(subject(&lenient, &expiring, NOW + 9).is_ok());
    assert_eq!(subject(&lenient, &expiring, NOW + 10), Err(JwtError::Expired));
    let early = token(&json!({"sub": "u", "exp": NOW + 60, "nbf": NOW}));
    assert_eq!(subject(&strict, &early, NOW - 1), Err(JwtError::NotYet));
    assert!(subject(&strict, &early, NOW).is_ok());
    assert_eq!(subject(&strict, &token(&json!({"sub": "u"})), NOW), Err(JwtError::Expired));
    assert_eq!(subject(&strict, &token(&json!({"sub": "u", "exp": "soon"})), NOW), Err(JwtError::Expired));
    assert!(subject(&strict, &token(&json!({"sub": "u", "exp": 1.8e9})), NOW).is_ok());
}

#[test]
fn issuer_and_audience_must_be_named() {
    let settings = JwtSettings {
        issuers: vec!["https://id".into()],
        audiences: vec!["api".into(), "web".into()],
        ..accepting(&[Algorithm::HS256])
    };
    let policy = policy(settings);
    let verify = |iss: Value, aud: Value| {
        subject(&policy, &token(&json!({"sub": "u", "exp": NOW + 1, "iss": iss, "aud": aud})), NOW).err()
    };
    assert_eq!(verify(json!("https://id"), json!("api")), None);
    assert_eq!(verify(json!("https://id"), json!(["x", "web"])), None);
    assert_eq!(verify(json!("https://other"), json!("api")), Some(JwtError::Issuer));
    assert_eq!(verify(json!(["https://id"]), json!("api")), Some(JwtError::Issuer));
    assert_eq!(verify(json!("https://id"), json!("x")), Some(JwtError::Audience));
    assert_eq!(verify(json!("https://id"), Value::Null), Some(JwtError::Audience));
}

#[test]
fn a_forged_token_is_refused_even_after_its_model_was_seen() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    let good = token(&json!({"sub": "u1", "exp": NOW + 60}));
    assert!(subject(&policy, &good, NOW).is_ok());
    let (rest, signature) = good.rsplit_once('.').expect("three parts");
    let flipped = if signature.starts_with('A') { "B" } else { "A" };
    let forged = format!("{rest}.{flipped}{}", &signature[1..]);
    assert_eq!(subject(&policy, &forged, NOW), Err(JwtError::Signature));
    let bare = format!("{rest}.");
    assert!(subject(&policy, &bare, NOW).is_err());
    for junk in ["", ".", "..", "a.b.c", "a.b", "ä.ö.ü", &"x".repeat(TOKEN_MAX + 1)] {
        assert_eq!(subject(&policy, junk, NOW), Err(JwtError::Malformed), "{junk:.20}");
    }
}

#[test]
fn only_listed_algorithms_count_and_none_never() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    let other =
        encode(&Header::new(Algorithm::HS384), &json!({"sub": "u", "exp": NOW + 1}), &EncodingKey::from_secret(SECRET));
    assert_eq!(subject(&policy, &other.expect("a token"), NOW), Err(JwtError::Algorithm));
    // {"alg":"none"} . {"sub":"u","exp":99999999999} .
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1IiwiZXhwIjo5OTk5OTk5OTk5OX0.";
    assert_eq!(subject(&policy, none, NOW), Err(JwtError::Malformed));
    let mut critical = Header::new(Algorithm::HS256);
    critical.crit = Some(vec!["b64".into()]);
    let critical = encode(&critical, &json!({"sub": "u", "exp": NOW + 1}), &EncodingKey::from_secret(SECRET));
    assert_eq!(subject(&policy, &critical.expect("a token"), NOW), Err(JwtError::Malformed));
    assert!(parse_algorithm("none").is_err_and(|error| error.message.contains("no signature")));
    assert!(parse_algorithm("es256").is_err());
    assert_eq!(parse_algorithm("ES256"), Ok(Algorithm::ES256));
}

#[test]
fn what_is_remembered_is_bounded() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    for n in 0..(SETS * WAYS + 500) {
        assert!(subject(&policy, &token(&json!({"sub": n.to_string(), "exp": NOW + 60})), NOW).is_ok());
    }
    assert!(policy.verified.sets.iter().all(|set| set.lock().tokens.len() <= WAYS));
    // One that is too long to be remembered is verified all the same.
    let long = token(&json!({"sub": "x".repeat(2000), "exp": NOW + 60}));
    assert!(subject(&policy, &long, NOW).is_ok());
    assert!(policy.verified.find(&Sha256::digest(long.as_bytes()).into(), NOW).is_none());
}
