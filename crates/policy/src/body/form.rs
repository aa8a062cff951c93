//! The fields of a form (`application/x-www-form-urlencoded`).

use smallvec::SmallVec;

use super::BodyFlaw;
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
