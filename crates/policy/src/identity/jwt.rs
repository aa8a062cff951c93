//! Verifies tokens (JWT, RFC 7519): a claim counts only if the token's signature, issuer, audience
//! and times are valid.
//!
//! It does not accept an algorithm that is not on the list (`none` cannot be on it), use a key with
//! an algorithm of another family (an RSA public key as an HMAC secret), or accept a token with
//! critical extensions. A token must have an expiry time. An invalid token is refused and does not
//! count as missing; otherwise a client could send a broken token to get the limits of an anonymous caller.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use arc_swap::ArcSwap;
use http::Uri;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

pub use jsonwebtoken::Algorithm;

mod verified;

use super::jwt_keys::{KEYS_TRIED, KeySet};
use crate::upstream::TlsFiles;
use tollgate_limit::Micros;
use verified::Verified;

/// How tokens are verified, with a bounded cache of verified tokens.
#[derive(Debug)]
pub struct JwtPolicy {
    keys: ArcSwap<Keys>,
    settings: JwtSettings,
    wanted: Vec<String>,
    fetched_from: Option<KeysUrl>,
    /// Woken when a token names a key that is not there.
    fetcher: OnceLock<Waker>,
}

/// The keys in force, with the tokens that they verified: a key that is withdrawn takes them along.
#[derive(Debug, Default)]
struct Keys {
    set: KeySet,
    verified: Verified,
}

/// Where keys are fetched from, as data. Fetches nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysUrl {
    /// The JWKS document or, with an issuer, the issuer's OpenID configuration, which names it.
    pub url: Uri,
    pub issuer: Option<String>,
    pub settings: FetchSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSettings {
    pub refresh: Micros,
    pub unknown_kid: Micros,
    pub timeout: Micros,
    pub hosts: Vec<Arc<str>>,
    pub private_addresses: bool,
    pub tls: TlsFiles,
}

#[derive(Clone, Debug, Default)]
pub struct JwtSettings {
    pub algorithms: Vec<Algorithm>,
    /// Issuers accepted (`iss`); empty: any.
    pub issuers: Vec<String>,
    /// Audiences accepted (`aud`), one of which the token must name; empty: any.
    pub audiences: Vec<String>,
    /// The allowed difference between the clocks of issuer and gateway, in seconds.
    pub leeway: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("not a signed token")]
    Malformed,
    #[error("signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("the keys have not been fetched yet")]
    NoKeys,
    #[error("no key fits the token's key id and algorithm")]
    UnknownKey,
    #[error("the signature is wrong")]
    Signature,
    #[error("expired")]
    Expired,
    #[error("without an expiry (`exp`)")]
    NoExpiry,
    #[error("not valid yet")]
    NotYet,
    #[error("the issuer is not accepted")]
    Issuer,
    #[error("meant for another audience")]
    Audience,
}

crate::labels! {
    JwtError {
        Self::Malformed => "token_malformed",
        Self::Algorithm => "token_algorithm",
        Self::NoKeys => "token_keys_not_fetched",
        Self::UnknownKey => "token_unknown_key",
        Self::Signature => "token_signature",
        Self::Expired => "token_expired",
        Self::NoExpiry => "token_without_expiry",
        Self::NotYet => "token_not_yet",
        Self::Issuer => "token_issuer",
        Self::Audience => "token_audience",
    }
}

/// The claims of a verified token that are used in keys.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifiedClaims {
    claims: Vec<(String, Option<String>)>,
}

impl VerifiedClaims {
    /// A claim as text; `None` when the token has no such claim, or it is an object or list.
    pub fn find(&self, name: &str) -> Option<&str> {
        let (_, value) = self.claims.iter().find(|(claim, _)| claim == name)?;
        value.as_deref()
    }
}

/// A token that was not verified before.
#[derive(Debug)]
pub(crate) struct Unknown<'t> {
    token: &'t [u8],
    digest: [u8; 32],
}

impl JwtPolicy {
    /// Reads the keys: a JWKS document, PEM public keys, or (for HMAC algorithms only) a raw secret.
    pub fn new(settings: JwtSettings, keys: &[u8]) -> Result<Self, String> {
        if settings.algorithms.is_empty() {
            return Err("at least one algorithm must be accepted, such as `ES256`".into());
        }
        let set = KeySet::parse(keys, &settings.algorithms)?;
        Ok(Self::with(set, settings, None))
    }

