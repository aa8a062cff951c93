use super::verified::{SETS, WAYS};
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
    JwtSettings {
        algorithms: algorithms.to_vec(),
        ..JwtSettings::default()
    }
}

fn token(claims: &Value) -> String {
    encode(
        &Header::new(Algorithm::HS256),
        claims,
        &EncodingKey::from_secret(SECRET),
    )
    .expect("a token")
}

fn subject(policy: &JwtPolicy, token: &str, now: u64) -> Result<Option<String>, JwtError> {
    policy
        .verify(token.as_bytes(), now)
        .map(|claims| claims.find("sub").map(str::to_owned))
}

#[test]
fn a_verified_token_gives_its_claims() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    let token =
        token(&json!({"sub": "u1", "exp": NOW + 60, "org": {"id": 7}, "admin": true, "list": [1]}));
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
    let lenient = policy(JwtSettings {
        leeway: 10,
        ..accepting(&[Algorithm::HS256])
    });
    let expiring = token(&json!({"sub": "u", "exp": NOW}));
    // The token is remembered after the first look, and must be forgotten when it expires.
    assert!(subject(&strict, &expiring, NOW - 1).is_ok());
    assert_eq!(subject(&strict, &expiring, NOW), Err(JwtError::Expired));
    assert!(subject(&lenient, &expiring, NOW + 9).is_ok());
    assert_eq!(
        subject(&lenient, &expiring, NOW + 10),
        Err(JwtError::Expired)
    );
    let early = token(&json!({"sub": "u", "exp": NOW + 60, "nbf": NOW}));
    assert_eq!(subject(&strict, &early, NOW - 1), Err(JwtError::NotYet));
    assert!(subject(&strict, &early, NOW).is_ok());
    assert_eq!(
        subject(&strict, &token(&json!({"sub": "u"})), NOW),
        Err(JwtError::NoExpiry)
    );
    assert_eq!(
        subject(&strict, &token(&json!({"sub": "u", "exp": "soon"})), NOW),
        Err(JwtError::NoExpiry)
    );
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
        subject(
            &policy,
            &token(&json!({"sub": "u", "exp": NOW + 1, "iss": iss, "aud": aud})),
            NOW,
        )
        .err()
    };
    assert_eq!(verify(json!("https://id"), json!("api")), None);
    assert_eq!(verify(json!("https://id"), json!(["x", "web"])), None);
    assert_eq!(
        verify(json!("https://other"), json!("api")),
        Some(JwtError::Issuer)
    );
    assert_eq!(
        verify(json!(["https://id"]), json!("api")),
        Some(JwtError::Issuer)
    );
    assert_eq!(
        verify(json!("https://id"), json!("x")),
        Some(JwtError::Audience)
    );
    assert_eq!(
        verify(json!("https://id"), Value::Null),
        Some(JwtError::Audience)
    );
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
    for junk in [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b",
        "ä.ö.ü",
        &"x".repeat(TOKEN_MAX + 1),
    ] {
        assert_eq!(
            subject(&policy, junk, NOW),
            Err(JwtError::Malformed),
            "{junk:.20}"
        );
    }
}

#[test]
fn only_listed_algorithms_count_and_none_never() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    let other = encode(
        &Header::new(Algorithm::HS384),
        &json!({"sub": "u", "exp": NOW + 1}),
        &EncodingKey::from_secret(SECRET),
    );
    assert_eq!(
        subject(&policy, &other.expect("a token"), NOW),
        Err(JwtError::Algorithm)
    );
    // {"alg":"none"} . {"sub":"u","exp":99999999999} .
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1IiwiZXhwIjo5OTk5OTk5OTk5OX0.";
    assert_eq!(subject(&policy, none, NOW), Err(JwtError::Malformed));
    let mut critical = Header::new(Algorithm::HS256);
    critical.crit = Some(vec!["b64".into()]);
    let critical = encode(
        &critical,
        &json!({"sub": "u", "exp": NOW + 1}),
        &EncodingKey::from_secret(SECRET),
    );
    assert_eq!(
        subject(&policy, &critical.expect("a token"), NOW),
        Err(JwtError::Malformed)
    );
}

#[test]
fn jwt_cache_is_bounded() {
    let policy = policy(accepting(&[Algorithm::HS256]));
    for n in 0..(SETS * WAYS + 500) {
        assert!(
            subject(
                &policy,
                &token(&json!({"sub": n.to_string(), "exp": NOW + 60})),
                NOW
            )
            .is_ok()
        );
    }
    let keys = policy.keys.load();
    assert!(
        keys.verified
            .sets
            .iter()
            .all(|set| set.lock().tokens.len() <= WAYS)
    );
    // One that is too long to be remembered is verified all the same.
    let long = token(&json!({"sub": "x".repeat(2000), "exp": NOW + 60}));
    assert!(subject(&policy, &long, NOW).is_ok());
    assert!(
        keys.verified
            .find(&Sha256::digest(long.as_bytes()).into(), NOW)
            .is_none()
    );
}

