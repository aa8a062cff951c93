//! A change that an operator asks of several gateways is made once in a store that they share, and
//! recorded by the gateway that made it. Buckets and overrides of a process are changed in each.

use std::time::Duration;

use super::api::Problem;
use super::live::Live;
use crate::overrides::ChangeError;
use tollgate_limit::Limit;

impl Live {
    /// Notes about the limits for which another gateway of the store has made this change. It may
    /// have done so a moment ago, before this gateway has learnt of it.
    pub(super) async fn made_elsewhere(
        &self,
        limits: &[&Limit],
        change: Option<&str>,
    ) -> Vec<String> {
        let Some(change) = change else {
            return Vec::new();
        };
        let is_made = |limit: &&&Limit| self.overrides.is_made(limit, change);
        for _ in 0..LOOKS {
            let made = limits.iter().filter(is_made);
            let made: Vec<String> = made.map(|limit| made_before(limit)).collect();
            if !made.is_empty() {
                return made;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Vec::new()
    }
}

/// The note about a limit for which another gateway of the store has made the change.
pub(super) fn made_before(limit: &Limit) -> String {
    format!("limit `{}`: {}", limit.name, ChangeError::MadeBefore)
}

/// The name of a change, which tells two changes apart.
///
/// # Errors
/// If it cannot be a name.
pub(super) fn change_name(name: Option<&str>) -> Result<Option<&str>, Problem> {
    let is_name = |name: &str| {
        (1..=CHANGE_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match name {
        Some(name) if !is_name(name) => {
            let detail = format!("`change` has 1 to {CHANGE_MAX} letters and digits");
            Err(Problem::bad_request(detail))
        }
        name => Ok(name),
    }
}

/// The longest name of a change.
const CHANGE_MAX: usize = 64;

/// How often, and at what interval, a gateway checks whether another one has made the change.
const LOOKS: u32 = 30;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
