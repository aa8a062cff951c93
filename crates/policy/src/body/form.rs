//! The fields of a form (`application/x-www-form-urlencoded`).

use smallvec::SmallVec;

use super::{BodyFacts, BodyFlaw};
use crate::source;

/// The fields of `text` that are asked for, by their places in `names`.
pub(super) fn fields(
    names: &[String],
    asked: u64,
    text: &[u8],
) -> Result<SmallVec<[(usize, Vec<u8>); 1]>, BodyFlaw> {
    let mut found = SmallVec::new();
    for place in crate::json::places(asked) {
        let value = source::parameter(text, &names[place]).map_err(|_| BodyFlaw::Ambiguous)?;
        found.extend(value.map(|value| (place, value.into_owned())));
    }
    Ok(found)
}

/// Refuses a field that the target of the request states as well, with another value: servlets, for
/// example, join the parameters of both and read the first.
///
/// # Errors
/// If there is one.
pub(super) fn check_beside(facts: &BodyFacts, query: &str) -> Result<(), BodyFlaw> {
    for (place, value) in &facts.fields {
        match source::parameter(query.as_bytes(), &facts.wanted.forms[*place]) {
            Ok(None) => {}
            Ok(Some(other)) if *other == **value => {}
            Ok(Some(_)) | Err(_) => return Err(BodyFlaw::Ambiguous),
        }
    }
    Ok(())
}
