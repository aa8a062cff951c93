//! Where a GraphQL request says which document is executed. Servers prefer different places, so one
//! of them must be the only one.

use sha2::{Digest, Sha256};

use super::facts::BodyFacts;
use crate::json::Value;
use tollgate_limit::hex;

/// The members of a request that name its operation.
pub(super) const GRAPHQL: [&str; 2] = ["query", "operationName"];
/// The members that name a document that the server has.
pub(super) const STORED: [&str; 4] = ["documentId", "id", "doc_id", "operationId"];
/// The member that names such a document too, as clients of graphql-ruby's `OperationStore` send it.
pub(super) const STORED_WITHIN: [&str; 2] = [HASH[0], STORED[3]];
/// The member that has the hash of a document, as Apollo's clients send it.
pub(super) const HASH: [&str; 3] = ["extensions", "persistedQuery", "sha256Hash"];

/// The names of all of these, which many servers also read from the target, and prefer there.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    GRAPHQL.into_iter().chain(STORED).chain([HASH[0]])
}

/// Whether no server finds another document in the body than `query`.
pub(super) fn is_only(query: &[u8], facts: &BodyFacts) -> bool {
    let value = |path: &[&str]| facts.member(path)?.value.as_ref();
    let is_stored = STORED.into_iter().any(|name| value(&[name]).is_some());
    if is_stored || value(&STORED_WITHIN).is_some() {
        return false;
    }
    match (value(&HASH[..1]), value(&HASH[..2]), value(&HASH)) {
        (None, ..) | (Some(Value::Odd), None, _) => true,
        // With a hash of its own the query is stored, and nothing else is executed.
        (Some(Value::Odd), Some(Value::Odd), Some(Value::Text(hash))) => {
            **hash == *hex::digits(&Sha256::digest(query)).as_bytes()
        }
        // Some servers read a text as JSON.
        _ => false,
    }
}
