//! Finds the caller that an operator names.

use http::StatusCode;

use super::api::Problem;
use tollgate_policy::{LookupError, Policy, Sought};

/// Whether a caller that is not found is compared with the names of the listed ones. Readers need
/// no token, and are told no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    None,
    Given,
}

/// The caller that `values` name under `identity`, and notes about the name.
///
/// # Errors
/// Why there is none: 404.
pub(super) fn sought(
    policy: &Policy,
    identity: &str,
    values: &[&str],
    hint: Hint,
) -> Result<(Sought, Vec<String>), Problem> {
    let meant = || match (hint, values.first()) {
        (Hint::Given, Some(value)) if value.len() <= NAME_MAX => meant(policy, identity, value),
        _ => String::new(),
    };
    let sought = policy.look_up(identity, values).map_err(|error| {
        let hint = match error {
            LookupError::Unknown { .. } => meant(),
            _ => String::new(),
        };
        Problem::new(StatusCode::NOT_FOUND, format!("{error}{hint}"))
    })?;
    let mut notes = Vec::new();
    if sought.is_unlisted {
        notes.push(format!(
            "`{}` is not in the list of callers of `{identity}`, and is taken for a key{}",
            values.join(" "),
            meant()
        ));
    }
    Ok((sought, notes))
}

/// The listed caller that is probably meant by `value`.
fn meant(policy: &Policy, identity: &str, value: &str) -> String {
    let mut identities = policy.identities.iter();
    let callers = identities
        .find(|known| *known.name == *identity)
        .and_then(|known| known.callers.as_ref());
    let Some(callers) = callers.map(|callers| callers.load()) else {
        return String::new();
    };
    let names = callers.iter().map(|caller| &*caller.name);
    match tollgate_config::nearest(value, names) {
        Some(near) => format!(": did you mean `{near}`?"),
        None => String::new(),
    }
}

/// The longest name that is compared with those of the list: each comparison takes the product of
/// both lengths.
const NAME_MAX: usize = 64;
