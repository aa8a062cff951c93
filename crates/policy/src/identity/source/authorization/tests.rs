//! Keys of `Authorization`.

use super::*;
use crate::identity::source::Source;

/// The key of a value.
fn form(value: &str) -> String {
    match whole(Cow::Borrowed(value.as_bytes())) {
        Ok(key) => String::from_utf8_lossy(&key).into_owned(),
        Err(_) => "(ambiguous)".into(),
    }
}

#[test]
fn authorization_of_one_credential_is_one_key() {
    for (spellings, key) in [
        (
            &["Bearer tok", "bearer tok", "BEARER \t tok "][..],
            "Bearer tok",
        ),
        (
            &["Basic dTpw", "basic dTpw", "Basic  dTpw", "bASIC\tdTpw "],
            "Basic dTpw",
        ),
        (
            &["Basic YTpiYw==", "Basic YTpiYw", "basic YTpiYw="],
            "Basic YTpiYw==",
        ),
        (
            &[
                "Token abc",
                "token abc",
                "Token  abc",
                "Token token=\"abc\"",
                "token token=abc",
                "Token token=\"abc\", email=\"x\"",
                "Token token=abc;nonce=1",
            ],
            "Token abc",
        ),
        (
            &["Negotiate YIIB==", "negotiate \t YIIB=="],
            "Negotiate YIIB==",
        ),
        (&["NTLM TlRM", "ntlm TlRM", "Ntlm  TlRM"], "NTLM TlRM"),
        (&["ApiKey k", "apikey k", "APIKEY k"], "ApiKey k"),
        (&["scram-sha-1 k", "SCRAM-SHA-1 k"], "SCRAM-SHA-1 k"),
        (&["Scram-Sha-256 k"], "SCRAM-SHA-256 k"),
        (&["goog4-hmac-sha256 k"], "GOOG4-HMAC-SHA256 k"),
        (&["tc3-hmac-sha256 k"], "TC3-HMAC-SHA256 k"),
        (&["DPoP k", "dpop  k"], "DPoP k"),
        (&["Made-up k", "MADE-UP  k", "made-up k"], "Made-up k"),
        (
            &["GoogleLogin auth=x", "googlelogin  auth=x"],
            "GoogleLogin auth=x",
        ),
        (&["Made-up token=k", "made-up  token=k"], "Made-up token=k"),
        (&["Ntlm Tl+M/a==", "NTLM  Tl+M/a== "], "NTLM Tl+M/a=="),
    ] {
        for spelling in spellings {
            assert_eq!(form(spelling), key, "{spelling}");
        }
    }
}

#[test]
fn authorization_with_parameters_keeps_them() {
    for (value, key) in [
        ("Signature a=b, c=d", "Signature a=b, c=d"),
        (
            "digest  username=\"u\", realm=\"a b\"",
            "Digest username=\"u\", realm=\"a b\"",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=K/1/x, SignedHeaders=host, Signature=0",
            "AWS4-HMAC-SHA256 Credential=K/1/x, SignedHeaders=host, Signature=0",
        ),
        (
            "aws4-hmac-sha256\tCredential=K, Signature=0",
            "AWS4-HMAC-SHA256 Credential=K, Signature=0",
        ),
        (
            "Digest username=\"basic\", realm=\"Basic\"",
            "Digest username=\"basic\", realm=\"Basic\"",
        ),
        (
            "EG1-HMAC-SHA256 client_token=a;access_token=b",
            "EG1-HMAC-SHA256 client_token=a;access_token=b",
        ),
        ("PrivateToken token=\"k==\"", "PrivateToken token=\"k==\""),
        ("HOBA result=\"a.b\"", "HOBA result=\"a.b\""),
    ] {
        assert_eq!(form(value), key, "{value}");
    }
}

#[test]
fn authorization_without_a_scheme_stays_as_it_is() {
    for value in ["sk_LIVE", "Basic", "BEARER", "key=K", "key=K, x=1", "a:B"] {
        assert_eq!(form(value), value, "{value}");
    }
}

#[test]
fn authorization_that_servers_cut_in_different_places_is_ambiguous() {
    for value in [
        "Bearer tok 1",
        "Bearer tok,1",
        "Bearer\u{a0}tok",
        "Basic dTpw 1",
        "Basic dT.pw",
        "Basic dTpw,1",
        "Basic\u{a0}dTpw",
        "Token abc 1",
        "Token abc,1",
        "Token abc;a=1",
        "Token a=1, token=abc",
        "Token username=\"u\", token=\"T\"",
        "Token token=abc, token=def",
        "Token token=\"abc\" 1",
        "Token token = abc",
        "Token token=",
        "Negotiate YIIB 1",
        "Negotiate YIIB= 1",
        "Negotiate YIIB=,a 1",
        "ApiKey k\t1",
        "ApiKey k,1",
        "ApiKey k;x",
        "ApiKey \"k\"",
        "ApiKey k\u{e9}",
        "ApiKey k==,1",
        "HOBA result=\"a\" b",
        "HOBA result=\"",
        "a:B c",
        "Bearer: tok",
        "Bearer:  tok",
        "key:x  tok",
        "\"sk\" 1",
        "Made-up k 1",
    ] {
        assert_eq!(form(value), "(ambiguous)", "{value}");
    }
}