const RSA: &[u8] = include_bytes!("testdata/rsa.pem");
const RSA_PUBLIC: &[u8] = include_bytes!("testdata/rsa.pub.pem");
const EC: &[u8] = include_bytes!("testdata/ec.pem");
const EC_PUBLIC: &[u8] = include_bytes!("testdata/ec.pub.pem");
const EC384: &[u8] = include_bytes!("testdata/ec384.pem");
const EC384_PUBLIC: &[u8] = include_bytes!("testdata/ec384.pub.pem");
const ED: &[u8] = include_bytes!("testdata/ed.pem");
const ED_PUBLIC: &[u8] = include_bytes!("testdata/ed.pub.pem");
const JWKS: &[u8] = include_bytes!("testdata/jwks.json");

fn signed(algorithm: Algorithm, key: &[u8], id: Option<&str>) -> String {
    let key = match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(key),
        Algorithm::EdDSA => EncodingKey::from_ed_pem(key),
        Algorithm::HS256 => Ok(EncodingKey::from_secret(key)),
        _ => EncodingKey::from_rsa_pem(key),
    };
    let mut header = Header::new(algorithm);
    header.kid = id.map(str::to_owned);
    encode(
        &header,
        &json!({"sub": "u", "exp": NOW + 60}),
        &key.expect("a key"),
    )
    .expect("a token")
}

fn with_keys(keys: &[u8], algorithms: &[Algorithm]) -> Result<JwtPolicy, String> {
    JwtPolicy::new(accepting(algorithms), keys)
}

#[test]
fn every_family_verifies_from_pem() {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS512, RS256, RS512};
    for (algorithm, private, public, other) in [
        (RS256, RSA, RSA_PUBLIC, None),
        (RS512, RSA, RSA_PUBLIC, None),
        (PS256, RSA, RSA_PUBLIC, Some(RS256)),
        (PS512, RSA, RSA_PUBLIC, None),
        (ES256, EC, EC_PUBLIC, None),
        (ES384, EC384, EC384_PUBLIC, None),
        (EdDSA, ED, ED_PUBLIC, None),
    ] {
        let policy = with_keys(public, &[algorithm]).expect("a public key");
        assert!(
            subject(&policy, &signed(algorithm, private, None), NOW).is_ok(),
            "{algorithm:?}"
        );
        assert!(
            subject(&policy, &signed(algorithm, private, Some("any")), NOW).is_ok(),
            "{algorithm:?}"
        );
        if let Some(other) = other {
            assert_eq!(
                subject(&policy, &signed(other, private, None), NOW),
                Err(JwtError::Algorithm)
            );
        }
    }
}

#[test]
fn a_key_set_is_searched_by_id_and_kind() {
    use Algorithm::{ES256, EdDSA, PS256, RS256};
    let policy = with_keys(JWKS, &[RS256, ES256, EdDSA]).expect("a key set");
    for (algorithm, key, id, expected) in [
        (RS256, RSA, Some("r1"), None),
        (ES256, EC, Some("e1"), None),
        (EdDSA, ED, Some("d1"), None),
        (RS256, RSA, None, None),
        (RS256, RSA, Some("e1"), Some(JwtError::UnknownKey)),
        (RS256, RSA, Some("enc"), Some(JwtError::UnknownKey)),
        (RS256, RSA, Some("new"), Some(JwtError::UnknownKey)),
        (PS256, RSA, Some("r1"), Some(JwtError::Algorithm)),
    ] {
        assert_eq!(
            subject(&policy, &signed(algorithm, key, id), NOW).err(),
            expected,
            "{algorithm:?} {id:?}"
        );
    }
}

/// A key set of so many secrets, the first one `k0`; `named`: whether they have key ids.
fn secrets(count: u8, named: bool) -> Vec<u8> {
    let key = |n: u8| {
        // base64url of 32 bytes, of which the first six bits differ.
        let mut key = json!({"kty": "oct", "alg": "HS256", "k": format!("{}{}", char::from(b'A' + n), "A".repeat(42))});
        if named {
            key["kid"] = json!(format!("k{n}"));
        }
        key
    };
    json!({ "keys": (0..count).map(key).collect::<Vec<_>>() })
        .to_string()
        .into_bytes()
}

