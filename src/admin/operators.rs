//! Who may change buckets: operators, known by a bearer token or by the user of their process.

use http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};

use super::api::Problem;
use tollgate_config::settings::{Operator, OperatorLevel};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its address, or the user and process on a Unix socket.
    pub(super) from: String,
    /// The user of its process, on a Unix socket.
    pub(super) user: Option<u32>,
}

/// The operator who sends a request that changes something.
/// The error: 403 if there are no operators, or this one may only read; 401 if the request proves no operator.
pub(super) fn authorise<'o>(
    operators: &'o [Operator],
    headers: &HeaderMap,
    peer: &Peer,
) -> Result<&'o Operator, Problem> {
    if operators.is_empty() {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "no operators are configured, so no request may change anything: list them in `operators` of [admin]",
        ));
    }
    let token = token(headers)?;
    let digest = token.map(|token| <[u8; 32]>::from(Sha256::digest(token)));
    // Digests are compared: their timing tells nothing about the token. A token that is shown must be
    // right, also on a Unix socket.
    let is_shown = |operator: &&Operator| match &digest {
        Some(digest) => operator.token.as_ref() == Some(digest),
        None => peer.user.is_some() && operator.user == peer.user,
    };
    let Some(operator) = operators.iter().find(is_shown) else {
        let detail = match token {
            Some(_) => "the bearer token is not that of an operator",
            None => {
                "changes need the bearer token of an operator (`tollgate` takes it by --token-file FILE, or TOLLGATE_TOKEN), or a Unix socket and its user"
            }
        };
        return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
    };
    if operator.level != OperatorLevel::Operate {
        let detail = format!("operator `{}` may only read", operator.name);
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(operator)
}

fn token(headers: &HeaderMap) -> Result<Option<&[u8]>, Problem> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (first, second) = (lines.next(), lines.next());
    let Some(first) = first else { return Ok(None) };
    let (scheme, token) = first.as_bytes().split_at(first.len().min(SCHEME.len()));
    if second.is_some() || !scheme.eq_ignore_ascii_case(SCHEME) {
        let detail = "one `Authorization: Bearer TOKEN` was expected";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
    }
    Ok(Some(token.trim_ascii()))
}

const SCHEME: &[u8] = b"Bearer ";
