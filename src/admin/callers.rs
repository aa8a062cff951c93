//! Finds the caller that an operator names.

use http::StatusCode;

use super::api::Problem;
use tollgate_policy::{LookupError, Policy, Sought};

/// The caller that `values` name under `identity`, and notes about the name.
///
/// # Errors
/// Why there is none: 404.
pub(super) fn sought(
    policy: &Policy,
    identity: &str,
    values: &[&str],
) -> Result<(Sought, Vec<String>), Problem> {
    let meant = || {
        meant(
            policy,
            identity,
            values.first().copied().unwrap_or_default(),
        )
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
