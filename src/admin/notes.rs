//! What other numbers for a caller do that its operator may not expect.

use super::live::{Level, Now, moment};
use tollgate_limit::{Kind, Limit, Micros, Timestamp};

/// A change of a limit's numbers for one caller.
pub(super) struct Renumbering<'r> {
    /// The limit as the file has it.
    pub(super) limit: &'r Limit,
    /// The limit with the other numbers.
    pub(super) under: &'r Limit,
    /// Whether the rate is another one, and the burst is not named.
    pub(super) only_rate: bool,
    /// How the bucket stood before.
    pub(super) was: &'r Now,
    /// How it stands since; `None`: nothing was changed.
    pub(super) is: Option<&'r Now>,
    /// When.
    pub(super) at: Timestamp,
}

impl Renumbering<'_> {
    /// The notes, each a sentence without its full stop.
    pub(super) fn notes(&self) -> Vec<String> {
        let burst = self.burst_that_stays();
        burst.into_iter().chain(self.units()).collect()
    }

    fn burst_that_stays(&self) -> Option<String> {
        let (own, new) = (&self.limit.algorithm, &self.under.algorithm);
        let has_burst = matches!(own.kind(), Kind::TokenBucket | Kind::Interval);
        let stays = has_burst && self.only_rate && own.burst() == new.burst();
        let differs = new.quota().is_some_and(|quota| quota.amount != quota.burst);
        (stays && differs).then(|| format!("the burst stays {}, as none is given", own.burst()))
    }

    /// What becomes of the units that are left.
    fn units(&self) -> Option<String> {
        let was = self.was.level.as_ref()?;
        let most = self.under.algorithm.capacity();
        if was.remaining > most {
            let are = match self.is {
                Some(_) => "are",
                None => "would be",
            };
            return Some(format!(
                "{} units were left, and {most} {are}: from the next request on, lifting the override does not bring the others back",
                was.remaining
            ));
        }
        let level = self.is.and_then(|now| now.level.as_ref()).unwrap_or(was);
        let is_window = self.limit.algorithm.kind() == Kind::FixedWindow;
        let full = match self.is {
            Some(_) => most,
            None => self.limit.algorithm.capacity(),
        };
        let stays = match is_window {
            true if level.remaining < full => self.window(level),
            false if !level.admits => format!(
                "other numbers fill nothing: {} units are left, and more come at the new rate from now on",
                level.remaining
            ),
            _ => return None,
        };
        Some(format!(
            "{stays}; `key reset` fills it now, and `unlimited` admits without it"
        ))
    }

    /// A window that has begun.
    fn window(&self, level: &Level) -> String {
        let end = Micros(level.full_in_ms.saturating_mul(1_000));
        format!(
            "a raise adds nothing to a window that has begun: {} units are left until {}",
            level.remaining,
            moment(self.at.after(end))
        )
    }
}