#[test]
fn jwt_without_key_id_is_tried_with_four_keys_at_most() {
    let token = |n: u8, id: Option<&str>| {
        let mut secret = [0; 32];
        secret[0] = n << 2;
        signed(Algorithm::HS256, &secret, id)
    };
    let policy = with_keys(&secrets(26, true), &[Algorithm::HS256]).expect("a key set");
    assert!(subject(&policy, &token(3, None), NOW).is_ok());
    assert_eq!(
        subject(&policy, &token(4, None), NOW),
        Err(JwtError::Signature),
        "the fifth is not tried"
    );
    assert!(
        subject(&policy, &token(4, Some("k4")), NOW).is_ok(),
        "but for a token that names it"
    );
    assert!(with_keys(&secrets(4, false), &[Algorithm::HS256]).is_ok());
    let error = with_keys(&secrets(5, false), &[Algorithm::HS256])
        .expect_err("the fifth could never be used");
    assert!(
        error.contains("5 keys for HS256 have one `kid` or none"),
        "{error}"
    );
    let text = String::from_utf8(secrets(6, true)).expect("text");
    let same = text.replace("\"k5\"", "\"k0\"").replace("\"k4\"", "\"k0\"");
    assert!(with_keys(same.as_bytes(), &[Algorithm::HS256]).is_ok());
    let same = same.replace("\"k3\"", "\"k0\"").replace("\"k2\"", "\"k0\"");
    assert!(with_keys(same.as_bytes(), &[Algorithm::HS256]).is_err());
}

#[test]
fn a_public_key_is_never_a_secret() {
    // The classic: sign with HS256, the public key's own text as the secret.
    let forged = signed(Algorithm::HS256, RSA_PUBLIC, None);
    let policy = with_keys(RSA_PUBLIC, &[Algorithm::RS256]).expect("a public key");
    assert_eq!(subject(&policy, &forged, NOW), Err(JwtError::Algorithm));
    assert!(with_keys(RSA_PUBLIC, &[Algorithm::RS256, Algorithm::HS256]).is_err());
    assert!(with_keys(RSA_PUBLIC, &[Algorithm::HS256]).is_err());
    let forged = signed(Algorithm::HS256, JWKS, Some("r1"));
    let policy = with_keys(JWKS, &[Algorithm::RS256]).expect("a key set");
    assert_eq!(subject(&policy, &forged, NOW), Err(JwtError::Algorithm));
}

#[test]
fn unfit_key_files_say_what_is_wrong() {
    use Algorithm::{ES256, HS256, HS512, RS256};
    for (keys, algorithms, word) in [
        (RSA, &[RS256][..], "private"),
        (EC, &[ES256], "private"),
        (EC384_PUBLIC, &[ES256], "none of the keys is for ES256"),
        (RSA_PUBLIC, &[], "at least one algorithm"),
        (
            b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
            &[RS256],
            "certificate",
        ),
        (
            b"-----BEGIN PUBLIC KEY-----\njunk\n-----END PUBLIC KEY-----",
            &[RS256],
            "no RSA, EC or Ed25519",
        ),
        (b"-----BEGIN PUBLIC KEY", &[RS256], "no RSA, EC or Ed25519"),
        (b"{", &[RS256], "no JSON"),
        (b"{}", &[RS256], "no key for signatures"),
        (b"{\"keys\": 7}", &[RS256], "no list"),
        (
            b"{\"keys\": [{\"kty\": \"RSA\", \"d\": \"x\"}]}",
            &[RS256],
            "private",
        ),
        (b"short", &[HS256], "needs 32"),
        (SECRET, &[HS512], "needs 64"),
        (SECRET, &[HS256, RS256], "neither a JWKS document nor PEM"),
        (b"", &[RS256], "neither a JWKS document nor PEM"),
    ] {
        let error = with_keys(keys, algorithms).err().unwrap_or_default();
        assert!(error.contains(word), "{word}: {error:?}");
    }
    assert!(with_keys(&[RSA_PUBLIC, EC_PUBLIC].concat(), &[RS256, ES256]).is_ok());
}

#[test]
fn jwt_keys_of_a_fetched_document_are_those_that_can_be_used() {
    let mut document: serde_json::Value = serde_json::from_slice(JWKS).expect("a key set");
    let keys = document["keys"].as_array_mut().expect("keys");
    let rsa = keys[0].clone();
    keys.extend((0..40).map(|number| {
        let mut more = rsa.clone();
        more["kid"] = json!(format!("more {number}"));
        more
    }));
    let unreadable = json!({ "kty": "RSA", "kid": "bad", "n": "=", "e": "AQAB" });
    let short = json!({ "kty": "oct", "kid": "short", "k": "AAAA" });
    let mut private = keys[1].clone();
    (private["d"], private["kid"]) = (json!("AAAA"), json!("private"));
    keys.extend([unreadable, short, private]);
    let text = serde_json::to_vec(&document).expect("JSON");
    let of_document = |algorithms: &[Algorithm]| KeySet::of_document(&text, algorithms);
    assert_eq!(of_document(&[Algorithm::ES256]).expect("usable").len(), 1);
    assert!(
        of_document(&[Algorithm::HS256]).is_err(),
        "no secret is published"
    );
    assert!(of_document(&[Algorithm::RS256]).is_err(), "too many");
}