    /// Without keys until they are fetched ([`JwtPolicy::replace_keys`]).
    pub fn fetched(settings: JwtSettings, from: KeysUrl) -> Self {
        Self::with(KeySet::default(), settings, Some(from))
    }

    fn with(set: KeySet, settings: JwtSettings, fetched_from: Option<KeysUrl>) -> Self {
        let keys = Keys {
            set,
            verified: Verified::default(),
        };
        Self {
            keys: ArcSwap::from_pointee(keys),
            settings,
            wanted: Vec::new(),
            fetched_from,
            fetcher: OnceLock::new(),
        }
    }

    /// Where its keys are fetched from; `None`: they are in the configuration.
    pub fn fetched_from(&self) -> Option<&KeysUrl> {
        self.fetched_from.as_ref()
    }

    /// Puts the keys of a fetched JWKS document in force, at once; returns their number.
    /// On an error the keys in force stay.
    pub fn replace_keys(&self, document: &[u8]) -> Result<usize, String> {
        let set = KeySet::of_document(document, &self.settings.algorithms)?;
        let count = set.len();
        self.keys.store(Arc::new(Keys {
            set,
            verified: Verified::default(),
        }));
        Ok(count)
    }

    /// Wakes `fetcher` whenever a token names a key that is not there. Only the first one given is woken.
    pub fn on_unknown_key(&self, fetcher: Waker) {
        let _ = self.fetcher.set(fetcher);
    }

    /// Names the claims that are cached of a verified token.
    pub(crate) fn want<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        self.wanted = names.into_iter().map(str::to_owned).collect();
    }

    /// The claims of `token` at `now` (seconds since the Unix epoch), if it is valid.
    pub fn verify(&self, token: &[u8], now: u64) -> Result<Arc<VerifiedClaims>, JwtError> {
        match self.find(token, now)? {
            Ok(claims) => Ok(claims),
            Err(unknown) => self.verify_unknown(unknown, now),
        }
    }

    /// The claims of a token that was verified before; otherwise the input for [`JwtPolicy::verify_unknown`].
    pub(crate) fn find<'t>(
        &self,
        token: &'t [u8],
        now: u64,
    ) -> Result<Result<Arc<VerifiedClaims>, Unknown<'t>>, JwtError> {
        if token.len() > TOKEN_MAX {
            return Err(JwtError::Malformed);
        }
        // The hash includes the signature; otherwise a forged token would find the claims of a
        // valid one.
        let digest: [u8; 32] = Sha256::digest(token).into();
        let keys = self.keys.load();
        Ok(keys
            .verified
            .find(&digest, now)
            .ok_or(Unknown { token, digest }))
    }

    /// Verifies a token, which costs far more than a refusal by a limit.
    pub(crate) fn verify_unknown(
        &self,
        unknown: Unknown<'_>,
        now: u64,
    ) -> Result<Arc<VerifiedClaims>, JwtError> {
        let Unknown { token, digest } = unknown;
        let keys = self.keys.load();
        let payload = self.check_signature(&keys.set, token)?;
        let until = self.check_claims(&payload, now)?;
        let wanted = self
            .wanted
            .iter()
            .map(|name| (name.clone(), claim(&payload, name)));
        let claims = Arc::new(VerifiedClaims {
            claims: wanted.collect(),
        });
        let texts = claims.claims.iter().filter_map(|(_, value)| value.as_ref());
        if texts.map(String::len).sum::<usize>() <= REMEMBERED_MAX {
            keys.verified
                .insert(digest, until, Arc::clone(&claims), now);
        }
        Ok(claims)
    }

    fn check_signature(&self, keys: &KeySet, token: &[u8]) -> Result<Map<String, Value>, JwtError> {
        let header = decode_header(token).map_err(|_| JwtError::Malformed)?;
        if header.crit.is_some() {
            // RFC 7515 section 4.1.11: extensions that are not understood make the token invalid.
            return Err(JwtError::Malformed);
        }
        if !self.settings.algorithms.contains(&header.alg) {
            return Err(JwtError::Algorithm);
        }
        if keys.len() == 0 {
            return Err(JwtError::NoKeys);
        }
        let mut validation = Validation::new(header.alg);
        // The jsonwebtoken crate would read the system's clock; `check_claims` checks times, issuer
        // and audience.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let mut why = JwtError::UnknownKey;
        for key in keys
            .fitting(header.alg, header.kid.as_deref())
            .take(KEYS_TRIED)
        {
            match decode::<Map<String, Value>>(token, &key.key, &validation) {
                Ok(data) => return Ok(data.claims),
                Err(error) => why = reason(&error),
            }
        }
        // A token without a key id may be by a key that the issuer has added, like one with an
        // unknown key id.
        let is_known = header.kid.is_some_and(|id| keys.has(&id));
        if let (false, Some(fetcher)) = (is_known, self.fetcher.get()) {
            fetcher.wake_by_ref();
        }
        Err(why)
    }

    /// Checks times, issuer and audience; returns until when they are valid.
    fn check_claims(&self, payload: &Map<String, Value>, now: u64) -> Result<u64, JwtError> {
        let JwtSettings {
            issuers,
            audiences,
            leeway,
            ..
        } = &self.settings;
        let until = payload
            .get("exp")
            .and_then(seconds)
            .ok_or(JwtError::NoExpiry)?
            .saturating_add(*leeway);
        if until <= now {
            return Err(JwtError::Expired);
        }
        if let Some(from) = payload.get("nbf")
            && seconds(from).ok_or(JwtError::NotYet)? > now.saturating_add(*leeway)
        {
            return Err(JwtError::NotYet);
        }
        let accepts = |accepted: &[String], value: &Value| {
            value
                .as_str()
                .is_some_and(|text| accepted.iter().any(|one| one == text))
        };
        let issuer = payload.get("iss");
        if !issuers.is_empty() && !issuer.is_some_and(|issuer| accepts(issuers, issuer)) {
            return Err(JwtError::Issuer);
        }
        let meant = match payload.get("aud") {
            Some(Value::Array(list)) => list.iter().any(|one| accepts(audiences, one)),
            Some(one) => accepts(audiences, one),
            None => false,
        };
        if !audiences.is_empty() && !meant {
            return Err(JwtError::Audience);
        }
        Ok(until)
    }
}

