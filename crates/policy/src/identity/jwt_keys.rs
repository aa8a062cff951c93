//! The keys for verifying tokens, each bound to one family of algorithms.

use std::collections::HashMap;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

/// The keys of one document; none: they have not been fetched.
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    keys: Vec<VerifyingKey>,
}

#[derive(Debug)]
pub(crate) struct VerifyingKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

impl KeySet {
    /// Reads a JWKS document, PEM public keys, or a raw secret, for use under `algorithms`.
    pub(crate) fn parse(bytes: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        let text = bytes.trim_ascii();
        let keys = if text.starts_with(b"{") {
            parse_jwks(text, false)?
        } else if text.starts_with(b"-----BEGIN") {
            parse_pem(text)?
        } else {
            parse_secret(text, algorithms)?
        };
        let set = Self::limited(keys, algorithms)?;
        set.check_alike(algorithms)?;
        let is_useless = |one: &&Algorithm| set.fitting(**one, None).next().is_none();
        if let Some(useless) = algorithms.iter().find(is_useless) {
            return Err(format!(
                "none of the keys is for {useless:?}, which `algorithms` accepts"
            ));
        }
        Ok(set)
    }

    /// Reads a JWKS document that was fetched. Its issuer decides which keys it has, so that it need
    /// not have one for each of the algorithms.
    pub(crate) fn of_document(text: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        let set = Self::limited(parse_jwks(text, true)?, algorithms)?;
        match set.keys.is_empty() {
            true => Err(format!("none of the keys is for {algorithms:?}")),
            false => Ok(set),
        }
    }

    fn limited(mut keys: Vec<VerifyingKey>, algorithms: &[Algorithm]) -> Result<Self, String> {
        for key in &mut keys {
            key.algorithms
                .retain(|algorithm| algorithms.contains(algorithm));
        }
        keys.retain(|key| !key.algorithms.is_empty());
        if keys.len() > KEYS_MAX {
            return Err(format!(
                "there are {} keys; at most {KEYS_MAX} are held",
                keys.len()
            ));
        }
        Ok(Self { keys })
    }

