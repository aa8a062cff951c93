//! What other numbers for a caller do that its operator may not expect.

use super::live::{Level, Now};
use tollgate_limit::{Kind, Limit, words};

/// A change of a limit's numbers for one caller.
pub(super) struct Renumbering<'r> {
    pub(super) limit: &'r Limit,
    pub(super) under: &'r Limit,
    /// Whether the rate is another one, and the burst is not named.
    pub(super) only_rate: bool,
    /// How the bucket stood before.
    pub(super) was: &'r Now,
    /// How it stands since; `None`: nothing was changed, and nothing is said of the units.
    pub(super) is: Option<&'r Now>,
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
        let burst = || words::amount(own.burst(), self.limit.currency.as_deref());
        (stays && differs).then(|| format!("the burst stays {}, as none is given", burst()))
    }

    /// What becomes of the units that a token bucket has left. (All others count what was used against
    /// whichever number there is.)
    fn units(&self) -> Option<String> {
        if self.limit.algorithm.kind() != Kind::TokenBucket {
            return None;
        }
        let was = self.was.level.as_ref()?;
        let level = self.is?.level.as_ref().unwrap_or(was);
        let most = self.under.algorithm.capacity();
        if was.remaining > most {
            return Some(format!(
                "{} were left, and {} are: from the next request on, lifting the override does not bring the others back",
                self.in_words(was.remaining),
                words::amount(most, self.limit.currency.as_deref())
            ));
        }
        (!level.admits).then(|| {
            format!(
                "other numbers fill nothing: {} {} left, and more come at the new rate; `key reset` fills it now, and `unlimited` admits without it",
                self.in_words(level.remaining),
                is_or_are(level)
            )
        })
    }

    fn in_words(&self, units: u64) -> String {
        words::units(units, self.limit.currency.as_deref())
    }
}

fn is_or_are(level: &Level) -> &'static str {
    if level.currency.is_some() || level.remaining == 1 {
        "is"
    } else {
        "are"
    }
}