/// A URL as reports and logs have it: its query may be a secret.
pub fn without_query(url: &Uri) -> String {
    let text = url.to_string();
    text.split('?').next().unwrap_or_default().to_owned()
}

/// Whether keys may be fetched from there: over TLS, or from this machine.
pub fn may_be_fetched(url: &Uri) -> Result<(), &'static str> {
    match (url.scheme_str(), url.host()) {
        (Some("https"), Some(_)) => Ok(()),
        (Some("http"), Some(host)) if is_of_this_machine(host) => Ok(()),
        (Some("http"), _) => Err("anyone between could send other keys"),
        _ => Err("only https is known"),
    }
}

/// Whether a host is this machine, by an address or by `localhost`.
pub fn is_of_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn reason(error: &jsonwebtoken::errors::Error) -> JwtError {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::InvalidSignature => JwtError::Signature,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => JwtError::UnknownKey,
        _ => JwtError::Malformed,
    }
}

/// A NumericDate (RFC 7519 section 2) in whole seconds, a fraction dropped.
fn seconds(value: &Value) -> Option<u64> {
    match value.as_u64() {
        Some(seconds) => Some(seconds),
        // A cast from float saturates; NaN cannot occur in JSON.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturating is what is meant"
        )]
        None => value
            .as_f64()
            .filter(|seconds| *seconds >= 0.0)
            .map(|seconds| seconds as u64),
    }
}

/// A claim as text: by its whole name, or by the names of nested objects separated by dots.
fn claim(payload: &Map<String, Value>, name: &str) -> Option<String> {
    let value = match payload.get(name) {
        Some(value) => value,
        None => {
            let mut names = name.split('.');
            let first = payload.get(names.next()?)?;
            names.try_fold(first, |value, name| value.as_object()?.get(name))?
        }
    };
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The longest token looked at, bytes.
const TOKEN_MAX: usize = 16 * 1024;
/// The most claim text cached of one token, bytes.
const REMEMBERED_MAX: usize = 1024;
#[cfg(test)]
mod tests;