    /// Whether no token fits more keys than are tried. (Of a fetched document the first ones are tried:
    /// an error would keep a withdrawn key in force.)
    fn check_alike(&self, algorithms: &[Algorithm]) -> Result<(), String> {
        for algorithm in algorithms {
            let mut by_id: HashMap<Option<&str>, usize> = HashMap::new();
            for key in self
                .keys
                .iter()
                .filter(|key| key.algorithms.contains(algorithm))
            {
                *by_id.entry(key.id.as_deref()).or_default() += 1;
            }
            let nameless = by_id.remove(&None).unwrap_or(0);
            let alike = nameless + by_id.into_values().max().unwrap_or(0);
            if alike > KEYS_TRIED {
                return Err(format!(
                    "{alike} keys for {algorithm:?} have one `kid` or none, and a token is tried with {KEYS_TRIED} at \
                     most: give each a `kid` of its own in a JWKS document"
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// The keys for `algorithm` with this id. A key without an id fits any; a token without one, any key.
    pub(crate) fn fitting(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &VerifyingKey> {
        self.keys.iter().filter(move |key| {
            let id_fits = match (id, &key.id) {
                (Some(wanted), Some(id)) => wanted == id,
                _ => true,
            };
            id_fits && key.algorithms.contains(&algorithm)
        })
    }
}

/// The keys of a JWKS document. `fetched`: one that a gateway cannot use is left out, because the issuer
/// may have it for others, and an error would keep a withdrawn key in force.
fn parse_jwks(text: &[u8], fetched: bool) -> Result<Vec<VerifyingKey>, String> {
    let document: Value =
        serde_json::from_slice(text).map_err(|error| format!("this is no JSON: {error}"))?;
    // A key set, or a single key.
    let list = match document.get("keys") {
        Some(Value::Array(list)) => list.clone(),
        Some(_) => return Err("`keys` is no list".into()),
        None => vec![document],
    };
    let mut keys = Vec::new();
    for (index, value) in list.into_iter().enumerate() {
        if value.get("d").is_some() {
            if fetched {
                continue;
            }
            return Err(format!(
                "key {index} holds a private key: a gateway needs only the public one"
            ));
        }
        // RFC 7517 section 5: keys of an unknown kind are ignored.
        let Ok(jwk) = serde_json::from_value::<Jwk>(value) else {
            continue;
        };
        let for_signatures = jwk
            .common
            .public_key_use
            .as_ref()
            .is_none_or(|usage| *usage == PublicKeyUse::Signature);
        let algorithms = jwk_algorithms(&jwk);
        if !for_signatures || algorithms.is_empty() {
            continue;
        }
        let is_secret = matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_));
        let key = match DecodingKey::from_jwk(&jwk) {
            Ok(key) if !(fetched && is_secret) => key,
            Err(error) if !fetched => return Err(format!("key {index} cannot be read: {error}")),
            _ => continue,
        };
        if is_secret {
            check_secret(key.try_get_as_bytes().unwrap_or_default(), &algorithms)?;
        }
        keys.push(VerifyingKey {
            id: jwk.common.key_id,
            algorithms,
            key,
        });
    }
    if keys.is_empty() {
        Err("there is no key for signatures in it".into())
    } else {
        Ok(keys)
    }
}

/// The algorithms a key may verify: those of its kind, restricted to the one it names.
fn jwk_algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    let mut algorithms: Vec<Algorithm> = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
        AlgorithmParameters::OctetKey(_) => AlgorithmFamily::Hmac.algorithms().to_vec(),
        AlgorithmParameters::EllipticCurve(parameters) => match parameters.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => Vec::new(),
        },
        AlgorithmParameters::OctetKeyPair(parameters) => match parameters.curve {
            EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    if let Some(named) = &jwk.common.key_algorithm {
        let named = named.to_string().parse::<Algorithm>().ok();
        algorithms.retain(|algorithm| Some(*algorithm) == named);
    }
    algorithms
}

type Read = fn(&[u8]) -> jsonwebtoken::errors::Result<DecodingKey>;

fn parse_pem(text: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let text =
        std::str::from_utf8(text).map_err(|_| "this is no PEM file: it is not text".to_owned())?;
    let mut keys = Vec::new();
    for (block, number) in text.split_inclusive("-----END").zip(1..) {
        let Some(start) = block.find("-----BEGIN") else {
            continue;
        };
        let label = block[start + "-----BEGIN".len()..]
            .split("-----")
            .next()
            .unwrap_or_default()
            .trim();
        if label.contains("PRIVATE") {
            return Err(format!(
                "key {number} is a private key: a gateway needs only the public one"
            ));
        }
        if label == "CERTIFICATE" {
            let what =
                "is a certificate: take its public key out with `openssl x509 -pubkey -noout`";
            return Err(format!("key {number} {what}"));
        }
        let whole = format!("{} {label}-----\n", &block[start..]);
        let readers: [(Read, &[Algorithm]); 3] = [
            (DecodingKey::from_rsa_pem, AlgorithmFamily::Rsa.algorithms()),
            (
                DecodingKey::from_ec_pem,
                &[Algorithm::ES256, Algorithm::ES384],
            ),
            (DecodingKey::from_ed_pem, &[Algorithm::EdDSA]),
        ];
        let found = readers.iter().find_map(|(read, algorithms)| {
            Some((read(whole.as_bytes()).ok()?, algorithms.to_vec()))
        });
        let (key, algorithms) = found.ok_or_else(|| {
            format!("key {number} (`{label}`) is no RSA, EC or Ed25519 public key")
        })?;
        let algorithms = narrow_to_curve(&key, algorithms);
        keys.push(VerifyingKey {
            id: None,
            algorithms,
            key,
        });
    }
    Ok(keys)
}

/// An EC key is for the single algorithm of its curve, which the length of its uncompressed point identifies.
fn narrow_to_curve(key: &DecodingKey, mut algorithms: Vec<Algorithm>) -> Vec<Algorithm> {
    let length = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    algorithms.retain(|algorithm| match algorithm {
        Algorithm::ES256 => length == 65,
        Algorithm::ES384 => length == 97,
        _ => true,
    });
    algorithms
}

fn parse_secret(text: &[u8], algorithms: &[Algorithm]) -> Result<Vec<VerifyingKey>, String> {
    let is_hmac = |algorithm: &Algorithm| algorithm.family() == AlgorithmFamily::Hmac;
    if !algorithms.iter().all(is_hmac) {
        return Err(
            "this is neither a JWKS document nor PEM, and a raw secret serves HS256, HS384 and HS512 only".into()
        );
    }
    check_secret(text, algorithms)?;
    Ok(vec![VerifyingKey {
        id: None,
        algorithms: algorithms.to_vec(),
        key: DecodingKey::from_secret(text),
    }])
}

/// RFC 7518 section 3.2: a secret is no shorter than the hash.
fn check_secret(secret: &[u8], algorithms: &[Algorithm]) -> Result<(), String> {
    let least = if algorithms.contains(&Algorithm::HS256) {
        32
    } else if algorithms.contains(&Algorithm::HS384) {
        48
    } else {
        64
    };
    if secret.len() < least {
        return Err(format!(
            "the secret has {} bytes; it needs {least} at least, or it can be guessed",
            secret.len()
        ));
    }
    Ok(())
}

/// The most keys tried for one token: verifying a signature takes a quarter of a millisecond, for a
/// sender that is not yet known.
pub(crate) const KEYS_TRIED: usize = 4;
const KEYS_MAX: usize = 32;