/// Servers that search for a scheme with an expression that is not anchored find it in all of these.
#[test]
fn authorization_with_a_sought_scheme_behind_something_else_is_ambiguous() {
    for value in [
        "x Basic dTpw",
        "xBasic dTpw",
        "ABasic dTpw",
        "Digest n=1, Basic dTpw",
        "Digest realm=\"a\",Basic dTpw",
        "Digest n=\"1\", realm=\"Basic dTpw\"",
        "Digest realm=\"basic\tdTpw\", uri=\"/\"",
        "Digest realm=\"Basic dT\", opaque=\"pw\"",
        "Digest realm=\"Basic auth\", uri=\"/\"",
        "XBearer k",
        "Bearer-tok",
        "bearerXtok",
        "BasicXdTpw",
        "Bearer: tok",
        "Digest n=\"Bearer tok\", uri=\"/\"",
    ] {
        assert_eq!(form(value), "(ambiguous)", "{value}");
    }
}

/// A server that splits at blanks reads the credential before the blank.
#[test]
fn authorization_with_a_blank_that_no_list_of_parameters_has_is_ambiguous() {
    for value in [
        "ApiKey KEY =1,2",
        "ApiKey KEY =\"x\"",
        "ApiKey KEY = 1,2",
        "ApiKey KEY= 1,2",
        "ApiKey KEY\t=1,2",
        "Negotiate YIIB= 1,2",
        "Negotiate YIIB= \"x\"",
        "GoogleLogin auth=x 1,2",
        "GoogleLogin auth=x ,1",
        "Made-up token=k 1;2",
        "Made-up token=\"k\" 1,2",
        "Made-up a=1, b=2 c",
        "Made-up a=\"1, b=2",
        "Made-up a=\"1\\\", b=2",
        "key=K 1,2",
    ] {
        assert_eq!(form(value), "(ambiguous)", "{value}");
    }
}

#[test]
fn authorization_that_ordinary_clients_write_is_a_key() {
    for value in [
        "AWS4-HMAC-SHA256 Credential=K/20261126/eu-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=0a",
        "AWS4-HMAC-SHA256 Credential=K/20261126/eu-1/s3/aws4_request,SignedHeaders=host,Signature=0a",
        "GOOG4-HMAC-SHA256 Credential=a@b.example/20261126/auto/storage/goog4_request, SignedHeaders=host;x-goog-date, Signature=0a",
        "TC3-HMAC-SHA256 Credential=K/2026-11-26/cvm/tc3_request, SignedHeaders=content-type;host, Signature=0a",
        "Hmac-sha256 Credential=K&SignedHeaders=x-ms-date;host&Signature=c2ln=",
        "SharedKey account:c2ln+/=",
        "AWS K:c2lnbmF0dXJl=",
        "Digest username=\"a b\", realm=\"r, s\", nonce=\"n\", uri=\"/?a=1;b\", qop=auth, nc=00000001, cnonce=\"c\", response=\"0a\"",
        "Digest username=\"a \\\" b\",realm=\"D\\u\",nonce=\"\"",
        "Digest username*=UTF-8''J%C3%A4s, realm=\"r\"",
        "OAuth realm=\"\", oauth_consumer_key=\"k\", oauth_nonce=\"n\", oauth_signature=\"s%3D\"",
        "OAuth oauth_consumer_key=\"k\",oauth_token=\"t\",oauth_version=\"1.0\"",
        "Hawk id=\"dh37\", ts=\"1353832234\", nonce=\"j4h3g2\", ext=\"some ext; data\", mac=\"6R4r=\"",
        "SCRAM-SHA-256 realm=\"r\", data=biwsbj11LHI9cg==",
        "SCRAM-SHA-256 sid=AAAA, data=Yz1iaXdz",
        "SCRAM-SHA-256 data=biwsbj11LHI9cg==",
        "EG1-HMAC-SHA256 client_token=a;access_token=b;timestamp=20261126T08:00:00+0000;nonce=n;signature=c2ln=",
        "Signature keyId=\"k\",algorithm=\"hs2019\",headers=\"(request-target) host date\",signature=\"c2ln==\"",
        "vapid t=eyJh.eyJi.c2ln, k=BA1H",
        "Mediabrowser Client=\"Web\", Device=\"A room\", Token=\"t\"",
        "Discogs key=a, secret=b",
        "HOBA result=\"a.b.c.d\"",
        "Negotiate YIIB==",
        "NTLM TlRMTVNTUAAB",
        "ApiKey aWQ6a2V5==",
        "Token 9944b091",
    ] {
        assert_eq!(form(value), value);
    }
}

#[test]
fn authorization_that_a_person_writes_follows_the_same_rule() {
    let named = |value: &'static str| {
        let source = Source::Header(AUTHORIZATION);
        source.spelling(value).map(|key| key.map(Cow::into_owned))
    };
    assert_eq!(named(" bearer  tok"), Ok(Some(b"Bearer tok".to_vec())));
    assert_eq!(named("basic  dTpw "), Ok(Some(b"Basic dTpw".to_vec())));
    assert_eq!(named("Bearer tok,1"), Err(Ambiguous::Unclear));
}
